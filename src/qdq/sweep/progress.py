"""How far a sweep has come: counts, scores so far and the time that is left, from the folders of its runs."""

import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from qdq.sweep.plan import Job
from qdq.sweep.records import DONE, QUEUED, RUNNING, Records

LOOK_EVERY = 2.0  # seconds between looks into the folders of running jobs


@dataclass
class Row:
    """One method on one dataset."""

    dataset: str
    method: str
    counts: dict[str, int] = field(default_factory=lambda: {QUEUED: 0, RUNNING: 0, DONE: 0, "failed": 0})
    share: float = 0.0  # of its steps
    scores: list[float] = field(default_factory=list)


@dataclass
class Watched:
    """A running job: when it began and where it stood."""

    began: float
    first_share: float
    share: float


class Progress:
    """Looks at jobs and their folders; cheap enough to be asked several times a second."""

    def __init__(self, jobs: list[Job], records: Records, slots: int | None):
        self.jobs, self.records, self.slots = jobs, records, slots
        self.watched: dict[str, Watched] = {}
        self.scores: dict[str, float] = {}
        self.read: set[str] = set()  # finished jobs whose score is known for good
        self.looked = 0.0

    def begin(self, job: Job) -> None:
        """A job has been started, maybe in the middle."""
        share = steps_done(job) / job.steps if job.steps else 0.0
        self.watched[job.name] = Watched(time.monotonic(), share, share)

    def score(self, job: Job) -> str:
        """The score of a finished job as the end of a sentence."""
        score = latest_score(job)
        return "" if score is None else f", score {score:.1f}"

    def rows(self) -> list[Row]:
        """The table, in the order of the plan."""
        self._look()
        rows: dict[tuple[str, str], Row] = {}
        for job in self.jobs:
            row = rows.setdefault((job.dataset, job.method), Row(job.dataset, job.method))
            state = self.records[job.name].state
            row.counts[state if state in row.counts else "failed"] += 1
            row.share += self._share(job)
            if job.name in self.scores:
                row.scores.append(self.scores[job.name])
        for row in rows.values():
            row.share /= sum(row.counts.values())
        return list(rows.values())

    def summary(self) -> str:
        """Counts and the time left, in one line."""
        states = [self.records[job.name].state for job in self.jobs]
        counts = {name: states.count(name) for name in (DONE, RUNNING, QUEUED)}
        counts["failed"] = len(states) - sum(counts.values())
        text = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == DONE)
        left = self.seconds_left()
        return text if left is None else f"{text}, about {duration(left)} left"

    def seconds_left(self) -> float | None:
        """From the speed of running jobs and the time that finished ones of the same method took; None if nothing is known."""
        known: dict[str, list[float]] = defaultdict(list)
        rest: list[tuple[Job, float | None]] = []
        for job in self.jobs:
            record, watched = self.records[job.name], self.watched.get(job.name)
            if record.state == DONE and record.seconds:
                known[job.method].append(record.seconds)
            elif record.state == RUNNING and watched and watched.share > watched.first_share:
                elapsed = time.monotonic() - watched.began
                rate = (watched.share - watched.first_share) / elapsed
                known[job.method].append(1.0 / rate)
                rest.append((job, (1.0 - watched.share) / rate))
            elif record.open:
                rest.append((job, None))
        if not rest or not known:
            return None
        typical = {method: sum(values) / len(values) for method, values in known.items()}
        fallback = sum(typical.values()) / len(typical)
        total = sum(typical.get(job.method, fallback) if left is None else left for job, left in rest)
        running = sum(self.records[job.name].state == RUNNING for job in self.jobs)
        return total / max(1, min(len(rest), self.slots or running))

    def _share(self, job: Job) -> float:
        state = self.records[job.name].state
        if state == DONE:
            return 1.0
        return self.watched[job.name].share if state == RUNNING and job.name in self.watched else 0.0

    def _look(self) -> None:
        now = time.monotonic()
        if self.looked and now - self.looked < LOOK_EVERY:
            return
        self.looked = now
        for job in self.jobs:
            state = self.records[job.name].state
            if job.folder is None or state not in (RUNNING, DONE) or (state == DONE and job.name in self.read):
                continue
            if state == RUNNING and job.name in self.watched:
                self.watched[job.name].share = steps_done(job) / job.steps
            score = latest_score(job)
            if score is not None:
                self.scores[job.name] = score
            if state == DONE:
                self.read.add(job.name)


def _tail(path: Path, size: int = 65536) -> list[str]:
    """The last complete lines of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def steps_done(job: Job) -> int:
    """The newest step in a seed's metrics."""
    if job.folder is None:
        return 0
    for line in reversed(_tail(job.folder / f"seed_{job.seed}" / "metrics.csv", 4096)):
        first, comma, _ = line.partition(",")
        if comma and first.isdigit():
            return min(int(first), job.steps)
    return 0


def latest_score(job: Job) -> float | None:
    """The mean of a seed's last evaluations: of a finished one its final score."""
    if job.folder is None:
        return None
    scores = []
    for line in _tail(job.folder / f"seed_{job.seed}" / "evaluations.jsonl"):
        try:
            scores.append(float(json.loads(line)["score"]))
        except (ValueError, KeyError, TypeError):
            continue  # its beginning was cut off
    scores = scores[-job.last_evaluations :]
    return sum(scores) / len(scores) if scores else None


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5940:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
