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
    log.append({"step": 10})
    log.append({"step": 20})
    assert JsonLines(tmp_path / "evaluations.jsonl", resume_step=10).entries == [{"step": 10}]


def test_checkpoints_keep_two_and_skip_a_damaged_one(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, "hash", every=10)
    for step in (10, 15, 20, 30):
        store(step, {"x": jnp.full(3, float(step))}, {})
    assert [path.name for path in store.files()] == ["step_000000020.safetensors", "step_000000030.safetensors"]
    content = store.files()[-1].read_bytes()
    store.files()[-1].write_bytes(content[: len(content) // 2])
    step, state = store.restore({"x": jnp.zeros(3)})
    assert step == 20
    np.testing.assert_array_equal(state["x"], np.full(3, 20.0))


def test_checkpoints_of_another_configuration_are_not_used(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "one", every=1)(1, {"x": jnp.ones(2)}, {})
    assert Checkpoints(tmp_path, "other", every=1).restore({"x": jnp.zeros(2)})[0] == 0
