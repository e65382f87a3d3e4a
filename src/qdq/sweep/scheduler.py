"""The loop of a sweep: hand over what is ready, see what has ended, write it down, show it."""

import shlex
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdq.errors import InterruptedRun
from qdq.sweep import process
from qdq.sweep.engines import Ending, Engine, Task
from qdq.sweep.plan import Job
from qdq.sweep.progress import Progress, duration
from qdq.sweep.records import DONE, FAILED, QUEUED, RUNNING, Records, block, last_sentence, save
from qdq.sweep.study import Study
from qdq.sweep.table import Display

STOPS = (signal.SIGINT, signal.SIGTERM)
LOSSES_ALLOWED = 5  # of one job's workers, before it counts as failed
PAUSE = 0.2  # seconds between looks


def _main() -> bool:
    return threading.current_thread() is threading.main_thread()  # only there a process may listen for signals


@dataclass
class Active:
    """A job in the hands of the engine."""

    job: Job
    handle: Any
    began: float
    log_start: int  # bytes that earlier attempts wrote


class Scheduler:
    """Runs the jobs of a plan; whatever state it is stopped in, the next one goes on from there."""

    def __init__(self, study: Study, jobs: list[Job], records: Records, engine: Engine, display: Display):
        self.study, self.jobs, self.records = study, jobs, records
        self.engine, self.display = engine, display
        self.by_name = {job.name: job for job in jobs}
        self.active: dict[str, Active] = {}
        self.progress = Progress(jobs, records, engine.slots)
        self.environment = process.environment(study.engine.cores)
        self.folder = str(Path.cwd())

    def run(self) -> None:
        """Work until nothing is left to do; Ctrl-C lets every running job save first."""
        (self.study.out / "logs").mkdir(parents=True, exist_ok=True)
        self._save()
        # Also where a shell in the background lets Ctrl-C be ignored, and where a cluster asks with SIGTERM.
        before = {number: signal.signal(number, signal.default_int_handler) for number in STOPS} if _main() else {}
        try:
            while self._step():
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            self._stop()
            done = sum(record.state == DONE for record in self.records.values())
            raise InterruptedRun(
                f"Interrupted with {done} of {len(self.jobs)} jobs done; what was running is saved, and the same command goes on."
            ) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.display.update(self.progress.rows(), self.progress.summary(), final=True)
            self.display.end()
            self.engine.close()

    def _step(self) -> bool:
        for active in list(self.active.values()):
            ending = self.engine.poll(active.handle)
            if ending is not None:
                self._end(active, ending)
            elif self.records[active.job.name].state == QUEUED and _size(active.job, self.records) > active.log_start:
                self._begin(active)
        for job in self._ready():
            self._submit(job)
        self.display.update(self.progress.rows(), self.progress.summary())
        return bool(self.active)

    def _ready(self) -> list[Job]:
        free = len(self.jobs) if self.engine.slots is None else self.engine.slots - len(self.active)
        waiting = (job for job in self.jobs if self.records[job.name].state == QUEUED and job.name not in self.active)
        ready = [job for job in waiting if not job.needs or self.records[job.needs].state == DONE]
        return ready[: max(free, 0)]

    def _submit(self, job: Job) -> None:
        record = self.records[job.name]
        record.attempts += 1
        log = Path(record.log).absolute()
        task = Task(job.name, job.arguments, self.folder, str(log), str(log.with_suffix(".lock")), self.environment)
        start = _size(job, self.records)
        self.active[job.name] = Active(job, self.engine.submit(task), time.monotonic(), start)
        self._save()

    def _begin(self, active: Active) -> None:
        active.began = time.monotonic()
        self.records[active.job.name].state = RUNNING
        self.progress.begin(active.job)
        self.display.line(f"{self._count()} {active.job.label}: started")

    def _end(self, active: Active, ending: Ending) -> None:
        job, record = active.job, self.records[active.job.name]
        if record.state == QUEUED:
            self.progress.begin(job)
        del self.active[job.name]
        record.exit_code = ending.exit_code
        if ending.exit_code is None:
            self._lost(job, ending.sentence)
        elif ending.exit_code == 0:
            record.state, record.sentence, record.seconds = DONE, "", time.monotonic() - active.began
            score = self.progress.score(job)
            self.display.line(f"{self._count()} {job.label}: done in {duration(record.seconds)}{score}")
        else:
            said = ending.sentence or last_sentence(Path(record.log), active.log_start)
            record.state = FAILED
            record.sentence = said or f"ended with exit code {ending.exit_code}; see {record.log}"
            self.display.line(f"{self._count()} {job.label}: failed: {record.sentence}")
        for blocked in block(self.jobs, self.records):
            self.display.line(f"{self._count()} {blocked.label}: {self.records[blocked.name].sentence}")
        self._save()

    def _lost(self, job: Job, sentence: str) -> None:
        record = self.records[job.name]
        record.losses += 1
        if record.losses <= LOSSES_ALLOWED:
            record.state = QUEUED
            self.display.line(f"{job.label}: {sentence}; it is submitted again")
            return
        record.state, record.exit_code = FAILED, 1
        record.sentence = f"lost its worker {record.losses} times, the last time because it {sentence}"
        self.display.line(f"{self._count()} {job.label}: failed: {record.sentence}")

    def _count(self) -> str:
        over = sum(not record.open for record in self.records.values())
        return f"[{over}/{len(self.jobs)}]"

    def _stop(self) -> None:
        """Have every running job save and stop, and wait for that; a second Ctrl-C does not wait."""
        try:
            if self.active:
                self.display.line(f"stopping: {len(self.active)} jobs save what they have")
            for active in self.active.values():
                self.engine.cancel(active.handle)
            while self.active:
                for name, active in list(self.active.items()):
                    ending = self.engine.poll(active.handle)
                    if ending is not None:
                        finished = ending.exit_code == 0
                        self.records[name].state = DONE if finished else QUEUED
                        del self.active[name]
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            self.display.line("stopping at once")
        self._save()

    def _save(self) -> None:
        save(self.study.out, self.study.name, self.records)


def _size(job: Job, records: Records) -> int:
    log = Path(records[job.name].log)
    return log.stat().st_size if log.exists() else 0


def command(job: Job) -> str:
    """A job as a person would type it."""
    return shlex.join(["qdq", *job.arguments])
