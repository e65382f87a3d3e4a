"""What an engine is: something that runs a command line somewhere and says how it ended. Nothing else differs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qdq.sweep.study import EngineSettings


@dataclass(frozen=True)
class Task:
    """A job as an engine sees it; it may travel to another machine, which sees the same files."""

    name: str
    arguments: tuple[str, ...]  # of `qdq`
    folder: str  # where it runs
    log: str
    lock: str  # held while it runs, so that a second attempt waits for the end of the first
    environment: dict[str, str]


@dataclass(frozen=True)
class Ending:
    """How a task ended; without an exit code its worker was lost, which is nobody's mistake."""

    exit_code: int | None
    sentence: str = ""


class Engine(Protocol):
    """A thin adapter over something that runs tasks."""

    slots: int | None  # tasks that may be handed over at the same time; None leaves that to the engine's own queue

    def submit(self, task: Task) -> Any: ...
    def poll(self, handle: Any) -> Ending | None: ...
    def cancel(self, handle: Any) -> None: ...
    def close(self) -> None: ...


def open_engine(settings: EngineSettings, out: Path) -> Engine:
    """The engine that a study names."""
    if settings.name == "ray":
        from qdq.sweep.ray_engine import RayEngine

        return RayEngine(settings)
    if settings.name == "slurm":
        from qdq.sweep.slurm import SlurmEngine

        return SlurmEngine(settings, out)
    from qdq.sweep.local import LocalEngine

    return LocalEngine(settings)
