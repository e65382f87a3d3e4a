"""The engine of this machine: processes, each on its own cores."""

import os
import subprocess
from dataclasses import dataclass

from qdq.sweep import process
from qdq.sweep.engines import Ending, Task
from qdq.sweep.study import EngineSettings


@dataclass(frozen=True, eq=False)
class Running:
    """A process and the place it occupies."""

    process: "subprocess.Popen[bytes]"
    place: int


class LocalEngine:
    """As many processes as there are places; a place is a number of cores that no other place has, while they last."""

    def __init__(self, settings: EngineSettings):
        cores = available_cores()
        count = settings.jobs or max(1, len(cores) // settings.cores)
        shares = [cores[i % len(cores)] for i in range(count * settings.cores)]
        self.slots: int | None = count
        self.places = [shares[i * settings.cores : (i + 1) * settings.cores] for i in range(count)]
        self.free = set(range(count))
        self.running: set[Running] = set()

    def submit(self, task: Task) -> Running:
        """Start a process on the first free place."""
        place = min(self.free)
        running = Running(process.start(task, self.places[place]), place)
        self.free.remove(place)
        self.running.add(running)
        return running

    def poll(self, handle: Running) -> Ending | None:
        """The exit code, once there is one; an end by a signal has a sentence of its own."""
        code = handle.process.poll()
        if code is None:
            return None
        if handle in self.running:
            self.running.remove(handle)
            self.free.add(handle.place)
        return process.describe(code)

    def cancel(self, handle: Running) -> None:
        """Ask it to save and stop."""
        if handle.process.poll() is None:
            handle.process.terminate()

    def close(self) -> None:
        """End whatever still runs."""
        for handle in self.running:
            handle.process.kill()
            handle.process.wait()


def available_cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
