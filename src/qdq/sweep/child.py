"""The process of a task: `python -m qdq.sweep.child PARENT CORES LOCK ARGUMENTS...` is `qdq ARGUMENTS...`, tied to its parent.

It stops, as after Ctrl-C, when its parent dies or it is asked to terminate; it stays on its cores; and it waits for an
earlier attempt at the same task to end.
"""

import os
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


def _stop_once(number: int, frame: FrameType | None) -> None:
    """Stop as after Ctrl-C; more requests change nothing, because what is being saved must not be cut short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def _stop_with(parent: int) -> None:
    """Have the kernel ask this process to stop when its parent dies."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _stop_once)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # a parent may have blocked them
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(130)


def main() -> None:
    """Tie this process to its parent and run the command."""
    parent, cores, lock, *arguments = sys.argv[1:]
    _stop_with(int(parent))
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    from qdq import storage
    from qdq.cli import main as command_line

    print(f"$ qdq {shlex.join(arguments)}", flush=True)
    try:
        with storage.exclusive(Path(lock)):
            command_line.main(arguments)
    except KeyboardInterrupt:
        print("qdq: Interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
