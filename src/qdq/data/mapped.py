"""Mapped datasets: a folder of plain .npy columns that stay on disk and are read as they are needed.

`dataset.json` holds the metadata. The format is for data larger than memory: the columns are those of `Dataset`, so
opening a folder costs one look at every value, and nothing is copied. With a memory budget every other format is
converted to it once, in blocks, and kept in the cache folder under the hash of its source.
"""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from qdq import storage
from qdq.data.blocks import blocks_of
from qdq.data.episodes import COLUMNS, Dataset, Metadata
from qdq.data.guard import reading
from qdq.data.metadata import MAXIMUM_CHARACTERS, metadata_from_json, metadata_to_json
from qdq.data.rows import Store, as_numbers
from qdq.errors import DataError, UsageError

FORMAT = 1
DESCRIPTION = "dataset.json"
KINDS: dict[str, tuple[Any, int]] = {  # type and number of dimensions of each column
    "observations": (np.float32, 2),
    "actions": (np.float32, 2),
    "rewards": (np.float32, 1),
    "terminals": (np.bool_, 1),
    "truncations": (np.bool_, 1),
    "lengths": (np.int64, 1),
    "action_low": (np.float32, 1),
    "action_high": (np.float32, 1),
}


class MappedStore:
    """Columns that grow as .npy files in a folder; their headers are completed in the end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict[str, BinaryIO] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, np.dtype] = {}

    def append(self, name: str, values: np.ndarray) -> None:
        """Add values to the end of a column."""
        try:
            if name not in self.files:
                self.files[name] = open(self.folder / f"{name}.npy", "wb")  # noqa: SIM115  # closed by `finish`
                self.shapes[name], self.types[name] = (0, *values.shape[1:]), values.dtype
                self._header(name)
            self.files[name].write(np.ascontiguousarray(values, self.types[name]).data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DataError(f"There is no room left for {self.folder}; free some, or set QDQ_CACHE.") from error
        self.shapes[name] = (self.shapes[name][0] + len(values), *self.shapes[name][1:])

    def finish(self) -> dict[str, np.ndarray]:
        """The whole columns, mapped."""
        for name, file in self.files.items():
            length = file.tell() - int(np.prod(self.shapes[name])) * self.types[name].itemsize
            file.seek(0)
            self._header(name)  # the library pads headers so that the first dimension can grow
            if file.tell() != length:
                raise RuntimeError(f"the header of {name} changed its length")
        self.close()
        kinds = {name: (self.types[name], len(self.shapes[name])) for name in self.shapes}
        return {name: open_column(self.folder, name, *kind) for name, kind in kinds.items()}

    def close(self) -> None:
        """Close the files."""
        for file in self.files.values():
            file.close()
        self.files = {}

    def _header(self, name: str) -> None:
        descriptor = npy.dtype_to_descr(self.types[name])
        npy.write_array_header_1_0(
            self.files[name], {"descr": descriptor, "fortran_order": False, "shape": self.shapes[name]}
        )


def open_column(folder: Path, name: str, kind: Any, dimensions: int) -> np.ndarray:
    """One mapped column, after comparing its header with what is needed and with what is stored."""
    path = folder / f"{name}.npy"
    with reading(path, "NPY"):
        column = npy.open_memmap(path, mode="r")  # unlike numpy.load it takes no archive and no pickle for an array
        stored = path.stat().st_size
    if column.dtype != kind or column.ndim != dimensions or not column.flags.c_contiguous:
        raise DataError(
            f"{path} holds {column.dtype} in {column.ndim} dimensions where {np.dtype(kind)} in {dimensions} is needed; "
            "convert the data again."
        )
    if stored != column.offset + column.nbytes:
        raise DataError(
            f"{path}: the header claims {column.nbytes} bytes, but {stored - column.offset} are stored; "
            "the file is damaged, so convert the data again."
        )
    return column


def is_mapped_folder(path: Path) -> bool:
    """Whether `path` is the folder of a mapped dataset."""
    return (Path(path) / DESCRIPTION).is_file()


def read_mapped(folder: Path) -> Dataset:
    """The dataset in a folder of columns, which stay on disk."""
    folder = Path(folder)
    with reading(folder / DESCRIPTION, "JSON"):
        if (folder / DESCRIPTION).stat().st_size > 4 * MAXIMUM_CHARACTERS:
            raise DataError(f"{folder / DESCRIPTION} is implausibly long; convert the data again.")
    description = storage.read_json(folder / DESCRIPTION)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise DataError(f"{folder} was not written by this version of qdq; convert the data again.")
    metadata = metadata_from_json(description.get("metadata"), folder, str(description.get("source", "mapped")))
    columns = {name: open_column(folder, name, *KINDS[name]) for name in COLUMNS}
    for name in ("observations", "actions", "rewards"):
        row = 0
        for block in blocks_of(columns[name]):
            as_numbers(metadata.name, name, block, KINDS[name][1], row)
            row += len(block)
    for name in ("terminals", "truncations"):
        if any((block.view(np.uint8) > 1).any() for block in blocks_of(columns[name])):
            raise DataError(f"Dataset {metadata.name!r}: {name} must be flags (0 or 1).")
    return Dataset(**columns, metadata=metadata)


def write_mapped(dataset: Dataset, folder: Path) -> None:
    """Write `dataset` as a folder of columns."""

    def copy(store: Store) -> Metadata:
        for name in COLUMNS:
            for block in blocks_of(getattr(dataset, name)):
                store.append(name, block)
        store.finish()
        return dataset.metadata

    fill_folder(Path(folder), copy)


def converted(identity: dict[str, Any], read: Callable[[Store], Dataset]) -> Dataset:
    """The dataset that `read` writes into a store: converted now, or found converted before from the same `identity`."""
    name = storage.content_hash({"format": FORMAT, **identity})[:24]
    folder = storage.cache_directory() / "datasets" / name
    with storage.exclusive(folder.with_suffix(".lock")):
        if is_mapped_folder(folder):
            try:
                return read_mapped(folder)
            except DataError:  # damaged: it is only a copy
                shutil.rmtree(folder)
        fill_folder(folder, lambda store: read(store).metadata)
    return read_mapped(folder)


def fill_folder(folder: Path, fill: Callable[[Store], Metadata]) -> None:
    """Have the columns of a new folder filled, and the metadata written beside them."""
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another name or remove it first.")
    with storage.atomic_folder(folder) as temporary:
        store = MappedStore(temporary)
        try:
            metadata = fill(store)
        finally:
            store.close()
        content = {"format": FORMAT, "source": metadata.source, "metadata": metadata_to_json(metadata)}
        storage.write_json(temporary / DESCRIPTION, content)
