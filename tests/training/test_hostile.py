"""Hostile conditions: whatever happens to a run, it ends as if nothing had, or says in one sentence why it cannot."""

import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import qdq
from qdq import storage
from qdq.data.episodes import Dataset
from qdq.data.factory import plan_dataset, roll_out_plan
from qdq.data.minari_format import read_minari, write_minari
from qdq.data.npz import write_npz
from qdq.errors import DataError, InterruptedRun, UsageError
from qdq.evaluation.rollout import Evaluator
from qdq.training import seeds
from qdq.training.display import Silent
from qdq.training.hooks import CsvLog
from qdq.training.stress import differences, stress
from tests.probes import probe_dataset

SMALL = (
    "training.chunk=100",
    "training.checkpoint_every=100",
    "training.batch_size=32",
    "algorithm.policy_hidden=32,32",
    "evaluation.every=200",
    "evaluation.episodes=2",
)
QDQ = (
    "algorithm.critic_hidden=16,16",
    "q_distribution.hidden=32,32",
    "q_distribution.groups=8",
    "quantile.steps=200",
    "behaviour.steps=200",
    "q_dataset.stride=1",
    "algorithm.extraction_share=0.5",
)


class Recorder(Silent):
    """Keeps what a user would read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def fit(data: Dataset, out: Path, name: str, algorithm: str = "bc", **options: Any) -> tuple[qdq.Run, str]:
    """A small run and what it said."""
    display = Recorder()
    overrides = (*SMALL, *(QDQ if algorithm == "qdq" else ()))
    run = qdq.train(
        data, algorithm, "fast", steps=400, out=out, name=name, overrides=overrides, display=display, **options
    )
    return run, "\n".join(display.lines)


@contextmanager
def happening_at(step: int, event: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Something happens when a run has logged `step`."""

    class Log(CsvLog):
        def __call__(self, number: int, state: Any, metrics: dict[str, float]) -> None:
            super().__call__(number, state, metrics)
            if number == step:
                event()

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "CsvLog", Log)
        yield


def fail() -> None:
    raise RuntimeError("power failure")


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel itself refuses to write more than 4 kB into a file from step 300 on."""
    data = probe_dataset(0.3)
    fit(data, tmp_path, "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with happening_at(300, fill, monkeypatch), pytest.raises(DataError, match="step_000000300") as caught:
            fit(data, tmp_path, "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "could not be written" in str(caught.value)
    assert "what was saved before is intact" in str(caught.value)
    kept = [path.name for path in (tmp_path / "full" / "seed_0" / "checkpoints").iterdir()]
    assert sorted(kept) == ["step_000000100.safetensors", "step_000000200.safetensors"]
    fit(data, tmp_path, "full", resume=True)
    assert differences(tmp_path / "whole", tmp_path / "full") == []


WITHOUT_ROOT_POWERS = """
import ctypes, os, sys
drop_from_bounding_set, override_permissions = 24, 1  # so that permissions hold for root, too
ctypes.CDLL(None).prctl(drop_from_bounding_set, override_permissions, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "qdq.cli.main", *sys.argv[1:]])
"""


def test_a_read_only_folder_gets_one_sentence(tmp_path: Path) -> None:
    write_npz(probe_dataset(0.3), tmp_path / "probe.npz")
    (tmp_path / "locked").mkdir(mode=0o555)
    arguments = ["train", "probe.npz", "--algorithm", "bc", "--out", "locked"]
    finished = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOT_POWERS, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 3, finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    assert "could not be written (Permission denied)" in finished.stderr
    assert not list((tmp_path / "locked").iterdir())


@pytest.mark.parametrize("damage", ["flipped", "truncated"])
def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = probe_dataset(0.3)
    fit(data, tmp_path, "whole")
    with happening_at(400, fail, monkeypatch), pytest.raises(RuntimeError, match="power failure"):
        fit(data, tmp_path, "damaged")
    newest = max((tmp_path / "damaged" / "seed_0" / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[-40] ^= 16
    newest.write_bytes(content if damage == "flipped" else content[:-40])
    _, said = fit(data, tmp_path, "damaged", resume=True)
    assert "step_000000300.safetensors" in said
    assert "the checkpoint before it is tried" in said
    assert differences(tmp_path / "whole", tmp_path / "damaged") == []


def test_a_damaged_dataset_is_refused(tmp_path: Path) -> None:
    path = write_minari(probe_dataset(0.3), "qdq/probe-v0")
    assert read_minari(path).transitions == 1600
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        rewards: Any = file["episode_7/rewards"]
        rewards[0] = np.nextafter(rewards[0], 2.0)  # the smallest change there is
    with pytest.raises(DataError, match="does not match the checksum it was written with"):
        read_minari(path)


def test_a_run_does_not_go_on_with_changed_data(tmp_path: Path) -> None:
    data = probe_dataset(0.3)
    fit(data, tmp_path, "run")
    rewards = data.rewards.copy()
    rewards[11] = np.nextafter(rewards[11], 2.0)
    with pytest.raises(UsageError, match="another dataset"):
        fit(dataclasses.replace(data, rewards=rewards), tmp_path, "run", resume=True)


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file seems older than the one before it, and the second process lives in the past of the first."""
    data = probe_dataset(0.3)
    fit(data, tmp_path, "whole")
    now = [2_000_000_000.0]

    def back() -> float:
        now[0] -= 3600.0
        return now[0]

    monkeypatch.setattr(time, "time", back)
    with happening_at(400, fail, monkeypatch), pytest.raises(RuntimeError, match="power failure"):
        fit(data, tmp_path, "past")
    for path in sorted((tmp_path / "past").rglob("*")):
        os.utime(path, (back(), back()))
    run, said = fit(data, tmp_path, "past", resume=True)
    assert "tried" not in said
    assert differences(tmp_path / "whole", tmp_path / "past") == []
    assert run.result["seeds"][0]["seconds"] > 0


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    fit(probe_dataset(0.3), tmp_path, "run", seeds=[1])
    with storage.claim(tmp_path / "run" / "seed_0" / ".lock", "the test"):
        with pytest.raises(UsageError, match="is in use by another process"):
            fit(probe_dataset(0.3), tmp_path, "run", resume=True)
        fit(probe_dataset(0.3), tmp_path, "run", seeds=[2], resume=True)  # another seed is free
    run, _ = fit(probe_dataset(0.3), tmp_path, "run", resume=True)
    assert [seed["seed"] for seed in run.result["seeds"]] == [0, 1, 2]


def test_half_written_files_of_a_killed_process_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with happening_at(300, fail, monkeypatch), pytest.raises(RuntimeError, match="power failure"):
        fit(probe_dataset(0.3), tmp_path, "run")
    for folder in ("", "seed_0", "seed_0/checkpoints"):
        (tmp_path / "run" / folder / ".file.json.abc.partial").write_bytes(b"half")
    fit(probe_dataset(0.3), tmp_path, "run", resume=True)
    assert not list((tmp_path / "run").rglob("*.partial"))


def test_a_run_killed_in_its_very_first_moment_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "run" / ".manifest.json.abc.partial").write_bytes(b"half")
    run, _ = fit(probe_dataset(0.3), tmp_path, "run", resume=True)
    assert run.seeds == [0]


def test_artefacts_of_another_dataset_or_version_are_refused(tmp_path: Path) -> None:
    one, _ = fit(probe_dataset(0.3), tmp_path, "one", "qdq")
    two, _ = fit(probe_dataset(0.4), tmp_path, "two", "qdq")
    stages = Path(os.environ["QDQ_CACHE"]) / "stages" / "quantile"
    first, second = (path for path in sorted(stages.iterdir()) if path.is_dir())
    origin = storage.read_json(second / "manifest.json")["identity"]["dataset_sha256"]
    (data,) = (data for data in (probe_dataset(0.3), probe_dataset(0.4)) if data.sha256 == origin)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(UsageError, match="another artefact than its name says"):
        fit(data, tmp_path, "new", "qdq")

    manifest = one.path / "q_distribution" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["identity"]["format"] += 1
    storage.write_json(manifest, content)
    with pytest.raises(UsageError, match="another version of qdq"):
        qdq.load_run(one.path).uncertainty(np.zeros((1, 2)), np.zeros((1, 1)))
    shutil.copyfile(two.path / "q_distribution" / "manifest.json", manifest)
    with pytest.raises(UsageError, match="another dataset"):
        qdq.load_run(one.path).uncertainty(np.zeros((1, 2)), np.zeros((1, 1)))


def test_a_damaged_artefact_is_learned_again(tmp_path: Path) -> None:
    run, _ = fit(probe_dataset(0.3), tmp_path, "one", "qdq")
    (model,) = Path(os.environ["QDQ_CACHE"]).glob("stages/quantile/*/model.safetensors")
    for path in (model, run.path / "q_distribution" / "model.safetensors"):
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataError, match="does not match its own checksum"):
        qdq.load_run(run.path).uncertainty(np.zeros((1, 2)), np.zeros((1, 1)))
    again, said = fit(probe_dataset(0.3), tmp_path, "one", "qdq", resume=True)
    assert "is trained again" in said
    assert "is fetched again" in said
    assert np.isfinite(again.uncertainty(np.zeros((1, 2)), np.zeros((1, 1)))).all()


def test_a_stop_during_an_evaluation_is_quick_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = roll_out_plan(plan_dataset("hopper-random", 600, 0), workers=1)
    fit(data, tmp_path, "whole")
    play, played = Evaluator.play_unless, []

    def interrupted(self: Evaluator, act: Any, seed: int, stopped: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        played.append(play(self, act, seed, stopped))
        return played[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "play_unless", interrupted)
        with pytest.raises(InterruptedRun, match="Interrupted at step 200"):
            fit(data, tmp_path, "stopped")
    assert played == [None]
    fit(data, tmp_path, "stopped", resume=True)
    assert differences(tmp_path / "whole", tmp_path / "stopped") == []


def test_killed_again_and_again_a_run_ends_the_same(tmp_path: Path) -> None:
    """The short form of `qdq stress`: real processes and SIGKILL, with the faster learner."""
    short = ("q_distribution.learner=quantile", "quantile.steps=400", "training.checkpoint_every=100")
    said: list[str] = []
    outcome = stress(tmp_path / "stress", 2, 1, 400, (*short, "evaluation.every=200"), said.append)
    assert outcome.kills == 2, said
    assert outcome.differences == []


def test_differences_are_named(tmp_path: Path) -> None:
    """What would hide behind a stress test that compares too little."""
    for name, revision, row in (("one", "a", "1,2"), ("two", "b", "1,3")):
        storage.write_json(tmp_path / name / "manifest.json", {"revision": revision, "created": name, "same": 1})
        storage.write_text(tmp_path / name / "metrics.csv", row)
        storage.save_pytree(tmp_path / name / "model.safetensors", {"x": np.array([float(row[-1])])})
    storage.write_text(tmp_path / "two" / f".more{storage.PARTIAL}", "")
    storage.write_text(tmp_path / "two" / "more.json", "{}")
    assert differences(tmp_path / "one", tmp_path / "two") == [
        f".more{storage.PARTIAL} was left half-written",
        "manifest.json differs in revision",
        "metrics.csv differs",
        "model.safetensors differs",
        "more.json is missing in one",
    ]
    assert differences(tmp_path / "one", tmp_path / "one") == []
