"""What a sweep shows of itself: counts, shares of steps, scores so far, and the time that is left."""

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from qdq.sweep.plan import Job
from qdq.sweep.progress import Progress, Watched, duration, latest_score, steps_done
from qdq.sweep.records import Record
from qdq.sweep.table import draw


def job(folder: Path, method: str, seed: int) -> Job:
    return Job(f"{method}-{seed}", (), "data", method, None, folder / method, seed, steps=1000, last_evaluations=2)


def write(job: Job, steps: int, scores: list[float]) -> None:
    assert job.folder is not None
    folder = job.folder / f"seed_{job.seed}"
    folder.mkdir(parents=True)
    rows = [f"{step},0.5\n" for step in range(100, steps + 1, 100)]
    (folder / "metrics.csv").write_text("step,loss\n" + "".join(rows) + "90")  # a line that is being written
    lines = [json.dumps({"step": i, "score": score}) + "\n" for i, score in enumerate(scores)]
    (folder / "evaluations.jsonl").write_text("".join(lines))


def test_a_running_seed_is_read_from_its_folder(tmp_path: Path) -> None:
    running = job(tmp_path, "qdq", 0)
    assert (steps_done(running), latest_score(running)) == (0, None)
    write(running, 300, [1.0, 2.0, 6.0])
    assert steps_done(running) == 300
    assert latest_score(running) == 4.0  # the mean of the last two, as a final score is


def test_rows_summary_and_time_left(tmp_path: Path) -> None:
    jobs = [job(tmp_path, method, seed) for method in ("qdq", "bc") for seed in (0, 1)]
    known = {item.name: Record("log") for item in jobs}
    progress = Progress(jobs, known, 2)
    assert progress.seconds_left() is None  # nothing is known yet
    known["bc-0"].state, known["bc-0"].seconds = "done", 10.0
    known["bc-1"].state = "failed"
    known["qdq-0"].state = "running"
    write(jobs[0], 500, [8.0])
    write(jobs[2], 1000, [3.0, 5.0])
    progress.watched["qdq-0"] = Watched(time.monotonic() - 30.0, 0.2, 0.2)  # resumed at 20 % half a minute ago
    first, second = progress.rows()
    assert first.counts == {"queued": 1, "running": 1, "done": 0, "failed": 0}
    assert second.counts == {"queued": 0, "running": 0, "done": 1, "failed": 1}
    assert (first.scores, second.scores, second.share) == ([8.0], [4.0], 0.5)
    # 30 % took 30 s: 50 s are left of this seed, 100 s of the other, and two run at a time.
    assert progress.seconds_left() == pytest.approx(75.0, rel=0.01)
    assert progress.summary() == "1 done, 1 running, 1 queued, 1 failed, about 75 s left"
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(progress.rows(), progress.summary()))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "score so far" in shown
    assert "8.0 (1)" in shown
    assert "about 75 s left" in shown


@pytest.mark.parametrize(("seconds", "text"), [(9.6, "10 s"), (120, "2 min"), (7200, "2.0 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
