"""NPZ archives of plain arrays, one row per transition; never pickles, and no header is believed before it is checked.

Keys: observations, actions, rewards, terminals; optional truncations (or timeouts), next_observations, action_low and
action_high, and `metadata`, a JSON text.
"""

import contextlib
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from qdq.data.episodes import Dataset, Metadata, from_columns
from qdq.data.guard import check_compression, check_memory, check_unfolding, reading
from qdq.data.metadata import MAXIMUM_CHARACTERS, metadata_from_json, metadata_to_json
from qdq.data.rows import Store
from qdq.errors import DataError
from qdq.storage import atomic_path

REQUIRED = ("observations", "actions", "rewards", "terminals")
SMALL = ("action_low", "action_high", "metadata")
OPTIONAL = ("truncations", "timeouts", "next_observations", *SMALL)
ROWS = (*REQUIRED, "truncations", "timeouts", "next_observations")


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an NPZ file has; others are never read."""
    path = Path(path)
    arrays: dict[str, np.ndarray] = {}
    with reading(path, "NPZ"), zipfile.ZipFile(path) as archive:
        for key, information in _members(path, archive).items():
            if key in names:
                with _Member(path, archive, information, key) as member:
                    if key == "metadata" and member.nbytes > 4 * MAXIMUM_CHARACTERS:
                        raise DataError(
                            f"{path}: metadata of {member.nbytes} bytes is implausibly long; write the file again."
                        )
                    check_memory(path, key, member.nbytes)
                    arrays[key] = member.whole()
    return arrays


def read_npz(path: Path, store: Store | None = None) -> Dataset:
    """The dataset in an NPZ file, read in blocks; `store` is where its columns grow."""
    path = Path(path)
    arrays: dict[str, Any] = read_arrays(path, SMALL)
    with reading(path, "NPZ"), contextlib.ExitStack() as opened, zipfile.ZipFile(path) as archive:
        for key, information in _members(path, archive).items():
            if key in ROWS:
                arrays[key] = opened.enter_context(_Member(path, archive, information, key))
                if store is None and arrays[key].fortran:
                    arrays[key] = arrays[key].whole()
        if missing := [key for key in REQUIRED if key not in arrays]:
            names = ", ".join((*REQUIRED, *OPTIONAL))
            raise DataError(f"{path} lacks {', '.join(missing)}; rename the arrays to {names}.")
        if "truncations" in arrays and "timeouts" in arrays:
            raise DataError(
                f"{path} has both truncations and timeouts, which are two names of one thing; keep one of them."
            )
        if store is None:
            check_memory(path, "the data", sum(arrays[key].nbytes for key in ROWS if key in arrays))
        metadata = Metadata(name=path.stem, source="npz")
        if "metadata" in arrays:
            text = arrays["metadata"]
            if text.dtype.kind != "U" or text.ndim != 0:
                raise DataError(f"{path}: metadata must be one JSON text.")
            metadata = metadata_from_json(str(text), path, "npz")
        columns = {key: arrays.get(key) for key in (*REQUIRED, "next_observations")}
        columns["truncations"] = arrays.get("truncations", arrays.get("timeouts"))
        return from_columns(columns, arrays.get("action_low"), arrays.get("action_high"), metadata, store)


def write_npz(dataset: Dataset, path: Path) -> None:
    """Write `dataset` as a compressed NPZ file that reads back exactly."""
    with atomic_path(Path(path)) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(
            file,
            observations=dataset.current_observations,
            actions=dataset.actions,
            rewards=dataset.rewards,
            terminals=dataset.terminals,
            truncations=dataset.truncations,
            next_observations=dataset.next_observations,
            action_low=dataset.action_low,
            action_high=dataset.action_high,
            metadata=np.array(metadata_to_json(dataset.metadata)),
        )


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an archive by name; nothing is ever unpacked, but names that point elsewhere betray a hostile file."""
    members: dict[str, zipfile.ZipInfo] = {}
    for information in archive.infolist():
        name = information.orig_filename
        parts = name.replace("\\", "/").split("/")
        if parts[0] == "" or ".." in parts or "\0" in name or ":" in parts[0]:
            raise DataError(f"{path} has a member {name[:80]!r} that points out of the archive; write the file again.")
        key = name.removesuffix(".npy")
        if key in members:
            raise DataError(f"{path} has two members called {name[:80]!r}; keep one of them.")
        members[key] = information
    check_unfolding(path, sum(information.file_size for information in members.values()), path.stat().st_size)
    return members


class _Member:
    """An array in an archive, in order and in blocks, after comparing its header with what is stored for it."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, information: zipfile.ZipInfo, key: str):
        if information.compress_size > path.stat().st_size:
            raise DataError(f"{path}: {key} claims more stored bytes than the whole file has; the file is cut short.")
        check_compression(path, key, information.file_size, information.compress_size)
        self.label = f"{path}: {key}"
        self.file = archive.open(information)
        version = npy.read_magic(self.file)
        readers: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise DataError(f"{path}: {key} has an unknown array version {version}; save it with numpy.savez.")
        self.shape, self.fortran, self.dtype = readers[version](self.file)
        if self.dtype.hasobject:
            raise DataError(f"{path}: {key} holds Python objects, which are never loaded; save plain numeric arrays.")
        self.ndim, self.nbytes = len(self.shape), math.prod(self.shape) * self.dtype.itemsize
        stored = information.file_size - self.file.tell()
        if self.nbytes != stored:
            raise DataError(
                f"{path}: the header of {key} claims {self.nbytes} bytes, but {stored} are stored; "
                "the file is damaged, so write it again."
            )
        self.position = 0

    def __enter__(self) -> "_Member":
        return self

    def __exit__(self, *unused: object) -> None:
        self.file.close()

    def __getitem__(self, rows: slice) -> np.ndarray:
        """The next rows: forward only, because a compressed array cannot be entered in the middle."""
        if self.fortran and self.ndim > 1:
            raise DataError(
                f"{self.label} is stored column by column, which cannot be streamed; save it with numpy.ascontiguousarray."
            )
        if rows.start != self.position:
            raise ValueError("the rows of an archive are read in order")
        self.position = rows.stop
        shape = (rows.stop - rows.start, *self.shape[1:])
        content = self.file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(content, self.dtype).reshape(shape)

    def whole(self) -> np.ndarray:
        """All of it."""
        content = np.frombuffer(self.file.read(), self.dtype)
        return content.reshape(self.shape, order="F" if self.fortran else "C")
