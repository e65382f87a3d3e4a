"""Reading HDF5 without trusting it: no links out of the file, numbers only, and sizes checked before allocation."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdq.data.guard import GIBIBYTE, check_compression, check_memory, reading
from qdq.errors import DataError

SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextlib.contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """The file, opened for reading; every failure inside the block is a `DataError`."""
    with reading(path, "HDF5"), h5py.File(path, "r") as file:
        yield file


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
    item = member(path, group, key)
    if item is None:
        return None
    label = f"{group.name or ''}/{key}".replace("//", "/").lstrip("/")
    if not isinstance(item, h5py.Dataset):
        raise DataError(f"{path}: {label} is a group where an array is needed.")
    _check(path, label, item)
    return item[()]


def _check(path: Path, label: str, item: h5py.Dataset) -> None:
    """Compare what the header claims with what the file stores."""
    if item.dtype.kind not in "fiub":
        raise DataError(f"{path}: {label} is of type {item.dtype}, but numbers are needed.")
    if item.shape is None:
        raise DataError(f"{path}: {label} is empty; it was created but never written.")
    if item.external or item.is_virtual:
        raise DataError(
            f"{path}: {label} keeps its data in another file, which is not followed; store the data itself."
        )
    size = math.prod(item.shape) * item.dtype.itemsize
    if size == 0:
        return
    check_memory(path, label, size)
    stored = item.id.get_storage_size()
    if stored > Path(path).stat().st_size:
        raise DataError(
            f"{path}: {label} claims {stored} stored bytes, more than the whole file; the file is cut short."
        )
    if item.chunks is None:  # contiguous or compact: byte for byte
        if stored < size:
            raise DataError(
                f"{path}: the header of {label} claims {size} bytes, but only {stored} are stored; "
                "the file is damaged or incomplete, so fetch or write it again."
            )
        return
    if math.prod(item.chunks) * item.dtype.itemsize > GIBIBYTE:
        raise DataError(f"{path}: {label} is stored in chunks larger than 1 GiB; write it again with smaller chunks.")
    # A chunk that was never written reads as zeros, which would pass for data.
    needed = math.prod(-(-length // chunk) for length, chunk in zip(item.shape, item.chunks, strict=True))
    written = item.id.get_num_chunks()
    if written < needed:
        raise DataError(
            f"{path}: the header of {label} claims {needed} chunks, but {written} are stored; "
            "the file is damaged or incomplete, so fetch or write it again."
        )
    check_compression(path, label, size, stored)


def attributes(group: Any) -> dict[str, Any]:
    """The plain attributes of a group (numbers, text, lists of them); nothing for anything else."""
    values: dict[str, Any] = {}
    if not isinstance(group, h5py.Group):
        return values
    for key in group.attrs:
        value = group.attrs[key]
        if isinstance(value, bytes):
            value = value.decode("utf-8", errors="replace")
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubU":
            value = value.tolist()
        if isinstance(value, str | int | float | bool | list):
            values[str(key)] = value
    return values
