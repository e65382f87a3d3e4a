"""The loop of a sweep, with real processes that run cheap commands."""

from pathlib import Path
from typing import Any

import pytest

from qdq import storage
from qdq.errors import UsageError
from qdq.sweep.engines import Ending, Task
from qdq.sweep.local import LocalEngine
from qdq.sweep.plan import Job
from qdq.sweep.records import Records, restore
from qdq.sweep.scheduler import LOSSES_ALLOWED, Scheduler
from qdq.sweep.study import EngineSettings, Study
from qdq.sweep.table import Lines

GOOD, BAD = ("presets", "show", "fast"), ("presets", "show", "fats")


def schedule(out: Path, jobs: list[Job], engine: Any) -> Records:
    study = Study("test", out, (), (), (), EngineSettings())
    records = restore(out, jobs, retry=True)
    Scheduler(study, jobs, records, engine, Lines()).run()
    return records


def test_a_failure_blocks_only_what_needs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        Job("wrong", BAD, "data", "quantile"),
        Job("right", GOOD, "other", "quantile"),
        Job("in-vain", GOOD, "data", "qdq", "wrong", tmp_path / "runs" / "a", 0, 1000, 1),
        Job("served", GOOD, "other", "qdq", "right", tmp_path / "runs" / "b", 0, 1000, 1),
    ]
    records = schedule(tmp_path, jobs, LocalEngine(EngineSettings(jobs=2)))
    assert [records[job.name].state for job in jobs] == ["failed", "done", "blocked", "done"]
    assert records["wrong"].exit_code == 2
    assert "did you mean 'fast'" in records["wrong"].sentence
    assert records["in-vain"].sentence == f"needs wrong, which failed: {records['wrong'].sentence}"
    assert records["in-vain"].attempts == 0
    assert (tmp_path / "logs" / "served.log").read_text().startswith("$ qdq presets show fast\n")
    assert storage.read_json(tmp_path / "sweep.json")["jobs"]["wrong"]["state"] == "failed"
    assert "[4/4] other qdq seed 0: done in" in capsys.readouterr().out


class Leaky:
    """An engine that loses its workers so many times before one comes through."""

    def __init__(self, losses: int):
        self.slots: int | None = None
        self.losses = losses

    def submit(self, task: Task) -> str:
        return task.name

    def poll(self, handle: str) -> Ending | None:
        self.losses -= 1
        return Ending(None, "lost its worker") if self.losses >= 0 else Ending(0)

    def cancel(self, handle: str) -> None: ...
    def close(self) -> None: ...


def test_lost_workers_are_no_failures_unless_they_are_always_lost(tmp_path: Path) -> None:
    jobs = [Job("job", GOOD, "data", "bc", None, tmp_path / "runs" / "a", 0, 1000, 1)]
    kept = schedule(tmp_path, jobs, Leaky(LOSSES_ALLOWED))["job"]
    assert (kept.state, kept.losses, kept.attempts) == ("done", LOSSES_ALLOWED, LOSSES_ALLOWED + 1)
    lost = schedule(tmp_path / "again", jobs, Leaky(1000))["job"]
    assert (lost.state, lost.exit_code) == ("failed", 1)
    assert lost.sentence.startswith(f"lost its worker {LOSSES_ALLOWED + 1} times")


def test_a_claim_refuses_the_second_owner(tmp_path: Path) -> None:
    with (
        storage.claim(tmp_path / "lock", "the study"),
        pytest.raises(UsageError, match="the study is in use by another"),
    ):
        storage.claim(tmp_path / "lock", "the study").__enter__()
    with storage.claim(tmp_path / "lock", "the study"):
        pass
