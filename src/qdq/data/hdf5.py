"""Reading HDF5 without trusting it: no links out of the file, numbers only, and sizes checked before allocation."""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from qdq.data.guard import GIBIBYTE, check_compression, check_memory, reading
from qdq.errors import DataError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SMALL = 2**20  # bytes that need no look at the file's size


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
    item = _item(path, group, key)
    if item is None:
        return None
    size = math.prod(item.shape) * item.dtype.itemsize
    if size >= SMALL:
        check_memory(path, key, size)
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
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiubU":
            value = value.tolist()
        if isinstance(value, str | int | float | bool | list):
            values[str(key)] = value
    return values
