"""Reading HDF5 without trusting it: no links out of the file, numbers only, and sizes checked before allocation.

The HDF5 library itself can crash or loop for ever on a damaged file, where no `except` helps. So another process looks
through a file first (`qdq.data.first_look`), and a file which that process does not survive is refused.
"""

import atexit
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from qdq.data.guard import GIBIBYTE, check_compression, check_memory, check_unfolding, reading
from qdq.errors import DataError
from qdq.memory import physical_memory

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SMALL = 2**20  # bytes that need no look at the file's size
SECONDS, SECONDS_PER_MEBIBYTE = 5, 1  # of computing that a first look may take; a sound file needs a fraction


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """The file, opened for reading; every failure inside the block is a `DataError`."""
    with reading(path, "HDF5"):
        seconds = SECONDS + SECONDS_PER_MEBIBYTE * (os.stat(path).st_size // 2**20)
        if not _FIRST_LOOK.survives(path, seconds):
            raise DataError(
                f"{path} crashes the HDF5 library or keeps it busy without end; it is damaged, so fetch or write it again."
            )
        with h5py.File(path, "r") as file:
            yield file


class FirstLook:
    """The process that looks through files; it is kept for the next file, and replaced after one it did not survive."""

    def __init__(self, script: Path):
        self.script = script
        self.lock = threading.Lock()
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0  # a fork of this process needs a process of its own

    def survives(self, path: Path, seconds: int) -> bool:
        """Whether the HDF5 library gets through a file, well or with an error."""
        request = {"path": str(Path(path).absolute()), "seconds": seconds, "memory": physical_memory()}
        with self.lock:
            if self.process is None or self.owner != os.getpid():
                self.owner, self.process = os.getpid(), self._started()
            answer = ""
            try:
                assert self.process.stdin is not None
                assert self.process.stdout is not None
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
                answer = self.process.stdout.readline()
            except BrokenPipeError:
                pass
            finally:
                if not answer:
                    self._end()
        return bool(answer)

    def close(self) -> None:
        """End the process, if this one has started it."""
        with self.lock:
            if self.owner == os.getpid():
                self._end()

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


_FIRST_LOOK = FirstLook(Path(__file__).with_name("first_look.py"))
atexit.register(_FIRST_LOOK.close)


def member(path: Path, group: h5py.Group, key: str) -> Any:
    """The object called `key` in `group`, or none; links that leave the group's tree are refused."""
    link = group.get(key, getlink=True)
    if link is None:
        return None
    if not isinstance(link, h5py.HardLink):
        raise DataError(
            f"{path}: {key} in {group.name} is a link to elsewhere, which is not followed; store the data itself."
        )
    return group[key]


def read_array(path: Path, group: h5py.Group, key: str) -> np.ndarray | None:
    """The numeric array called `key`, or none if there is no such member."""
    item = _item(path, group, key)
    if item is None:
        return None
    size = math.prod(item.shape) * item.dtype.itemsize
    if size >= SMALL:
        check_memory(path, key, size)
        check_unfolding(path, size, os.stat(path).st_size)
    array = np.empty(item.shape, item.dtype)
    if array.size:
        item.read(h5s.ALL, h5s.ALL, array)
    return array


def open_array(path: Path, group: h5py.Group, key: str) -> h5py.Dataset | None:
    """The numeric array called `key`, still in the file, whose slices are read when they are asked for."""
    item = _item(path, group, key)
    return None if item is None else h5py.Dataset(item)


def _item(path: Path, group: h5py.Group, key: str) -> h5d.DatasetID | None:
    """The checked array called `key`.

    Uses HDF5's own calls, because a Minari dataset of short episodes has hundreds of thousands of small arrays.
    """
    name = key.encode()
    if not group.id.links.exists(name):
        return None
    if group.id.links.get_info(name).type != h5l.TYPE_HARD:
        member(path, group, key)  # says what is wrong
    item = h5o.open(group.id, name)
    label = f"{group.name or ''}/{key}".replace("//", "/").lstrip("/")
    if not isinstance(item, h5d.DatasetID):
        raise DataError(f"{path}: {label} is a group where an array is needed.")
    dtype = item.dtype
    if dtype.kind not in "fiub":
        raise DataError(f"{path}: {label} is of type {dtype}, but numbers are needed.")
    if item.get_space().get_simple_extent_type() == h5s.NULL:
        raise DataError(f"{path}: {label} is empty; it was created but never written.")
    _check(path, label, item, math.prod(item.shape) * dtype.itemsize)
    return item


def _check(path: Path, label: str, item: h5d.DatasetID, size: int) -> None:
    """Compare the size that the header claims with what the file stores."""
    properties = item.get_create_plist()
    layout = properties.get_layout()
    if layout == h5d.VIRTUAL or properties.get_external_count():
        raise DataError(f"{path}: {label} keeps its data in another file, which is not read; store the data itself.")
    if size == 0:
        return
    stored = item.get_storage_size()
    if layout != h5d.CHUNKED and stored == size < SMALL:
        return  # small, and byte for byte what it claims
    if stored > Path(path).stat().st_size:
        raise DataError(
            f"{path}: {label} claims {stored} stored bytes, more than the whole file; the file is cut short."
        )
    if layout != h5d.CHUNKED:
        if stored < size:
            raise DataError(
                f"{path}: the header of {label} claims {size} bytes, but only {stored} are stored; "
                "the file is damaged or incomplete, so fetch or write it again."
            )
        return
    chunks = properties.get_chunk()
    if math.prod(chunks) * item.dtype.itemsize > GIBIBYTE:
        raise DataError(f"{path}: {label} is stored in chunks larger than 1 GiB; write it again with smaller chunks.")
    # A chunk that was never written reads as zeros, which would pass for data.
    needed = math.prod(-(-length // chunk) for length, chunk in zip(item.shape, chunks, strict=True))
    written = item.get_num_chunks()
    if written < needed:
        raise DataError(
            f"{path}: the header of {label} claims {needed} chunks, but {written} are stored; "
            "the file is damaged or incomplete, so fetch or write it again."
        )
    check_compression(path, label, size, stored)


def write_group(file: h5py.File, name: str, arrays: dict[str, np.ndarray], numbers: dict[str, int]) -> None:
    """A group of small uncompressed arrays with whole numbers as attributes, by HDF5's own calls."""
    group = h5g.create(file.id, name.encode())
    for key, number in numbers.items():
        h5a.create(group, key.encode(), h5t.NATIVE_INT64, h5s.create(h5s.SCALAR)).write(np.array(number, np.int64))
    for key, array in arrays.items():
        kind = h5t.py_create(array.dtype, logical=True)
        h5d.create(group, key.encode(), kind, h5s.create_simple(array.shape)).write(
            h5s.ALL, h5s.ALL, np.ascontiguousarray(array)
        )


def attributes(group: Any) -> dict[str, Any]:
    """The plain attributes of a group (numbers, text, lists of them); nothing for anything else."""
    values: dict[str, Any] = {}
    if not isinstance(group, h5py.Group):
        return values
    for key in group.attrs:
        value = group.attrs[key]
        if isinstance(value, bytes):
            value = value.decode("utf-8", errors="replace")
        if isinstance(value, str):
            value = value.encode(errors="replace").decode()  # bytes that are no text come as half surrogate pairs
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubU":
            value = value.tolist()
        if isinstance(value, str | int | float | bool | list):
            values[str(key)] = value
    return values
