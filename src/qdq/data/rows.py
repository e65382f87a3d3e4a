"""From rows to episodes, block by block: where episodes end is decided here, once, however large the data is.

Rows come in time order, one per transition. An episode ends at a terminal, at a truncation, before a row that begins
another, where the next observation is not the following row's observation (only where next observations are recorded),
and at the last row. Without next
observations the last step of a truncated episode is dropped, because what followed it was not recorded.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from qdq.errors import DataError


class Rows(NamedTuple):
    """A block of consecutive rows."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    truncations: np.ndarray | None = None
    next_observations: np.ndarray | None = None
    begins: np.ndarray | None = None  # flags of rows that begin an episode, where the source says so


def join(parts: Sequence[Rows]) -> Rows:
    """Blocks with the same columns as one."""
    columns = zip(*parts, strict=True)
    return Rows(*(None if column[0] is None else np.concatenate(column) for column in columns))  # type: ignore[arg-type]


class Store(Protocol):
    """Where the columns of a dataset grow: in memory, or in files that are mapped in the end."""

    def append(self, name: str, values: np.ndarray) -> None: ...
    def finish(self) -> dict[str, np.ndarray]: ...


class ArrayStore:
    """Columns in memory."""

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {}

    def append(self, name: str, values: np.ndarray) -> None:
        """Add values to the end of a column."""
        self.parts.setdefault(name, []).append(values)

    def finish(self) -> dict[str, np.ndarray]:
        """The whole columns."""
        return {name: np.concatenate(self.parts.pop(name)) for name in tuple(self.parts)}


class Assembler:
    """Takes rows and writes the columns of a dataset; the last row of a block waits for what follows it."""

    def __init__(self, name: str, store: Store):
        self.name, self.store = name, store
        self.count = 0  # rows so far
        self.waiting: Rows | None = None
        self.low: np.ndarray | None = None  # range of the actions so far
        self.high: np.ndarray | None = None
        self.inside = self.jumps = 0  # rows that another should follow, and those it does not
        self.begins = True  # the next row is the first of its episode
        self.length = 0  # steps of the episode that is still open
        self.truncated: bool | None = None  # the last step so far, whose episode may turn out to be truncated there
        self.cut = False

    def add(self, rows: Rows) -> None:
        """Take the next block of rows."""
        rows = self._checked(rows)
        if not len(rows.rewards):
            return
        low, high = rows.actions.min(axis=0), rows.actions.max(axis=0)
        self.low = low if self.low is None else np.minimum(self.low, low)
        self.high = high if self.high is None else np.maximum(self.high, high)
        if self.waiting is not None:
            rows = join([self.waiting, rows])
        self._write(rows, last=False)
        self.waiting = Rows(*(None if column is None else column[-1:].copy() for column in rows))  # type: ignore[arg-type]

    def finish(self, low: Any = None, high: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The columns of the dataset with its action bounds, and details about how episodes ended."""
        if self.waiting is None:
            raise DataError(f"Dataset {self.name!r} is empty; it needs at least one episode of two transitions.")
        self._write(self.waiting, last=True)
        if self.jumps > 0.5 * self.inside:
            raise DataError(
                f"Dataset {self.name!r}: {self.jumps / self.inside:.0%} of the next observations differ from the following "
                "row's observation; rows must be in time order (not shuffled) and both must be in the same units."
            )
        if self.truncated is None:
            raise DataError(
                f"Dataset {self.name!r} has only one-step episodes without next_observations; "
                "check that rows are in time order and truncations mark only the ends of episodes."
            )
        self.store.append("truncations", np.array([self.truncated]))
        bounds = self._bounds(low, high)
        for label, values in zip(("action_low", "action_high"), bounds, strict=True):
            self.store.append(label, values)
        details = {"last_episode_cut": True} if self.cut else {}
        return self.store.finish(), details | ({"discontinuities": self.jumps} if self.jumps else {})

    def _checked(self, rows: Rows) -> Rows:
        name, first = self.name, self.count
        rewards = as_numbers(name, "rewards", rows.rewards, 1, first)
        self.count += len(rewards)
        flags = [
            None if column is None else _flags(name, label, column)
            for label, column in (("terminals", rows.terminals), ("truncations", rows.truncations))
        ]
        following = rows.next_observations
        return Rows(
            as_numbers(name, "observations", rows.observations, 2, first),
            as_numbers(name, "actions", rows.actions, 2, first),
            rewards,
            flags[0],  # type: ignore[arg-type]
            flags[1],
            None if following is None else as_numbers(name, "next_observations", following, 2, first),
            rows.begins,
        )

    def _write(self, rows: Rows, *, last: bool) -> None:
        """Write all rows but the last one, or that one too if nothing follows it."""
        count = len(rows.rewards) - (not last)
        if not count:
            return
        terminals = rows.terminals[:count]
        ends = terminals.copy() if rows.truncations is None else terminals | rows.truncations[:count]
        if rows.begins is not None:
            ends[: len(rows.rewards) - 1] |= rows.begins[1:]
        if last:
            self.cut = not ends[-1]
        if rows.next_observations is not None:
            inside = np.flatnonzero(~ends[: len(rows.rewards) - 1])
            following = rows.next_observations[inside]
            jumps = inside[~np.isclose(following, rows.observations[inside + 1], rtol=1e-4, atol=1e-5).all(axis=1)]
            self.inside, self.jumps = self.inside + len(inside), self.jumps + len(jumps)
            ends[jumps] = True
        if last:
            ends[-1] = True
        truncated = ends & ~terminals
        first = np.concatenate([[self.begins], ends[:-1]])
        self.begins = bool(ends[-1])
        if rows.next_observations is None:  # a truncated step gives its observation to the step before it, and goes
            kept = ~truncated
            copies = 1 + (ends & terminals) - (truncated & first).astype(int)
        else:
            kept = np.ones(count, bool)
            copies = 1 + ends.astype(int)
        observations = rows.observations[:count][np.repeat(np.arange(count), copies)]
        if rows.next_observations is not None:
            observations[np.cumsum(copies)[ends] - 1] = rows.next_observations[:count][ends]
        steps = np.cumsum(kept)
        lengths = np.diff(steps[ends], prepend=-self.length)
        self.length = int(steps[-1] + self.length - lengths.sum())
        # A truncation belongs to the last step that is kept, which may have been the last one of the previous block.
        flags = np.zeros(steps[-1] + 1, bool)
        flags[0] = bool(self.truncated)
        flags[steps[ends][(lengths > 0) & truncated[ends]]] = True
        if last:
            self.cut = self.cut and bool(lengths[-1])  # else that episode vanishes
        if len(flags) > 1:
            self.store.append("truncations", flags[int(self.truncated is None) : -1])
        if len(flags) > 1 or self.truncated is not None:
            self.truncated = bool(flags[-1])
        self.store.append("observations", observations)
        self.store.append("actions", rows.actions[:count][kept])
        self.store.append("rewards", rows.rewards[:count][kept])
        self.store.append("terminals", terminals[kept])
        self.store.append("lengths", lengths[lengths > 0].astype(np.int64))

    def _bounds(self, low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
        if (low is None) != (high is None):
            raise DataError(f"Dataset {self.name!r}: give both action_low and action_high, or neither.")
        assert self.low is not None
        assert self.high is not None
        size = len(self.low)
        if low is None:
            if max(np.abs(self.low).max(), np.abs(self.high).max()) <= 1.0:
                return -np.ones(size, np.float32), np.ones(size, np.float32)
            return self.low, self.high
        try:
            with np.errstate(over="ignore"):
                bounds = [np.broadcast_to(np.asarray(value, np.float32), (size,)).copy() for value in (low, high)]
        except (ValueError, TypeError) as error:
            raise DataError(
                f"Dataset {self.name!r}: action bounds must be one number, or {size} numbers, one per dimension."
            ) from error
        return bounds[0], bounds[1]


def check_shapes(name: str, shapes: dict[str, tuple[int, ...]]) -> int:
    """The number of rows, after comparing the shapes of all columns with each other."""
    for label in ("observations", "actions", "rewards", "next_observations"):
        if label in shapes and len(shapes[label]) not in (1, 2):
            needed = 1 if label == "rewards" else 2
            raise DataError(
                f"Dataset {name!r}: {label} have {len(shapes[label])} dimensions where {needed} are needed."
            )
    count = shapes["rewards"][0]
    for label in ("terminals", "truncations"):
        if label in shapes and shapes[label] not in ((count,), (count, 1)):
            raise DataError(
                f"Dataset {name!r} has {count} rewards but {label} of shape {shapes[label]}; give one flag per transition."
            )
    for label in ("observations", "actions"):
        if shapes[label][0] != count:
            raise DataError(
                f"Dataset {name!r} has {count} rewards but {shapes[label][0]} {label}; give one row per transition."
            )
    if "next_observations" in shapes and shapes["next_observations"] != shapes["observations"]:
        raise DataError(
            f"Dataset {name!r} has next_observations of shape {shapes['next_observations']} but observations of shape "
            f"{shapes['observations']}; they must agree."
        )
    return count


def as_numbers(name: str, label: str, array: Any, dimensions: int, first: int = 0) -> np.ndarray:
    """Finite float32 numbers of that many dimensions; `first` is the number of the first row in messages."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiub":
        raise DataError(f"Dataset {name!r}: {label} are of type {array.dtype}, but numbers are needed.")
    if dimensions == 2 and array.ndim == 1:
        array = array[:, None]
    if dimensions == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != dimensions:
        raise DataError(f"Dataset {name!r}: {label} have {array.ndim} dimensions where {dimensions} are needed.")
    if 0 in array.shape[1:]:
        raise DataError(f"Dataset {name!r}: {label} have no columns; at least one is needed.")
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit in float32 is reported below
        converted = array.astype(np.float32, copy=False)
    if not np.isfinite(converted).all():
        row = int(np.argwhere(~np.isfinite(converted).reshape(len(converted), -1).all(axis=1))[0, 0])
        raise DataError(
            f"Dataset {name!r}: {label} hold NaN or infinity, first in row {first + row}; remove or repair such rows."
        )
    return converted


def _flags(name: str, label: str, array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    values = array.view(np.uint8) if array.dtype.kind == "b" else array  # a byte of a file may be no boolean
    if array.dtype.kind not in "fiub" or not ((values == 0) | (values == 1)).all():
        raise DataError(f"Dataset {name!r}: {label} must be flags (0 or 1).")
    return array.astype(bool)
