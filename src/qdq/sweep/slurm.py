"""The engine of a Slurm cluster through submitit, whose local executor stands in for one on a single machine."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdq.errors import UsageError
from qdq.memory import parse_memory
from qdq.sweep import process
from qdq.sweep.engines import Ending, Task
from qdq.sweep.local import available_cores
from qdq.sweep.study import EngineSettings

MINUTES = 24 * 60  # that a job asks for unless the study says otherwise
PATIENCE = 20.0  # seconds in which a shared file system has to show the result of a job that is over


@dataclass(eq=False)
class Submitted:
    """A job of submitit, and since when it is over without a result."""

    job: Any
    over: float | None = field(default=None)


class SlurmEngine:
    """Hands everything that is ready to Slurm; submitit's local executor has no queue, so it gets one job per core."""

    def __init__(self, settings: EngineSettings, out: Path):
        try:
            import submitit
        except ImportError as error:
            raise UsageError("Engine slurm needs submitit: pip install 'qdq[submitit]'.") from error
        given = dict(settings.slurm)
        cluster = given.pop("executor", "slurm")
        self.slots = settings.jobs
        self.patience = PATIENCE
        if cluster == "local":
            self.slots = settings.jobs or max(1, len(available_cores()) // settings.cores)
            self.patience = 0.0
        memory = parse_memory(settings.memory) / 2**30 if settings.memory else None
        minutes = given.pop("time", MINUTES)
        try:
            self.executor = submitit.AutoExecutor(out.absolute() / "logs" / "submitit" / "%j", cluster)
            self.executor.update_parameters(
                timeout_min=minutes,
                cpus_per_task=settings.cores,
                mem_gb=memory,
                **{f"slurm_{name}": value for name, value in given.items()},
            )
        except RuntimeError as error:
            raise UsageError(
                'This machine has no Slurm (no "srun"); run the sweep where jobs are submitted, or set executor = "local" '
                "in [engine.slurm]."
            ) from error
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise UsageError(f"submitit refuses [engine.slurm]: {str(error).splitlines()[0]}") from error

    def submit(self, task: Task) -> Submitted:
        """Queue a task."""
        self.executor.update_parameters(name=task.name)
        return Submitted(self.executor.submit(process.run, task))

    def poll(self, handle: Submitted) -> Ending | None:
        """The exit code of the process, or how its node was lost."""
        job = handle.job
        if not job.done():
            return None
        if not job.paths.result_pickle.exists():
            handle.over = handle.over or time.monotonic()
            if time.monotonic() - handle.over < self.patience:
                return None
            return Ending(None, f"ended without a result (state {job.state})")
        problem = job.exception()
        if problem is None:
            return process.describe(job.result())
        if "UncompletedJobError" in str(problem):  # its time was over, or it had to make room
            return Ending(None, "was stopped by the cluster")
        return Ending(1, f"could not be started by submitit; see {job.paths.stderr}")

    def cancel(self, handle: Submitted) -> None:
        """Ask it to save and stop, or take it out of the queue."""
        if not handle.job.done():
            handle.job.cancel(check=False)

    def close(self) -> None:
        """Nothing: the jobs belong to the cluster."""
