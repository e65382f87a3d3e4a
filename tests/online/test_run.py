"""A tiny real Hopper run from end to end: records, snapshots, checkpoints, interruption and resume."""

import csv
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from qdq.data.batches import ReplayBuffer
from qdq.errors import InterruptedRun, UsageError
from qdq.online import records, run, sac
from qdq.online.records import read_evaluations
from qdq.online.run import RunConfig, train_online
from qdq.online.snapshots import load_snapshot
from qdq.storage import load_arrays, read_json

SMALL: Any = {
    "snapshot_every": 200,
    "checkpoint_every": 200,
    "warmup": 200,
    "capacity": 2000,
    "evaluation_episodes": 1,
    "algorithm_settings": {"policy_hidden": [4], "critic_hidden": [4], "batch_size": 16},
}


CONFIG = sac.Config(policy_hidden=(4,), critic_hidden=(4,))


@pytest.fixture(autouse=True, scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile once for all runs of this file, which is most of what these tests do, and write metrics more often."""
    cache = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    previous = {name: getattr(jax.config, name) for name in cache}
    for name, value in cache.items():
        jax.config.update(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "METRICS_EVERY", 200)
        yield
    for name, value in previous.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def finished(fast: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SAC run of 600 steps, not to be changed."""
    return train_online("Hopper-v4", "sac", 600, 1, tmp_path_factory.mktemp("finished") / "run", **SMALL)


def steps_of(folder: Path) -> list[int]:
    return [row["environment_steps"] for row in read_evaluations(folder)]


def check_records(folder: Path, algorithm: str) -> None:
    """600 steps of one seed: every record is there once, and the newest two checkpoints."""
    evaluations = read_evaluations(folder)
    assert steps_of(folder) == [0, 200, 400, 600]
    assert all(np.isfinite(row["score"]) for row in evaluations)
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["environment_steps"]) for row in rows] == [200, 400, 600]
    assert float(rows[-1]["critic_loss"]) > 0
    assert sorted(path.stem for path in (folder / "checkpoints").iterdir()) == ["00000400", "00000600"]
    assert read_json(folder / "config.json")["run"]["seed"] == 1
    arrays, metadata = load_arrays(folder / "snapshots" / "00000600.safetensors")
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}
    described = json.loads(metadata["snapshot"])
    assert (described["environment_id"], described["algorithm"], described["seed"]) == ("Hopper-v4", algorithm, 1)
    assert described["environment_steps"] == 600
    assert described["score"] == evaluations[-1]["score"]


def test_a_run_writes_records_snapshots_and_two_checkpoints(finished: Path):
    check_records(finished, "sac")


def test_snapshot_zero_is_the_untrained_policy_of_the_documented_key(finished: Path):
    state = sac.init(CONFIG, 11, 3, jax.random.fold_in(jax.random.key(1), 0))
    weight = np.asarray(state.policy.network.layers[0].weight)
    np.testing.assert_allclose(load_snapshot(finished, 0)[0][0], weight, atol=1e-3)


def test_the_replay_buffer_is_part_of_a_checkpoint(finished: Path):
    config = RunConfig("Hopper-v4", "sac", 600, 1, **SMALL)
    state = sac.init(CONFIG, 11, 3, jax.random.key(0))
    restored = run._restore(finished, config, state, ReplayBuffer.empty(config.capacity, 11, 3))
    assert restored is not None
    environment_steps, _, buffer = restored
    assert (environment_steps, int(buffer.size)) == (600, 800)
    filled = np.abs(np.asarray(buffer.transitions.observations)).sum(axis=1) > 0
    assert filled[:800].all()
    assert not filled[800:].any()


def test_td3_writes_the_same_records(tmp_path: Path):
    check_records(train_online("Hopper-v4", "td3", 600, 1, tmp_path / "run", **SMALL), "td3")


def test_an_interrupted_run_goes_on(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    original = records.RunRecords.metrics

    def interrupt(self: records.RunRecords, environment_steps: int, *rest: Any) -> None:
        original(self, environment_steps, *rest)
        if environment_steps == 400:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    folder = tmp_path / "run"
    monkeypatch.setattr(records.RunRecords, "metrics", interrupt)
    with pytest.raises(InterruptedRun, match="--resume"):
        train_online("Hopper-v4", "sac", 600, 1, folder, **SMALL)
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is handler
    assert steps_of(folder) == [0, 200, 400]
    before = read_evaluations(folder)
    assert before == read_evaluations(finished)[:3]  # the same seed gives the same run
    # A damaged newest checkpoint falls back to the one before it, and what came after that is done again.
    (folder / "checkpoints" / "00000400.safetensors").write_bytes(b"damaged")
    train_online("Hopper-v4", "sac", 600, 1, folder, resume=True, **SMALL)
    check_records(folder, "sac")
    assert read_evaluations(folder)[:2] == before[:2]


def test_a_complete_run_is_left_alone(finished: Path):
    before = read_evaluations(finished)
    train_online("Hopper-v4", "sac", 600, 1, finished, resume=True, **SMALL)
    assert read_evaluations(finished) == before


def test_an_existing_folder_needs_resume(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "anything").touch()
    with pytest.raises(UsageError, match="--resume"):
        train_online("Hopper-v4", "sac", 200, 1, tmp_path / "run", **SMALL)


def test_resuming_with_other_settings_is_refused(finished: Path):
    with pytest.raises(UsageError, match="seed"):
        train_online("Hopper-v4", "sac", 800, 2, finished, resume=True, **SMALL)
    other = {**SMALL, "algorithm_settings": {**SMALL["algorithm_settings"], "discount": 0.9}}
    with pytest.raises(UsageError, match="discount"):
        train_online("Hopper-v4", "sac", 800, 1, finished, resume=True, **other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 250}, "multiple"),
        ({"algorithm": "scd"}, "sac"),
        ({"snapshot_every": 0}, "positive"),
        ({"algorithm_settings": {"batch": 1}}, "batch_size"),
    ],
)
def test_bad_settings_are_usage_errors(settings: dict, message: str):
    with pytest.raises(UsageError, match=message):
        RunConfig("Hopper-v4", **settings)


def test_an_environment_with_other_spaces_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="flat Box"):
        train_online("CartPole-v1", "sac", 200, 1, tmp_path / "run", **SMALL)
