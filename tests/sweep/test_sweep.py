"""Whole sweeps on this machine: what fails, what is tried again, and what survives Ctrl-C and the sweep's own death."""

import signal
from pathlib import Path

import pytest

from qdq import storage
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


def test_a_failure_is_kept_and_tried_again_on_request(place: Place) -> None:
    write_npz(probe_dataset(0.3, episodes=50), place.folder / "probe.npz")
    text = 'out = "out"\ndatasets = ["probe.npz"]\nalgorithms = ["bc"]\nsteps = 200'
    study = place.study("study.toml", text, LONG)
    planned, _ = place.run("sweep", study, "--dry-run")
    assert "1 runs, 0 of them finished; 0 Q distributions serve 0 of them" in planned
    assert not (place.folder / "out").exists()
    name = planned.split(":")[0].removeprefix("# ").removesuffix("-seed-0")
    obstacle = place.folder / "out" / "runs" / name
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("in the way")

    shown, errors = place.run("sweep", study, expect=3)
    assert (
        f"failed: probe bc seed 0: {obstacle.relative_to(place.folder)} is a file where a run folder is needed" in shown
    )
    assert errors == (
        "qdq: 1 of 1 jobs failed and 1 of 1 runs are not finished; correct the cause and add --retry to run them again.\n"
    )
    (row,) = place.read("out/results.json")["results"]
    assert (row["scores"], row["missing"]) == ({}, [0])
    obstacle.unlink()
    shown, _ = place.run("sweep", study, expect=3)
    assert "Nothing is left to run." in shown
    assert not obstacle.exists()

    shown, _ = place.run("sweep", study, "--retry")
    assert "[1/1] probe bc seed 0: done in" in shown
    (job,) = place.read("out/sweep.json")["jobs"].values()
    assert (job["state"], job["attempts"]) == ("done", 2)
    assert (place.folder / "out" / "report" / "index.html").exists()


def test_a_sweep_survives_interruption_and_its_own_death(place: Place) -> None:
    write_npz(probe_dataset(0.3), place.folder / "probe.npz")
    text = 'out = "long"\ndatasets = ["probe.npz"]\nalgorithms = ["bc"]\nsteps = 30_000'
    study = place.study("long.toml", text, LONG)

    def steps() -> int:
        found = list((place.folder / "long" / "runs").glob("*/seed_0/checkpoints/step_*"))
        return max((int(path.stem.removeprefix("step_")) for path in found), default=0)

    with storage.claim(place.folder / "long" / "sweep.lock", "a test"):
        _, errors = place.run("sweep", study, expect=2)
    assert errors == "qdq: long is in use by another process; wait for it to end, or stop it.\n"
    sweep = place.start("sweep", study)
    wait_for(lambda: steps() >= 400, sweep)
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
    finish(sweep, -signal.SIGKILL)
    wait_for(
        lambda: log.read_text().count("go on with --resume") == 2
    )  # the job was not left alone: it saved and ended
    assert steps() < 30_000

    shown, _ = place.run("sweep", study)
    assert "probe bc seed 0: done" in shown
    assert place.read("long/sweep.json")["jobs"].popitem()[1]["attempts"] == 3
    (metrics,) = (place.folder / "long" / "runs").glob("*/seed_0/metrics.csv")
    rows = [int(line.partition(",")[0]) for line in metrics.read_text().splitlines()[1:]]
    assert rows == list(range(200, 30_001, 200))


def test_the_exit_code_says_the_worst() -> None:
    assert worst([2, 4, 3]) == 4
    assert worst([2, 3, -9]) == 3
    assert worst([1, -9, None]) == 1
