"""Small real runs for everything that reads run folders: made once for all tests and workers of a session."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdq
from qdq import storage
from qdq.data.references import Reference
from qdq.report.methods import Evidence, gather
from qdq.report.runs import find_runs
from qdq.storage import exclusive
from qdq.training.display import Silent
from tests.algorithms.test_contract import overrides
from tests.browser import Browser, find_chromium
from tests.conftest import SHARED
from tests.probes import probe_dataset

HOSTILE = "<script>alert('x')</script> & $x_1$"
MORE = (
    "evaluation.episodes=2",
    "evaluation.last=1",
    "q_dataset.width=20",
    "training.checkpoint_every=100",
    "evaluation.every=100",
)


def pendulum(episodes: int = 12) -> qdq.Dataset:
    """Random actions in the pendulum, under the name of a task of the paper."""
    import gymnasium

    environment = gymnasium.make("Pendulum-v1")
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "next_observations", "actions", "rewards")}
    truncations = []
    for episode in range(episodes):
        observation, _ = environment.reset(seed=episode)
        environment.action_space.seed(episode)
        truncated = False
        while not truncated:
            action = environment.action_space.sample()
            after, reward, _, truncated, _ = environment.step(action)
            for key, value in zip(rows, (observation, after, action, np.float32(reward)), strict=True):
                rows[key].append(value)
            truncations.append(truncated)
            observation = after
    arrays = {key: np.array(value, np.float32) for key, value in rows.items()}
    metadata = qdq.Metadata(
        name="hopper-medium",
        environment_id="Pendulum-v1",
        task="hopper-medium",
        reference=Reference(-1600.0, -150.0, "a guess for tests"),
    )
    return qdq.from_arrays(
        **arrays,
        terminals=np.zeros(len(truncations), bool),
        truncations=np.array(truncations),
        action_low=-2.0,
        action_high=2.0,
        metadata=metadata,
    )


def _make_runs(out: Path) -> None:
    data = pendulum()

    def fit(name: str, dataset: qdq.Dataset, algorithm: str, seeds: list[int], *changes: str) -> None:
        changed = (*overrides(algorithm), *MORE, *changes)
        qdq.train(dataset, algorithm, "fast", seeds, steps=400, out=out, name=name, overrides=changed, display=Silent())

    fit("qdq", data, "qdq", [0, 1, 2])
    fit("bc", data, "bc", [0, 1])
    fit("hostile", probe_dataset(0.3, name=HOSTILE), "bc", [0])
    _split(out / "qdq", out / "qdq-more", 2)
    # Copies of real runs under other settings: training them again would only compile for another minute.
    _copy(out / "qdq", out / "qdq-alpha", '"alpha": 0.99', '"alpha": 0.9')
    stopped = out / "nested" / "stopped"  # its second seed was stopped half-way
    _copy(out / "bc", stopped, '"batch_size": 64', '"batch_size": 32')
    (stopped / "result.json").unlink()
    (stopped / "seed_1" / "outcome.json").unlink()
    lines = (stopped / "seed_1" / "evaluations.jsonl").read_text().splitlines()
    (stopped / "seed_1" / "evaluations.jsonl").write_text("\n".join(lines[:2]) + '\n{"step": 300, "sc')
    rows = (stopped / "seed_1" / "metrics.csv").read_text().splitlines()
    (stopped / "seed_1" / "metrics.csv").write_text("\n".join(rows[:3]) + "\n300")


def _copy(run: Path, copy: Path, old: str, new: str) -> None:
    shutil.copytree(run, copy)
    config = (copy / "config.json").read_text()
    assert old in config
    (copy / "config.json").write_text(config.replace(old, new))


def _split(run: Path, other: Path, seed: int) -> None:
    """Move one seed of a run into a folder of its own, as if it had been trained there."""
    shutil.copytree(run, other)
    for folder in (run, other):
        manifest, result = (storage.read_json(folder / f"{name}.json") for name in ("manifest", "result"))
        numbers = [n for n in manifest["seeds"] if (n == seed) == (folder == other)]
        for number in set(manifest["seeds"]) - set(numbers):
            shutil.rmtree(folder / f"seed_{number}")
        storage.write_json(folder / "manifest.json", manifest | {"seeds": numbers})
        seeds = [entry for entry in result["seeds"] if entry["seed"] in numbers]
        storage.write_json(folder / "result.json", result | {"seeds": seeds})


@pytest.fixture(scope="session")
def runs() -> Path:
    """A folder with runs: QDQ in two folders and with another alpha, BC, one stopped, one with a hostile name."""
    folder = SHARED / "runs"
    with exclusive(SHARED / "runs.lock"):
        if not folder.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("QDQ_CACHE", str(SHARED / "cache"))
                partial = SHARED / "runs.partial"
                shutil.rmtree(partial, ignore_errors=True)
                _make_runs(partial)
                os.replace(partial, folder)
    return folder


@pytest.fixture
def evidence(runs: Path) -> Evidence:
    """Those runs, read anew."""
    return gather(find_runs([runs]))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    opened = Browser(find_chromium(), tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
