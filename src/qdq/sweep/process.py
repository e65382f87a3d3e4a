"""One task as a process of this machine: started the same way by every engine."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from qdq.sweep.engines import Ending, Task

PASSED_ON = ("QDQ_", "MINARI_", "JAX_", "XLA_", "XDG_CACHE_HOME", "MUJOCO_GL")  # also to other machines
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def environment(cores: int) -> dict[str, str]:
    """The variables that decide what a task does; with one core XLA uses one thread."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    if cores == 1:
        passed["XLA_FLAGS"] = f"{passed.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
    return passed | {name: str(cores) for name in THREADS}


def start(task: Task, cores: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a task in a session of its own, on the given cores, so that only its engine stops it."""
    child = ["-P", "-m", "qdq.sweep.child", str(os.getpid()), ",".join(map(str, cores)), task.lock]
    with open(task.log, "ab") as log:
        return subprocess.Popen(
            [sys.executable, *child, *task.arguments],
            cwd=task.folder,
            env=os.environ | task.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def run(task: Task) -> int:
    """Run a task to its end and return its exit code; a request to stop is handed on, and what it saves is waited for."""
    process = start(task)
    try:
        while True:
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                process.terminate()
    except BaseException:  # such as the end of the time that a cluster grants
        process.terminate()
        process.wait()
        raise


def describe(code: int) -> Ending:
    """The ending that the exit code of a process stands for: being asked to stop is a loss, being killed a failure."""
    if code in (130, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP):
        return Ending(None, "was stopped from outside")
    if code == -signal.SIGKILL:
        return Ending(code, "was killed, probably because memory ran out; run fewer jobs at the same time")
    if code < 0:
        return Ending(code, f"crashed with signal {signal.Signals(-code).name}")
    return Ending(code)
