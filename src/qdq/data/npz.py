"""NPZ archives of plain arrays, one row per transition; never pickles, and no header is believed before it is checked.

Keys: observations, actions, rewards, terminals; optional truncations (or timeouts), next_observations, action_low and
action_high, and `metadata`, a JSON text.
"""

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.guard import check_compression, check_memory, reading
from qdq.data.metadata import MAXIMUM_CHARACTERS, metadata_from_json, metadata_to_json
from qdq.errors import DataError
from qdq.storage import atomic_path

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("truncations", "timeouts", "next_observations", "action_low", "action_high", "metadata")


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an NPZ file has; others are never read."""
    path = Path(path)
    arrays: dict[str, np.ndarray] = {}
    with reading(path, "NPZ"), zipfile.ZipFile(path) as archive:
        for information in archive.infolist():
            key = information.filename.removesuffix(".npy")
            if key in names:
                arrays[key] = _read_member(path, archive, information, key)
    return arrays


def read_npz(path: Path) -> Dataset:
    """The dataset in an NPZ file."""
    path = Path(path)
    arrays = read_arrays(path, (*REQUIRED, *OPTIONAL))
    if missing := [key for key in REQUIRED if key not in arrays]:
        raise DataError(f"{path} lacks {', '.join(missing)}; rename the arrays to {', '.join((*REQUIRED, *OPTIONAL))}.")
    metadata = Metadata(name=path.stem, source="npz")
    if "metadata" in arrays:
        text = arrays["metadata"]
        if text.dtype.kind != "U" or text.ndim != 0:
            raise DataError(f"{path}: metadata must be one JSON text.")
        metadata = metadata_from_json(str(text), path, "npz")
    if "truncations" in arrays and "timeouts" in arrays:
        raise DataError(
            f"{path} has both truncations and timeouts, which are two names of one thing; keep one of them."
        )
    return from_arrays(
        *(arrays[key] for key in REQUIRED),
        truncations=arrays.get("truncations", arrays.get("timeouts")),
        next_observations=arrays.get("next_observations"),
        action_low=arrays.get("action_low"),
        action_high=arrays.get("action_high"),
        metadata=metadata,
    )


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


def _read_member(path: Path, archive: zipfile.ZipFile, information: zipfile.ZipInfo, key: str) -> np.ndarray:
    """One array, after comparing its header with what the archive stores for it."""
    if information.compress_size > path.stat().st_size:
        raise DataError(f"{path}: {key} claims more stored bytes than the whole file has; the file is cut short.")
    check_compression(path, key, information.file_size, information.compress_size)
    with archive.open(information) as member:
        version = npy.read_magic(member)
        readers: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise DataError(f"{path}: {key} has an unknown array version {version}; save it with numpy.savez.")
        shape, _, dtype = readers[version](member)
        header = member.tell()
    if dtype.hasobject:
        raise DataError(f"{path}: {key} holds Python objects, which are never loaded; save plain numeric arrays.")
    size = math.prod(shape) * dtype.itemsize
    if key == "metadata" and size > 4 * MAXIMUM_CHARACTERS:
        raise DataError(f"{path}: metadata of {size} bytes is implausibly long; write the file again.")
    check_memory(path, key, size)
    if size != information.file_size - header:
        raise DataError(
            f"{path}: the header of {key} claims {size} bytes, but {information.file_size - header} are stored; "
            "the file is damaged, so write it again."
        )
    with archive.open(information) as member:
        return npy.read_array(member, allow_pickle=False)
