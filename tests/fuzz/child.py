"""The process that reads damaged files: one reading per line of its input, one answer per line of its output.

It runs apart from the tests, with little memory to spare, so that a crash inside a library, a loop without end or an
allocation beyond reason ends this process, and not the suite.
"""

import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

SPARE_MEMORY = 2**31  # bytes of address space beyond what reading sound files took
SOURCE = Path(__file__).parents[2] / "src" / "qdq"
# What a parser may raise on hostile bytes, but our own lines may not, even where a guard would hide it.
MISTAKES = (AttributeError, NameError, AssertionError, IndexError, ZeroDivisionError)


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not disturb the answers
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    from tests.fuzz.readers import READERS

    for line in sys.stdin:
        request = json.loads(line)
        read, folder = READERS[request["reader"]].read, Path(request["folder"])
        if request["sound"]:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        answer = attempt(read, folder)
        if request["sound"]:
            resource.setrlimit(resource.RLIMIT_AS, (_address_space() + SPARE_MEMORY, hard))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def attempt(read: Any, folder: Path) -> dict[str, Any]:
    """What came of reading a folder: `read`, `refused`, or what is wrong."""
    from qdq.errors import QDQError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(folder)
        answer = {"outcome": "read", "detail": ""}
    except QDQError as error:
        answer = {"outcome": "refused", "detail": str(error)}
        if not str(error) or "\n" in str(error):
            answer = {"outcome": "a message of more than a sentence", "detail": str(error)}
        elif _is_mistake(error.__cause__):
            answer = {"outcome": "a mistake of ours behind a guard", "detail": _text(error)}
    except BaseException as error:  # the very question of these tests
        answer = {"outcome": f"{type(error).__name__} escaped", "detail": _text(error)}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {**answer, "kibibytes": grown}


def _is_mistake(cause: BaseException | None) -> bool:
    """Whether an error that a guard turned into a sentence was raised by a line of ours that went wrong."""
    if not isinstance(cause, MISTAKES) or cause.__traceback__ is None:
        return False
    return Path(traceback.extract_tb(cause.__traceback__)[-1].filename).is_relative_to(SOURCE)


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-4000:]


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
