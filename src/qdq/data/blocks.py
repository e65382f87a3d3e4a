"""Working through arrays in blocks, so that one larger than memory never lies in memory as a whole.

The pages of a mapped array count as memory of the process once they are touched; `release` gives them back.
"""

import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_BYTES = 4 * 2**20


def rows_per_block(row_bytes: int) -> int:
    """How many rows of that size make a block."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def spans(count: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that together cover `count` rows."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def blocks_of(array: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of an array in order, in blocks; the pages of a mapped array are given back after each."""
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    for span in spans(len(array), rows_per_block(row_bytes)):
        yield array[span]
        release(array)


def take(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`array[index]`; a mapped array is read a few rows at a time, because each row may bring in sixteen pages."""
    if not is_mapped(array):
        return array[index]
    taken = np.empty((len(index), *array.shape[1:]), array.dtype)
    for span in spans(len(index), 256):
        taken[span] = array[index[span]]
        release(array)
    return taken


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array lies in a file that is mapped into memory."""
    return _mapping(array) is not None


def release(*arrays: np.ndarray) -> None:
    """Give the pages of mapped arrays back to the system; they are read again when they are needed again."""
    for array in arrays:
        mapping = _mapping(array)
        if mapping is not None:
            mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
