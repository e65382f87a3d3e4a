"""What is known of every job: re-derived from the run folders at the start, kept in sweep.json, so that a sweep may die."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qdq import storage
from qdq.sweep.plan import Job

FORMAT = 1
FILE = "sweep.json"
QUEUED, RUNNING, DONE, FAILED, BLOCKED = "queued", "running", "done", "failed", "blocked"


@dataclass
class Record:
    """The state of one job; a blocked one needs a job that failed."""

    log: str
    state: str = QUEUED
    attempts: int = 0
    losses: int = 0
    exit_code: int | None = None
    sentence: str = ""
    seconds: float | None = None

    @property
    def open(self) -> bool:
        """True as long as there is something to do."""
        return self.state in (QUEUED, RUNNING)


Records = dict[str, Record]


def restore(out: Path, jobs: Sequence[Job], retry: bool) -> Records:
    """The records of a study's jobs: finished ones by their folders, failed ones by the last sweep, the others anew."""
    saved = storage.read_json(out / FILE).get("jobs", {}) if (out / FILE).exists() else {}
    records = {job.name: _restore(job, saved.get(job.name), out, retry) for job in jobs}
    wanted = {job.needs for job in jobs if records[job.name].open}
    for job in jobs:
        if job.folder is None and records[job.name].open and job.name not in wanted:
            records[job.name].state = DONE  # every run that it serves is finished, or failed
    block(jobs, records)
    return records


def _restore(job: Job, saved: dict[str, Any] | None, out: Path, retry: bool) -> Record:
    record = Record(str(out / "logs" / f"{job.name}.log"))
    if saved is not None:
        known = {field.name for field in fields(Record)} - {"log"}
        record = Record(record.log, **{key: value for key, value in saved.items() if key in known})
    if job.finished:
        record.state, record.sentence, record.exit_code = DONE, "", 0
    elif record.state != FAILED or retry:
        record.state, record.sentence, record.exit_code, record.losses = QUEUED, "", None, 0
    return record


def block(jobs: Sequence[Job], records: Records) -> list[Job]:
    """Mark the jobs that wait in vain, and return them."""
    found = []
    for job in jobs:
        if job.needs and records[job.name].state == QUEUED and records[job.needs].state == FAILED:
            record = records[job.name]
            record.state = BLOCKED
            record.sentence = f"needs {job.needs}, which failed: {records[job.needs].sentence}"
            found.append(job)
    return found


def save(out: Path, study: str, records: Records) -> None:
    """Write sweep.json."""
    content = {name: asdict(record) for name, record in records.items()}
    storage.write_json(out / FILE, {"format": FORMAT, "study": study, "jobs": content})


def last_sentence(log: Path, start: int = 0) -> str:
    """The last error that a log tells of, after the given byte."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, file.seek(0, 2) - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("qdq: ") for line in reversed(lines) if line.startswith("qdq: ")), "")
