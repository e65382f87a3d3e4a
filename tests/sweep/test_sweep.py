"""Whole sweeps on this machine: what fails, what is tried again, and what survives Ctrl-C and the sweep's own death."""

import signal
from pathlib import Path

import numpy as np
import pytest

from qdq.cli.sweep import worst
from qdq.data.npz import write_npz
from tests.probes import probe_dataset
from tests.sweep.common import Place, finish, wait_for

LONG = (
    "training.chunk=200", "training.checkpoint_every=200", "evaluation.every=200", "training.batch_size=16",
    "algorithm.policy_hidden=16,16",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_failure_stops_only_what_needs_it_and_is_tried_again_on_request(place: Place) -> None:
    """Returns that never differ: no Q distribution can be learned from them, but imitation is possible."""
    data = probe_dataset(0.3, episodes=20)
    names = ("observations", "next_observations", "actions", "rewards", "terminals")
    values = (data.current_observations, data.next_observations, data.actions, 0.0 * data.rewards, data.terminals)
    np.savez(place.folder / "flat.npz", **dict(zip(names, values, strict=True)))
    study = place.study("flat.toml", 'out = "flat"\ndatasets = ["flat.npz"]\nalgorithms = ["qdq", "bc"]\nsteps = 200')
    shown, errors = place.run("sweep", study, "--jobs", "1", expect=3)
    assert "flat qdq seed 0: needs flat-quantile-" in shown
    assert "same truncated return" in shown
    assert errors == (
        "qdq: 1 of 3 jobs failed and 1 of 2 runs are not finished; correct the cause and add --retry to run them again.\n"
    )
    jobs = place.read("flat/sweep.json")["jobs"]
    assert [job["state"] for job in jobs.values()] == ["failed", "blocked", "done"]
    assert [job["attempts"] for job in jobs.values()] == [1, 0, 1]
    results = {row["method"]: row for row in place.read("flat/results.json")["results"]}
    assert results["bc"]["missing"] == []
    assert results["qdq"]["missing"] == [0]
    assert (place.folder / "flat" / "report" / "index.html").exists()

    shown, _ = place.run("sweep", study, "--jobs", "1", expect=3)
    assert "Nothing is left to run." in shown
    assert place.read("flat/sweep.json")["jobs"] == jobs
    planned, _ = place.run("sweep", study, "--dry-run", "--retry")
    assert "2 runs, 1 of them finished; 1 Q distributions serve 1 of them" in planned
    assert place.read("flat/sweep.json")["jobs"] == jobs
    place.run("sweep", study, "--jobs", "1", "--retry", expect=3)
    assert [job["attempts"] for job in place.read("flat/sweep.json")["jobs"].values()] == [2, 0, 1]


def test_a_sweep_survives_interruption_and_its_own_death(place: Place) -> None:
    write_npz(probe_dataset(0.3), place.folder / "probe.npz")
    text = 'out = "long"\ndatasets = ["probe.npz"]\nalgorithms = ["bc"]\nsteps = 40_000'
    study = place.study("long.toml", text, LONG)

    def steps() -> int:
        found = list((place.folder / "long" / "runs").glob("*/seed_0/checkpoints/step_*"))
        return max((int(path.stem.removeprefix("step_")) for path in found), default=0)

    sweep = place.start("sweep", study)
    wait_for(lambda: steps() >= 400, sweep)
    _, errors = place.run("sweep", study, expect=2)
    assert errors == "qdq: long is in use by another process; wait for it to end, or stop it.\n"
    sweep.send_signal(signal.SIGINT)
    _, errors = finish(sweep, 130)
    assert (
        errors == "qdq: Interrupted with 0 of 1 jobs done; what was running is saved, and the same command goes on.\n"
    )
    (job,) = place.read("long/sweep.json")["jobs"].values()
    assert (job["state"], job["attempts"]) == ("queued", 1)
    log = place.folder / job["log"]
    assert "go on with --resume" in log.read_text()

    saved = steps()
    sweep = place.start("sweep", study)
    wait_for(lambda: steps() > saved, sweep)
    sweep.kill()
    sweep.wait()
    wait_for(
        lambda: log.read_text().count("go on with --resume") == 2
    )  # the job was not left alone: it saved and ended
    assert steps() < 40_000

    shown, _ = place.run("sweep", study)
    assert "probe bc seed 0: done" in shown
    assert place.read("long/sweep.json")["jobs"].popitem()[1]["attempts"] == 3
    (metrics,) = (place.folder / "long" / "runs").glob("*/seed_0/metrics.csv")
    rows = [int(line.partition(",")[0]) for line in metrics.read_text().splitlines()[1:]]
    assert rows == list(range(200, 40_001, 200))


def test_the_exit_code_says_the_worst() -> None:
    assert worst([2, 4, 3]) == 4
    assert worst([2, 3, -9]) == 3
    assert worst([1, -9, None]) == 1
