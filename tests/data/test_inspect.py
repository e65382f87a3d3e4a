import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.inspect import inspect_dataset
from qdq.data.references import d4rl_reference
from qdq.report.data_card import data_card, write_data_card

Rows = dict[str, Any]


def codes(dataset: Dataset, level: str = "warning") -> set[str]:
    summary = inspect_dataset(dataset, q_width=20, q_stride=5)
    return {fault["code"] for fault in summary["warnings"] if fault["level"] == level}


def pendulum(episodes: int = 20, length: int = 100) -> Rows:
    """Swings from near rest, each ending in a terminal after its own number of steps: data without faults."""
    random = np.random.default_rng(0)
    rows: dict[str, list[Any]] = {}
    for episode in range(episodes):
        steps = length + 3 * episode
        state = random.normal(size=3) * 0.01
        states = [state]
        actions = np.clip(random.normal(size=(steps, 2)) * 0.4, -0.95, 0.95)
        for action in actions:
            push = np.array([action[0], action[1], 0.5 * action[0]])
            state = state + 0.1 * np.array([state[1], -state[0] + push[1], push[2]]) + 0.02 * push
            states.append(state)
        final = np.arange(steps) == steps - 1
        parts = {
            "observations": states[:-1],
            "next_observations": states[1:],
            "actions": actions,
            "rewards": np.array(states)[1:, 0],
            "terminals": final,
            "truncations": np.zeros(steps, bool),
        }
        for key, value in parts.items():
            rows.setdefault(key, []).append(np.asarray(value))
    return {key: np.concatenate(value) for key, value in rows.items()}


def test_good_data_has_no_warnings() -> None:
    assert codes(from_arrays(**pendulum())) == set()


def no_terminals(rows: Rows) -> None:
    rows["truncations"], rows["terminals"] = rows["terminals"], rows["truncations"]


def clipped_actions(rows: Rows) -> None:
    rows["actions"] = np.sign(rows["actions"])


def huge_rewards(rows: Rows) -> None:
    rows["rewards"] = rows["rewards"] * 1e5


def no_reward(rows: Rows) -> None:
    rows["rewards"] = np.zeros_like(rows["rewards"])


def wide_bounds(rows: Rows) -> None:
    rows["action_low"], rows["action_high"] = -100.0, 100.0


def shifted_over_resets(rows: Rows) -> None:
    rows["next_observations"] = np.roll(rows["observations"], -1, axis=0)


def forgotten_resets(rows: Rows) -> None:
    ends = np.flatnonzero(rows["terminals"])
    rows["terminals"][ends[1::2]] = False
    del rows["next_observations"], rows["truncations"]


def broken_rows(rows: Rows) -> None:
    rows["next_observations"][50::400] += 3.0


def copies(rows: Rows) -> None:
    for key in list(rows):
        rows[key] = np.concatenate([rows[key], rows[key]])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (no_terminals, "no_terminals"),
        (clipped_actions, "actions_at_bounds"),
        (huge_rewards, "reward_scale"),
        (no_reward, "constant_reward"),
        (wide_bounds, "bounds_too_wide"),
        (shifted_over_resets, "leakage_across_episodes"),
        (forgotten_resets, "hidden_resets"),
        (broken_rows, "next_observation_mismatch"),
        (copies, "duplicate_transitions"),
    ],
)
def test_classic_faults_are_named(fault: Callable[[Rows], None], code: str) -> None:
    rows = pendulum()
    fault(rows)
    assert code in codes(from_arrays(**rows))


def test_time_limits_marked_as_terminals(make_rows: Any) -> None:
    rows = make_rows((50,) * 12, (True,) * 12)
    assert "timeouts_as_terminals" in codes(from_arrays(**rows))
    assert "timeouts_as_terminals" not in codes(from_arrays(**make_rows((50,) * 12, (False,) * 12)))


def test_a_cheetah_need_not_terminate(make_rows: Any) -> None:
    metadata = Metadata(environment_id="HalfCheetah-v4")
    dataset = from_arrays(**make_rows((50,) * 12, (False,) * 12), metadata=metadata)
    assert "no_terminals" not in codes(dataset)
    assert "no_terminals" in codes(dataset, "note")


@pytest.mark.parametrize("environment", ["PointMaze_UMaze-v3", "AntMaze_UMaze-v4"])
def test_a_maze_need_not_terminate_where_its_task_goes_on(environment: str, make_rows: Any) -> None:
    """Gymnasium's mazes go on at the goal; those of the factory end there, so data without ends has lost them."""
    rows = make_rows((50,) * 12, (False,) * 12)
    for options, level in (
        ({}, "note"),
        ({"continuing_task": True}, "note"),
        ({"continuing_task": False}, "warning"),
    ):
        metadata = Metadata(environment_id=environment, environment_options=options)
        assert "no_terminals" in codes(from_arrays(**rows, metadata=metadata), level)


def test_constant_and_duplicate_columns_are_found(make_rows: Any) -> None:
    rows = make_rows()
    for key in ("observations", "next_observations"):
        rows[key][:, 1] = 3.0
        rows[key][:, 3] = rows[key][:, 0]
    summary = inspect_dataset(from_arrays(**rows))
    assert summary["observations"]["constant"] == [1]
    assert summary["observations"]["duplicates"] == [[0, 3]]


def test_numbers_against_direct_computation(make_rows: Any) -> None:
    metadata = Metadata(environment_id="Hopper-v4", reference=d4rl_reference("Hopper-v4"))
    rows = make_rows((40, 30, 20), (True, False, True), sizes=(11, 3))
    summary = inspect_dataset(from_arrays(**rows, metadata=metadata), q_width=10, q_stride=5, discount=0.9)
    returns = [rows["rewards"][a:b].sum(dtype=np.float64) for a, b in ((0, 40), (40, 70), (70, 90))]
    assert summary["returns"]["mean"] == pytest.approx(np.mean(returns))
    assert summary["score"] == pytest.approx(100 * (np.mean(returns) + 20.272305) / (3234.3 + 20.272305))
    assert summary["ends"]["terminal_episodes"] == pytest.approx(2 / 3)
    first = sum(0.9**step * rows["rewards"][step] for step in range(10))
    assert summary["q_dataset"]["min"] <= first <= summary["q_dataset"]["max"]
    assert summary["q_dataset"]["exact_share"] == pytest.approx(81 / 90)  # 9 of 30 windows meet the time limit
    assert summary["duplicate_transitions"] == 0
    assert sum(summary["lengths"]["histogram"]["counts"]) == 3


def test_the_summary_is_json_whatever_the_file_said(dataset: Dataset) -> None:
    details = {"rate": float("nan"), "path": Path("x"), "list": (1, float("inf"))}
    strange = replace(dataset, metadata=replace(dataset.metadata, details=details))
    text = json.dumps(inspect_dataset(strange), allow_nan=False)
    assert json.loads(text)["details"] == {"rate": None, "path": "x", "list": [1, None]}


def test_the_card_is_one_safe_page(make_rows: Any, tmp_path: Path) -> None:
    metadata = Metadata(name="<script>alert(1)</script> & $x_1$", reference=d4rl_reference("Hopper-v4"))
    dataset = from_arrays(**make_rows(), metadata=metadata)
    write_data_card(inspect_dataset(dataset, q_width=5), tmp_path / "card.html")
    page = (tmp_path / "card.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<svg") == 9
    assert 'src="http' not in page
    assert "<link" not in page
    assert "prefers-color-scheme: dark" in page


def test_the_card_of_poor_data_is_still_drawn(make_rows: Any) -> None:
    rows = make_rows((2,), (True,), sizes=(1, 1))
    rows["rewards"][:] = 0.0
    dataset = from_arrays(**rows)
    summary = inspect_dataset(dataset)
    assert "error" in summary["q_dataset"]
    assert data_card(summary).count("<svg") == 8
