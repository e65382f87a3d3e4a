"""Guard, logs, checkpoints."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from qdq.errors import DivergedError
from qdq.training.hooks import Checkpoints, CsvLog, Guard, JsonLines, TensorBoardLog


def guard() -> Guard:
    return Guard("qdq", q_minimum=0.0, q_maximum=100.0, reward_magnitude=2.0, discount=0.99)


def test_guard_passes_ordinary_numbers() -> None:
    watch = guard()
    watch(1, None, {"q_mean": 149.0, "q_magnitude": 300.0})
    assert not watch.warnings


def test_guard_warns_once_outside_the_band() -> None:
    watch, metrics = guard(), {"q_mean": 151.0}
    watch(5, None, metrics)
    watch(6, None, {"q_mean": -51.0})
    assert metrics["q_warning"] == 1.0
    assert len(watch.warnings) == 1
    assert "step 5" in watch.warnings[0]


def test_guard_lets_q_rise_from_zero_but_not_fall_back() -> None:
    watch = Guard("qdq", q_minimum=100.0, q_maximum=200.0, reward_magnitude=2.0, discount=0.99)
    for step, mean in enumerate((0.0, 20.0, 60.0)):
        watch(step, None, {"q_mean": mean})
    assert not watch.warnings
    watch(9, None, {"q_mean": 40.0})
    assert "step 9" in watch.warnings[0]


def test_guard_has_no_band_where_returns_never_differ() -> None:
    watch = Guard("td3-bc", q_minimum=0.0, q_maximum=0.0, reward_magnitude=0.0, discount=0.99)
    watch(1, None, {"q_mean": 0.3, "q_magnitude": 0.5})
    assert not watch.warnings


@pytest.mark.parametrize(
    "metrics", [{"critic_loss": float("nan")}, {"policy_loss": float("inf")}, {"q_magnitude": 601.0}]
)
def test_guard_stops_a_diverged_run(metrics: dict[str, float]) -> None:
    with pytest.raises(DivergedError, match="stage qdq at step 9") as caught:
        guard()(9, None, metrics)
    assert caught.value.exit_code == 4


def test_csv_drops_rows_after_the_point_of_resuming(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "metrics.csv")
    for step in (10, 20, 30):
        log(step, None, {"loss": step / 7})
    again = CsvLog(tmp_path / "metrics.csv", resume_step=20)
    again(30, None, {"loss": 1.0})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "step,loss"
    assert [line.split(",")[0] for line in lines[1:]] == ["10", "20", "30"]
    assert lines[-1] == "30,1"


def scalars(directory: Path) -> list[tuple[int, float]]:
    """What TensorBoard shows for `loss`."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = module.EventAccumulator(str(directory)).Reload()
    return [(event.step, round(event.value, 3)) for event in shown.Scalars("loss")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own dependencies
def test_tensorboard_shows_no_step_twice_after_resuming(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    def write(values: dict[int, float], resume_step: int = 0) -> None:
        log = TensorBoardLog(tmp_path, resume_step)
        for step, value in values.items():
            log(step, None, {"loss": value})
        log.close()

    write({10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0})  # stopped after its last checkpoint at step 20
    write({30: 3.5, 40: 4.5, 50: 5.5}, resume_step=20)
    assert scalars(tmp_path) == [(10, 1.0), (20, 2.0), (30, 3.5), (40, 4.5), (50, 5.5)]
    write({10: 7.0})  # no checkpoint could be read: everything begins anew
    assert scalars(tmp_path) == [(10, 7.0)]


def test_json_lines_drop_entries_after_the_point_of_resuming(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "evaluations.jsonl")
    log.append({"step": 10, "score": 1.5})
    log.append({"step": 20, "score": 2.5})
    assert JsonLines(tmp_path / "evaluations.jsonl", resume_step=10).entries == [{"step": 10, "score": 1.5}]


def store(folder: Path, identity: str = "one", every: int = 10) -> tuple[Checkpoints, list[str]]:
    said: list[str] = []
    return Checkpoints(folder, identity, every, said.append), said


@pytest.mark.parametrize("damage", ["truncated", "flipped", "flipped metadata"])
def test_checkpoints_keep_two_and_skip_a_damaged_one(damage: str, tmp_path: Path) -> None:
    checkpoints, said = store(tmp_path)
    for step in (10, 15, 20, 30):
        checkpoints(step, {"x": jnp.full(3, float(step))}, {})
    assert [path.name for path in checkpoints.files()] == ["step_000000020.safetensors", "step_000000030.safetensors"]
    content = bytearray(checkpoints.files()[-1].read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-2] ^= 1
    else:  # the step itself: 30 becomes 38
        position = content.index(b'"step":"30"') + 9
        content[position] ^= 8
    checkpoints.files()[-1].write_bytes(content)
    step, state, _ = checkpoints.restore({"x": jnp.zeros(3)})
    assert step == 20
    np.testing.assert_array_equal(state["x"], np.full(3, 20.0))
    assert len(said) == 1
    assert "step_000000030.safetensors" in said[0]
    assert "the checkpoint before it is tried" in said[0]


def test_state_and_notes_come_from_the_same_checkpoint(tmp_path: Path) -> None:
    checkpoints, _ = store(tmp_path)
    for step in (10, 20):
        checkpoints.save(step, {"x": jnp.full(2, float(step))}, {"warnings": [f"at {step}"]})
    assert checkpoints.restore({"x": jnp.zeros(2)}).notes == {"warnings": ["at 20"]}
    assert checkpoints.restore({"x": jnp.zeros(2)}, step=10).notes == {"warnings": ["at 10"]}


def test_checkpoints_of_another_run_are_not_used(tmp_path: Path) -> None:
    store(tmp_path)[0].save(1, {"x": jnp.ones(2)})
    other, said = store(tmp_path, "other")
    assert other.restore({"x": jnp.zeros(2)}).step == 0
    assert "belongs to another dataset, configuration or seed; there is none before it" in said[0]
