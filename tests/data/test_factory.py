"""The dataset factory: sizes, order, determinism and metadata, with tiny policies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from qdq.data import factory, rollouts
from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.factory import (
    CATALOGUE,
    collecting_policies,
    dataset_id,
    default_size,
    make_dataset,
    plan_dataset,
    roll_out_plan,
)
from qdq.data.mazes import (
    ERRANDS,
    POINT_MAZE_OPTIONS,
    POINT_MAZES,
    SPREADS,
    Errand,
    WaypointController,
    free_cells,
    next_cells,
)
from qdq.data.minari_format import read_minari
from qdq.data.rollouts import Episodes, cut, first_episodes, roll_out
from qdq.errors import UsageError
from qdq.online.acting import make_environment


@pytest.fixture(autouse=True)
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eleven Hopper policies that push with constant, distinct actions; Minari's folder in a temporary place."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("QDQ_SNAPSHOTS", str(tmp_path))
    monkeypatch.setattr(rollouts, "SHARD", 60)
    arrays, steps = {}, [10_000 * number for number in range(11)]
    for number, step in enumerate(steps):
        bias = np.concatenate([np.full(3, -1 + number / 5), np.full(3, -9.0)]).astype(np.float16)
        arrays |= {f"{step:08d}.layers.0.weight": np.zeros((11, 6), np.float16), f"{step:08d}.layers.0.bias": bias}
    content = {
        "environment_id": "Hopper-v4",
        "algorithm": "sac",
        "seed": 1,
        "levels": {"expert": steps[10], "medium": steps[9], "replay": steps[:10]},
        "snapshots": [{"environment_steps": step, "score": 1.0, "return": 12.0} for step in steps],
        "versions": {"gymnasium": "1", "mujoco": "3"},
    }
    save_file(arrays, tmp_path / "hopper.safetensors", metadata={"set": json.dumps(content)})
    return tmp_path


def test_catalogue_has_all_eighteen_with_d4rl_sizes():
    assert len(CATALOGUE) == 18
    assert default_size("hopper-medium") == 1_000_000
    assert [default_size(f"{f}-medium-replay") for f in ("hopper", "halfcheetah", "walker2d")] == [
        402_000,
        202_000,
        302_000,
    ]
    assert default_size("walker2d-medium-expert") == 2_000_000
    assert dataset_id("hopper-medium-replay") == "qdq/hopper/medium-replay-v0"
    assert dataset_id("pointmaze-umaze") == "qdq/pointmaze/umaze-v0"


@pytest.mark.parametrize("name", ["hopper-medium-replay", "pointmaze-umaze"])
def test_the_result_does_not_depend_on_the_number_of_workers(name: str):
    plan = plan_dataset(name, 300, seed=4)
    alone, together = (roll_out_plan(plan, workers) for workers in (1, 2))
    assert alone.sha256 == together.sha256
    assert roll_out_plan(plan_dataset(name, 300, seed=5), 1).sha256 != alone.sha256


@pytest.mark.parametrize("name", ["hopper-random", "hopper-medium", "hopper-medium-expert", "halfcheetah-random"])
def test_size_is_exact_and_flags_are_consistent(name: str):
    dataset = roll_out_plan(plan_dataset(name, 500, seed=0), 1)
    assert dataset.transitions == 500
    ends = np.cumsum(dataset.lengths) - 1
    assert np.array_equal(np.flatnonzero(dataset.terminals | dataset.truncations), ends)
    assert not (dataset.terminals & dataset.truncations).any()
    cut_short = dataset.metadata.details.get("last_episode_cut", False)
    assert bool(dataset.truncations[-1]) == cut_short
    assert dataset.metadata.reference is not None
    assert dataset.metadata.reference.origin == "D4RL"


def test_random_actions_are_uniform():
    actions = roll_out_plan(plan_dataset("hopper-random", 2000, seed=0), 1).actions
    assert np.abs(actions.mean(axis=0)).max() < 0.05
    np.testing.assert_allclose(actions.std(axis=0), 1 / np.sqrt(3), atol=0.03)


def test_medium_replay_runs_the_snapshots_in_order_with_equal_shares():
    dataset = roll_out_plan(plan_dataset("hopper-medium-replay", 2000, seed=0), 1)
    # Each policy pushes with tanh(-1 + number / 5), so the first action of an episode names its snapshot.
    number = np.round((np.arctanh(np.clip(dataset.actions[:, 0], -0.999, 0.999)) + 1) * 5)
    assert (np.diff(number) >= 0).all()
    counts = np.bincount(number.astype(int), minlength=10)
    assert len(counts) == 10
    longest = dataset.lengths.max()
    assert (np.abs(counts - 200) <= longest).all()
    assert [entry["environment_steps"] for entry in dataset.metadata.details["snapshots"]] == [
        10_000 * n for n in range(10)
    ]


def test_medium_expert_is_the_medium_set_followed_by_the_expert_set():
    both, medium, expert = (
        roll_out_plan(plan_dataset(f"hopper-{level}", count, seed=2), 1)
        for level, count in (("medium-expert", 600), ("medium", 300), ("expert", 300))
    )
    np.testing.assert_array_equal(both.actions[:300], medium.actions)
    boundary = both.starts[np.searchsorted(both.starts, 300)]
    np.testing.assert_array_equal(both.actions[boundary:], expert.actions[: 600 - boundary])


def test_make_dataset_stores_a_minari_dataset_once(capsys: pytest.CaptureFixture[str]):
    path = make_dataset("hopper-medium", transitions=120, seed=3, workers=1)
    dataset = read_minari("qdq/hopper/medium-v0")
    direct = roll_out_plan(plan_dataset("hopper-medium", 120, seed=3), 1)
    assert dataset.sha256 == direct.sha256
    assert dataset.metadata.task == "hopper-medium"
    assert dataset.metadata.environment_id == "Hopper-v4"
    assert dataset.metadata.details["seed"] == 3
    assert make_dataset("hopper-medium", transitions=300, workers=1) == path
    assert "exists already" in capsys.readouterr().err
    make_dataset("hopper-medium", transitions=300, workers=1, force=True)
    assert read_minari(path).transitions == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "hopper-medum"}, "hopper-medium"),
        ({"name": "hopper-random", "transitions": 1}, "at least 2"),
        ({"name": "hopper-random", "workers": 0}, "at least 1"),
    ],
)
def test_bad_requests_are_usage_errors(arguments: dict, message: str):
    with pytest.raises(UsageError, match=message):
        make_dataset(**arguments)


def episodes(*lengths: int) -> Episodes:
    total = sum(lengths)
    terminals = np.zeros(total, bool)
    terminals[np.cumsum(lengths) - 1] = True
    rows = np.arange(total + len(lengths), dtype=np.float32)[:, None]
    steps = np.arange(total, dtype=np.float32)
    return Episodes(rows, steps[:, None], steps, terminals, np.zeros(total, bool), np.asarray(lengths))


@pytest.mark.parametrize(
    ("transitions", "expected"), [(3, [3]), (4, [3, 4]), (7, [3, 4]), (8, [3, 4, 2]), (99, [3, 4, 2])]
)
def test_first_episodes_are_whole(transitions: int, expected: list[int]):
    part = first_episodes(episodes(3, 4, 2), transitions)
    assert part.lengths.tolist() == expected
    assert len(part.observations) == sum(expected) + len(expected)


def test_cut_truncates_only_where_it_stops_an_episode():
    part, stopped = cut(episodes(3, 4), 5)
    assert stopped
    assert part.lengths.tolist() == [3, 2]
    assert part.truncations.tolist() == [False] * 4 + [True]
    assert not part.terminals[-1]
    assert part.observations[-1, 0] == 6.0  # the observation after the fifth transition stays
    whole, stopped = cut(episodes(3, 4), 3)
    assert not stopped
    assert whole.terminals.tolist() == [False, False, True]


def test_shortest_paths_on_a_small_maze():
    free = free_cells([[1, 1, 1, 1], [1, 0, 0, 1], [1, "g", 1, 1], [1, 0, "r", 1], [1, 1, 1, 1]])
    assert free == {(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)}
    following = next_cells(free, (3, 2))
    path = [(1, 2)]
    while path[-1] != (3, 2):
        path.append(following[path[-1]])
    assert path == [(1, 2), (1, 1), (2, 1), (3, 1), (3, 2)]


class OnErrand(WaypointController):
    """A controller whose every episode has the same errand."""

    def __init__(self, maze: Any, errand: Errand):
        self.always: Errand = errand
        super().__init__(maze)

    def begin(self, noise: np.random.Generator | None, errand: Errand | None = None) -> None:
        super().begin(noise, self.always)


def maze_episodes(maze: str, errand: Errand, count: int) -> list[Episodes]:
    environment = make_environment(POINT_MAZES[maze], **POINT_MAZE_OPTIONS)
    controller, random = OnErrand(environment.unwrapped.maze, errand), np.random.default_rng(0)
    return [roll_out(environment, controller, random, seed) for seed in range(count)]


@pytest.mark.parametrize("maze", list(POINT_MAZES))
def test_controller_reaches_the_goal_which_is_terminal(maze: str):
    for episode in maze_episodes(maze, "direct", 5):
        assert episode.terminals[-1]
        assert episode.rewards.sum() == 1.0
        assert np.linalg.norm(episode.observations[-1, :2] - episode.observations[-1, 4:]) <= 0.45


def test_without_randomness_the_controller_goes_straight_to_the_goal():
    environment = make_environment(POINT_MAZES["medium"], **POINT_MAZE_OPTIONS)
    controller = WaypointController(environment.unwrapped.maze)
    observation, _ = environment.reset(seed=0)
    steps, terminal = 0, False
    while not terminal:
        observation, _, terminal, truncated, _ = environment.step(controller.act(observation, None))
        steps += 1
        assert not truncated
    assert steps < 300


def test_a_detour_takes_longer_and_a_wanderer_runs_out_of_time():
    lengths = {errand: np.mean([len(e.rewards) for e in maze_episodes("umaze", errand, 8)]) for errand in ERRANDS}
    assert lengths["direct"] < lengths["detour"] < lengths["wandering"]
    wandering = maze_episodes("umaze", "wandering", 4)
    for episode in wandering:
        assert episode.truncations[-1]
        assert len(episode.rewards) == 300
        assert not episode.rewards.any()
    # It moves about, except where the goal bars the only way out of its cell.
    reach = [np.ptp(episode.observations[:, :2], axis=0).max() for episode in wandering]
    assert np.median(reach) > 0.75


def test_pointmaze_data_is_mixed_in_the_documented_shares():
    dataset = roll_out_plan(plan_dataset("pointmaze-umaze", 12_000, seed=0), 1)
    assert dataset.metadata.details["errands"] == ERRANDS
    assert sum(ERRANDS.values()) == pytest.approx(1.0)
    assert dataset.behaviour_score is not None
    # About seventy episodes: within three standard deviations of the share that heads for the goal.
    assert dataset.behaviour_score == pytest.approx(100 * (1 - ERRANDS["wandering"]), abs=17)
    final = np.cumsum(dataset.lengths) - 1
    failed = dataset.truncations[final] & dataset.complete
    assert (dataset.lengths[failed] == 300).all()
    assert (dataset.rewards[final][dataset.terminals[final]] == 1.0).all()


def test_the_noise_of_an_episode_lies_in_its_range():
    environment = make_environment(POINT_MAZES["umaze"], **POINT_MAZE_OPTIONS)
    controller, random = WaypointController(environment.unwrapped.maze), np.random.default_rng(0)
    drawn = []
    for _ in range(200):
        controller.begin(random)
        drawn.append((controller.errand, controller.spread))
    assert {errand for errand, _ in drawn} == set(ERRANDS)
    spreads = np.array([spread for _, spread in drawn])
    assert SPREADS[0] <= spreads.min() < 0.3
    assert 0.9 < spreads.max() <= SPREADS[1]


def test_pointmaze_metadata_recreates_the_environment():
    dataset = roll_out_plan(plan_dataset("pointmaze-umaze", 200, seed=0), 1)
    assert dataset.metadata.environment_id == "PointMaze_UMaze-v3"
    assert dataset.metadata.environment_options == {"continuing_task": False}
    assert dataset.metadata.details["observation_layout"] == [["observation", 4], ["desired_goal", 2]]
    assert factory.CATALOGUE["pointmaze-umaze"].startswith("PointMaze_UMaze-v3")


def noted(name: str, **changes: Any) -> Dataset:
    """A few rows with the notes of a set of the factory."""
    plan = plan_dataset(name, 100, 0)
    metadata = Metadata(name, environment_id=plan.environment_id, details=plan.details | changes)
    observations, actions = np.zeros((4, 11), np.float32), np.zeros((4, 3), np.float32)
    return from_arrays(observations, actions, np.zeros(4), np.array([0, 1, 0, 1], bool), metadata=metadata)


def test_the_policies_behind_a_set_are_found_by_its_notes():
    observations, actions = np.zeros((1, 11)), np.full((1, 3), np.tanh(0.8))
    found = {name: collecting_policies(noted(f"hopper-{name}")) for name in factory.LEVELS}
    counts = {name: len(policies) for name, policies in found.items()}
    assert counts == {"random": 0, "medium": 1, "medium-replay": 10, "medium-expert": 2, "expert": 1}
    # Snapshot number n pushes with tanh(-1 + n / 5): medium is 9, expert is 10.
    densities = {name: [p.log_density(observations, actions)[0] for p in one] for name, one in found.items()}
    assert densities["medium"] == densities["medium-expert"][:1] == densities["medium-replay"][-1:]
    assert densities["medium"][0] > densities["expert"][0] + 100  # two hundred standard deviations between them
    assert densities["expert"] == densities["medium-expert"][1:]


def test_policies_of_other_snapshots_or_another_origin_are_not_found(monkeypatch: pytest.MonkeyPatch):
    same = {"environment_steps": 90_000, "score": 1.0}
    assert collecting_policies(noted("hopper-medium", snapshots=[same]))
    for notes in (
        {"snapshots": [same | {"score": 2.0}]},  # other snapshots have the name today
        {"snapshots": [same, {"environment_steps": 95_000, "score": 1.0}]},
        {"snapshots": []},
        {"snapshots": [3]},
        {"snapshots": "medium"},
        {"made_by": "somebody"},
    ):
        assert collecting_policies(noted("hopper-medium", **notes)) == []
    narrow = noted("hopper-medium")
    actions = np.zeros((4, 2), np.float32)
    ends = np.array([0, 1, 0, 1], bool)
    other = from_arrays(np.zeros((4, 11), np.float32), actions, np.zeros(4), ends, metadata=narrow.metadata)
    assert collecting_policies(other) == []
    monkeypatch.setenv("QDQ_SNAPSHOTS", "nowhere")
    assert collecting_policies(narrow) == []
