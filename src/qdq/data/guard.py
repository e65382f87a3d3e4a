"""What every reader shares: no file is trusted, and every failure to parse one is a single sentence."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qdq.errors import DataError, QDQError
from qdq.memory import physical_memory

GIBIBYTE = 2**30
# Deflate cannot expand a byte to more than 1032; a larger claim comes from a damaged or hostile header.
MAXIMUM_COMPRESSION_RATIO = 1100

# Measured numbers shrink by less than ten; as a whole no file of recorded data comes near this.
MAXIMUM_UNFOLDING = 200
LARGE = 2**28  # bytes; what unfolds to less does no harm


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever a parser raises on a file's content into one sentence naming the file."""
    try:
        yield
    except QDQError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder where a {kind} file is needed.") from error
    except PermissionError as error:
        raise DataError(f"{path} cannot be opened: permission denied.") from error
    except MemoryError as error:
        raise DataError(f"{path} needs more memory than there is.") from error
    except Exception as error:  # parsers of hostile bytes raise almost anything; all of it is the file's fault
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        if "truncated file" in reason:
            reason = "the file is cut short"
        raise DataError(
            f"{path} is not a readable {kind} file ({reason}); it is damaged, incomplete or of another format, "
            "so fetch or write it again."
        ) from error


def check_memory(path: Path, label: str, size: int) -> None:
    """Refuse an array that cannot fit in this machine's memory, before anything is allocated."""
    memory = physical_memory()
    if size > memory:
        raise DataError(
            f"{path}: {label} claims {size / GIBIBYTE:.3g} GiB, more than the {memory / GIBIBYTE:.3g} GiB of memory; "
            "if that is no mistake, stream the data with a budget, such as --memory 2GiB."
        )


def check_unfolding(path: Path, size: int, stored: int) -> None:
    """Refuse a small file that unfolds to a large one; columns of flags shrink to nothing, recorded numbers do not."""
    if size > LARGE and size > stored * MAXIMUM_UNFOLDING:
        raise DataError(
            f"{path} claims {size} bytes from the {stored} in the file, far more than recorded data unfolds to; it is a "
            "bomb, or holds nothing but copies of one number, so fetch or write it again."
        )


def check_compression(path: Path, label: str, size: int, stored: int) -> None:
    """Refuse an array whose claimed size cannot come from the bytes stored for it."""
    if size > stored * MAXIMUM_COMPRESSION_RATIO:
        raise DataError(
            f"{path}: the header of {label} claims {size} bytes, but only {stored} are stored; "
            "the file is damaged or incomplete, so fetch or write it again."
        )
