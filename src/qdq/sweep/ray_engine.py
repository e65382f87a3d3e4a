"""The engine of a Ray cluster: one remote task per job, which runs the same process as everywhere."""

import socket
from typing import Any

from qdq.errors import UsageError
from qdq.memory import describe_memory, parse_memory
from qdq.sweep import process
from qdq.sweep.engines import Ending, Task
from qdq.sweep.study import EngineSettings


def _knock(address: str) -> None:
    """Fail at once where nobody listens; Ray itself tries for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


class RayEngine:
    """Hands everything that is ready to Ray, which starts what its nodes have room for, spread over them."""

    def __init__(self, settings: EngineSettings):
        try:
            import ray
        except ImportError as error:
            raise UsageError("Engine ray needs Ray: pip install 'qdq[ray]'.") from error
        import logging

        self.ray: Any = ray
        self.slots = settings.jobs
        try:
            _knock(settings.address)
            ray.init(address=settings.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
            raise UsageError(
                f"There is no Ray cluster at address {settings.address!r} ({reason}); start one with `ray start --head`, "
                "or give its --address."
            ) from error
        memory = parse_memory(settings.memory) if settings.memory else 0
        self._check_room(settings.cores, memory)
        # Lost workers are submitted again by the sweep, which knows what is finished; so Ray does not do it as well.
        self.options: dict[str, Any] = {"num_cpus": settings.cores, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self.options |= {"memory": memory} if memory else {}
        self.function = ray.remote(process.run)

    def _check_room(self, cores: int, memory: int) -> None:
        """Refuse what no node can ever start; Ray would wait for such a node without a word."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= cores and node.get("memory", 0) >= memory for node in nodes):
            return
        self.ray.shutdown()
        wanted = f"{cores} cores" + (f" and {describe_memory(memory)}" if memory else "")
        raise UsageError(f"No node of the Ray cluster has {wanted} for one job; change [engine] cores or memory.")

    def submit(self, task: Task) -> Any:
        """Queue a task in the cluster."""
        return self.function.options(name=task.name, **self.options).remote(task)

    def poll(self, handle: Any) -> Ending | None:
        """The exit code of the process, or how its worker was lost."""
        from ray import exceptions

        ready, _ = self.ray.wait([handle], timeout=0)
        if not ready:
            return None
        try:
            return process.describe(self.ray.get(handle))
        except exceptions.RayTaskError as error:
            return Ending(1, f"could not be started by Ray: {error.cause}")
        except exceptions.TaskCancelledError:
            return Ending(None, "was cancelled")
        except exceptions.RayError as error:
            return Ending(None, f"lost its worker ({type(error).__name__})")

    def cancel(self, handle: Any) -> None:
        """Ask it to save and stop, or take it out of the queue."""
        self.ray.cancel(handle, force=False)

    def close(self) -> None:
        """Leave the cluster; what still runs there for us is ended."""
        self.ray.shutdown()
