"""D4RL's HDF5 layout: one row per transition, with or without `timeouts` and `next_observations` (v0 to v2).

Where an episode ends, in this order:
1. at a terminal, and at a timeout where the file has `timeouts`;
2. with `next_observations`: where the next observation is not the following row's observation;
3. without `timeouts` and without `next_observations`: after as many steps as the environment's time limit, if the file
   or its name says which environment it is; otherwise only at terminals, which is recorded in the metadata;
4. in an AntMaze file without `next_observations`: where the ant jumps further than any ant can move in one step,
   because the timeouts of the v0 files are out of step with their episodes.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdq.data import hdf5
from qdq.data.blocks import rows_per_block, spans
from qdq.data.episodes import Dataset, Metadata, from_columns
from qdq.data.guard import check_memory, check_unfolding
from qdq.data.metadata import metadata_from_json, metadata_to_json
from qdq.data.references import Reference, d4rl_reference
from qdq.data.rows import Store
from qdq.data.tasks import ANTMAZE_NOTE, MUJOCO_SIZES, Task, recognise
from qdq.errors import DataError
from qdq.storage import atomic_path, parse_json

REQUIRED = ("observations", "actions", "rewards", "terminals")
ANT_JUMP = 2.0  # maze units; a running ant moves less than 0.5 in a step, and a corridor is 4 wide
KNOWN_LIMITS = {"Hopper": 1000, "HalfCheetah": 1000, "Walker2d": 1000, "Ant": 1000}


def read_d4rl(path: Path, name: str | None = None, store: Store | None = None) -> Dataset:
    """The dataset in a D4RL HDF5 file, read in blocks.

    `name` replaces the file's name where tasks are recognised; `store` is where the dataset's columns grow.
    """
    path = Path(path)
    with hdf5.open_hdf5(path) as file:
        arrays = {key: hdf5.open_array(path, file, key) for key in (*REQUIRED, "timeouts", "next_observations")}
        if missing := [key for key in REQUIRED if arrays[key] is None]:
            raise DataError(
                f"{path} lacks {', '.join(missing)}; a D4RL file has {', '.join(REQUIRED)}, one row per transition."
            )
        size = sum(array.nbytes for array in arrays.values() if array is not None)
        check_unfolding(path, size, path.stat().st_size)
        if store is None:
            check_memory(path, "the data", size)
        group = hdf5.member(path, file, "metadata")
        ours = _ours(path, group)
        if ours is not None:
            metadata, low, high = ours
            return _build(arrays, arrays["timeouts"], low, high, metadata, store)
        return _foreign(name or path.stem, arrays, hdf5.attributes(file) | hdf5.attributes(group), store)


def _foreign(name: str, arrays: dict[str, Any], attributes: dict[str, Any], store: Store | None) -> Dataset:
    """The dataset of a file that does not say everything itself."""
    task = recognise(name)
    shapes = tuple(arrays[key].shape[-1] for key in REQUIRED[:2] if arrays[key].ndim == 2)
    if task is not None and task.environment_id is not None and MUJOCO_SIZES[task.environment_id] != shapes:
        task = None  # a file that only borrows the name
    metadata = _describe(name, task, attributes)
    timeouts, note = _timeouts(arrays, task, metadata.environment_id)
    if note:
        metadata.details["boundaries"] = note
    bounded = task is not None or metadata.environment_id in MUJOCO_SIZES
    low, high = (-1.0, 1.0) if bounded else (None, None)
    dataset = _build(arrays, timeouts, low, high, metadata, store)
    limit = _limit(task, metadata.environment_id)
    if limit and dataset.truncations[-1] and dataset.lengths[-1] < limit - 1:
        details = {**dataset.metadata.details, "last_episode_cut": True}
        dataset = replace(dataset, metadata=replace(dataset.metadata, details=details))
    return dataset


def write_d4rl(dataset: Dataset, path: Path) -> None:
    """Write `dataset` as D4RL v2 HDF5: rows with `timeouts` and `next_observations`, and our metadata beside them."""
    with atomic_path(Path(path)) as temporary, h5py.File(temporary, "w") as file:
        columns = {
            "observations": dataset.current_observations,
            "actions": dataset.actions,
            "rewards": dataset.rewards,
            "terminals": dataset.terminals,
            "timeouts": dataset.truncations,
            "next_observations": dataset.next_observations,
        }
        for key, array in columns.items():
            file.create_dataset(key, data=array, compression="gzip", compression_opts=4)
        group = file.create_group("metadata")
        group["action_low"], group["action_high"] = dataset.action_low, dataset.action_high
        # As bytes in an array: an HDF5 attribute may not exceed 64 KiB.
        group["qdq"] = np.frombuffer(metadata_to_json(dataset.metadata).encode(), np.uint8)
        if dataset.metadata.environment_id:
            group.attrs["env_id"] = dataset.metadata.environment_id
        if dataset.metadata.reference:
            group.attrs["reference_min_return"] = dataset.metadata.reference.random
            group.attrs["reference_max_return"] = dataset.metadata.reference.expert


def _build(
    arrays: dict[str, Any], timeouts: Any, low: Any, high: Any, metadata: Metadata, store: Store | None
) -> Dataset:
    columns = {key: arrays[key] for key in (*REQUIRED, "next_observations")}
    return from_columns({**columns, "truncations": timeouts}, low, high, metadata, store)


def _ours(path: Path, group: Any) -> tuple[Metadata, np.ndarray, np.ndarray] | None:
    """What `write_d4rl` stored beside the rows."""
    if not isinstance(group, h5py.Group):
        return None
    text, low, high = (hdf5.read_array(path, group, key) for key in ("qdq", "action_low", "action_high"))
    if text is None or low is None or high is None:
        return None
    return metadata_from_json(text.tobytes().decode(), path, "d4rl"), low, high


def _describe(name: str, task: Task | None, attributes: dict[str, Any]) -> Metadata:
    """Metadata from the file's own attributes, else from its name."""
    details = {key: _parsed(value) for key, value in attributes.items()}
    environment_id = details.get("env_id") if isinstance(details.get("env_id"), str) else None
    options: dict[str, Any] = {}
    if environment_id is None and task is not None:
        environment_id = task.environment_id
        if environment_id == "Ant-v4":
            options["use_contact_forces"] = True
    reference = d4rl_reference(environment_id)
    ends = details.get("reference_min_return"), details.get("reference_max_return")
    if all(isinstance(value, int | float) and np.isfinite(value) for value in ends) and ends[0] != ends[1]:
        stored = float(ends[0]), float(ends[1])  # type: ignore[arg-type]
        if reference is None or stored != (reference.random, reference.expert):
            reference = Reference(*stored, origin="the file")
    if task is not None and task.is_antmaze:
        reference = reference or Reference(0.0, 1.0, origin="success")
        details["note"] = ANTMAZE_NOTE
    return Metadata(
        name=name,
        source="d4rl",
        environment_id=environment_id,
        environment_options=options,
        task=task.name if task else None,
        reference=reference,
        details=details,
    )


def _parsed(value: Any) -> Any:
    """An attribute; lists are often stored as JSON text."""
    if isinstance(value, str) and value[:1] in "[{":
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value


def _limit(task: Task | None, environment_id: str | None) -> int | None:
    if task is not None:
        return task.step_limit
    return KNOWN_LIMITS.get((environment_id or "").split("-")[0])


class _Flags:
    """Truncations that follow from other columns, in blocks."""

    def __init__(self, count: int, given: Any, limit: int | None, ends: np.ndarray, jumps: np.ndarray):
        self.shape, self.ndim, self.dtype = (count,), 1, np.dtype(bool)
        self.given, self.limit, self.ends, self.jumps = given, limit, ends, jumps

    def __getitem__(self, rows: slice) -> np.ndarray:
        flags = np.zeros(rows.stop - rows.start, bool) if self.given is None else np.array(self.given[rows], bool)
        if self.limit is not None:
            numbers = np.arange(rows.start, rows.stop)
            previous = np.concatenate([[-1], self.ends])  # the clock starts again after each terminal
            age = numbers - previous[np.searchsorted(self.ends, numbers, side="left")]
            flags |= (age % self.limit == 0) & ~np.isin(numbers, self.ends)
        low, high = np.searchsorted(self.jumps, [rows.start, rows.stop])
        flags[self.jumps[low:high] - rows.start] = True
        return flags


def _timeouts(arrays: dict[str, Any], task: Task | None, environment_id: str | None) -> tuple[Any, str | None]:
    """The truncations of a file, and how they were found if the file does not say."""
    timeouts, terminals, observations = arrays["timeouts"], arrays["terminals"], arrays["observations"]
    if arrays["next_observations"] is not None:
        return timeouts, None
    note, limit = None, None
    ends = jumps = np.empty(0, np.int64)
    if timeouts is None and terminals.ndim == 1:
        limit = _limit(task, environment_id)
        if limit is None:
            return None, "terminals only: the file has no timeouts, no next_observations and no known time limit"
        found = [span.start + np.flatnonzero(terminals[span]) for span in spans(len(terminals), rows_per_block(8))]
        ends = np.concatenate([ends, *found])
        note = (
            f"terminals, and the environment's limit of {limit} steps: no timeouts and no next_observations in the file"
        )
    count = len(terminals)
    if task is not None and task.is_antmaze and (timeouts is None or len(timeouts) == count):
        jumps = _jumps(observations)
        if len(jumps):
            note = f"{note or 'terminals and timeouts'}; and {len(jumps)} jumps of the ant"
    if limit is None and not len(jumps):
        return timeouts, note
    return _Flags(count, timeouts, limit, ends, jumps), note


def _jumps(observations: Any) -> np.ndarray:
    """Where an ant is further from its next position than it can move in one step."""
    found = [np.empty(0, np.int64)]
    width = observations.dtype.itemsize * math.prod(observations.shape[1:])
    for span in spans(len(observations), rows_per_block(width)):
        position = np.asarray(observations[span.start : span.stop + 1], np.float64)[:, :2]
        found.append(span.start + np.flatnonzero(np.linalg.norm(np.diff(position, axis=0), axis=1) > ANT_JUMP))
    return np.concatenate(found)
