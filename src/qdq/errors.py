"""Errors that reach a user: one sentence each, with the exit code the command line returns."""


class QDQError(Exception):
    """Base of every error with a message meant for users."""

    exit_code = 1


class UsageError(QDQError):
    """The request itself is wrong: an unknown name, key or option, or a folder that is in the way."""

    exit_code = 2


class DataError(QDQError):
    """A file or array cannot be used as it is."""

    exit_code = 3


class DivergedError(QDQError):
    """Training left the range where its numbers mean anything."""

    exit_code = 4


class InterruptedRun(QDQError):
    """The user stopped the run; everything up to the last checkpoint is kept."""

    exit_code = 130


def suggest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """The end of an error sentence: the nearest known name, else the list of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return "known: " + ", ".join(map(_shown, known)) + "."


def _shown(name: str) -> str:
    """A name as part of a sentence: on one line, and no longer than a name should be."""
    if name.isprintable() and len(name) <= 60:
        return name
    return repr(name[:60]) + ("..." if len(name) > 60 else "")
