"""The one type for data: whole episodes in flat arrays. Everything else reads it, writes it or trains on it.

An episode of n transitions has n + 1 observations, so the next observation of a transition is the row after its
own and is never stored twice. `terminals` marks the step at which the task itself ended (no value beyond it);
`truncations` marks a time limit or the end of the recording (the value goes on, unseen).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from qdq.data.blocks import blocks_of, release, rows_per_block, spans
from qdq.data.references import Reference
from qdq.data.rows import ArrayStore, Assembler, Rows, Store, check_shapes
from qdq.errors import DataError

COLUMNS = (
    "observations",
    "actions",
    "rewards",
    "terminals",
    "truncations",
    "lengths",
    "action_low",
    "action_high",
)


@dataclass(frozen=True)
class Metadata:
    """What is known about a dataset beside its arrays."""

    name: str = "arrays"  # how the dataset is called in results
    source: str = "arrays"  # the reader it came from
    environment_id: str | None = None  # Gymnasium id for evaluation; none means no simulator
    environment_options: dict[str, Any] = field(default_factory=dict)  # keyword arguments for gymnasium.make
    task: str | None = None  # the paper's task, such as hopper-medium, if it is one
    reference: Reference | None = None  # the two returns that define scores 0 and 100
    details: dict[str, Any] = field(default_factory=dict)  # how it was made; free, JSON


class Part(NamedTuple):
    """Consecutive transitions of one episode."""

    episode: int  # its number
    begin: int  # its first transition
    start: int  # the first transition of the part
    stop: int  # the one after the last
    end: int  # the one after the last of the episode


@dataclass(frozen=True, eq=False)
class Dataset:
    """Validated episodes. Build one with `from_arrays` or a reader."""

    observations: np.ndarray  # (transitions + episodes, observation size), float32
    actions: np.ndarray  # (transitions, action size), float32, in their own units
    rewards: np.ndarray  # (transitions,), float32
    terminals: np.ndarray  # (transitions,), bool
    truncations: np.ndarray  # (transitions,), bool
    lengths: np.ndarray  # (episodes,), int64: transitions in each episode
    action_low: np.ndarray  # (action size,), float32: the declared bounds
    action_high: np.ndarray
    metadata: Metadata = Metadata()

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def transitions(self) -> int:
        return len(self.rewards)

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def observation_size(self) -> int:
        return self.observations.shape[1]

    @property
    def action_size(self) -> int:
        return self.actions.shape[1]

    @property
    def nbytes(self) -> int:
        """The bytes of all columns, in memory or on disk."""
        return sum(getattr(self, name).nbytes for name in COLUMNS)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first transition of each episode."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of `observations` for each transition; its next observation is one row further."""
        return np.arange(self.transitions) + np.repeat(np.arange(self.episodes), self.lengths)

    def rows_of(self, index: np.ndarray) -> np.ndarray:
        """The rows of `observations` for some transitions, given in ascending order, without an array over all of them."""
        rows, first, start = np.array(index, np.int64), 0, 0
        for lengths in blocks_of(self.lengths):
            ends = start + np.cumsum(lengths)
            inside = slice(np.searchsorted(index, start), np.searchsorted(index, ends[-1]))
            rows[inside] += first + np.searchsorted(ends, index[inside], side="right")
            first, start = first + len(lengths), ends[-1]
        return rows

    def parts(self, longest: int) -> Iterator[Part]:
        """Every episode in order; one of more than `longest` transitions comes in several parts."""
        episode, begin = 0, 0
        for lengths in blocks_of(self.lengths):
            for length in lengths.tolist():
                for span in spans(length, longest):
                    yield Part(episode, begin, begin + span.start, begin + span.stop, begin + length)
                episode, begin = episode + 1, begin + length

    @property
    def current_observations(self) -> np.ndarray:
        """The observation of each transition, as a new array."""
        return self.observations[self.rows]

    @property
    def next_observations(self) -> np.ndarray:
        """The observation after each transition, as a new array."""
        return self.observations[self.rows + 1]

    @cached_property
    def episode_returns(self) -> np.ndarray:
        """Undiscounted sum of rewards of each episode."""
        returns, starts = np.zeros(self.episodes), self.starts
        for span in spans(self.transitions, rows_per_block(8)):
            touched = slice(
                np.searchsorted(starts, span.start, side="right") - 1, np.searchsorted(starts, span.stop, side="left")
            )
            cuts = np.maximum(starts[touched] - span.start, 0)
            returns[touched] += np.add.reduceat(self.rewards[span].astype(np.float64), cuts)
            release(self.rewards)
        return returns

    @property
    def complete(self) -> np.ndarray:
        """Which episodes ended by a terminal or a time limit, rather than by the end of the recording."""
        complete = np.ones(self.episodes, bool)
        if self.metadata.details.get("last_episode_cut", False):
            complete[-1] = self.episodes == 1
        return complete

    @property
    def behaviour_score(self) -> float | None:
        """Mean score (0-100) of the complete episodes, where a reference is known."""
        if self.metadata.reference is None:
            return None
        return float(np.mean(self.metadata.reference.score(self.episode_returns[self.complete])))

    @cached_property
    def sha256(self) -> str:
        """Hash of the arrays: the same data in another file format has the same hash."""
        digest = hashlib.sha256()
        for name in COLUMNS:
            array = getattr(self, name)
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            for block in blocks_of(array):
                digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()

    def select(self, episodes: np.ndarray) -> "Dataset":
        """The given episodes, in the given order, as a dataset of their own."""
        episodes = np.asarray(episodes, np.int64)
        if not len(episodes):
            raise DataError(f"No episode of dataset {self.name!r} was selected; select at least one.")
        details = dict(self.metadata.details)
        if details.pop("last_episode_cut", False) and episodes[-1] == self.episodes - 1:
            details["last_episode_cut"] = True
        lengths = self.lengths[episodes]
        first = (self.starts + np.arange(self.episodes))[episodes]
        index = np.concatenate([s + np.arange(n) for s, n in zip(self.starts[episodes], lengths, strict=True)])
        rows = np.concatenate([s + np.arange(n + 1) for s, n in zip(first, lengths, strict=True)])
        return replace(
            self,
            observations=self.observations[rows],
            actions=self.actions[index],
            rewards=self.rewards[index],
            terminals=self.terminals[index],
            truncations=self.truncations[index],
            lengths=lengths,
            metadata=replace(self.metadata, details=details),
        )


def from_arrays(
    observations: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminals: np.ndarray,
    truncations: np.ndarray | None = None,
    next_observations: np.ndarray | None = None,
    *,
    action_low: np.ndarray | Sequence[float] | float | None = None,
    action_high: np.ndarray | Sequence[float] | float | None = None,
    metadata: Metadata | None = None,
) -> Dataset:
    """A dataset from one row per transition, in time order.

    An episode ends at a terminal, at a truncation, where the next observation is not the following row's observation
    (only when `next_observations` is given), and at the last row. Without `next_observations` the last step of a
    truncated episode is dropped, because what followed it was not recorded.
    Bounds of the actions default to [-1, 1] where the actions fit, else to their range in the data.
    """
    arrays = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "terminals": terminals,
        "truncations": truncations,
        "next_observations": next_observations,
    }
    return from_columns(arrays, action_low, action_high, metadata or Metadata())


def from_columns(
    arrays: dict[str, Any], action_low: Any, action_high: Any, metadata: Metadata, store: Store | None = None
) -> Dataset:
    """The same for columns that may still be in their file; they are read in blocks, in order.

    `store` is where the columns of the dataset grow: in memory by default.
    """
    columns = {label: _column(array) for label, array in arrays.items() if array is not None}
    count = check_shapes(metadata.name, {label: column.shape for label, column in columns.items()})
    row_bytes = sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in columns.values())
    assembler = Assembler(metadata.name, store or ArrayStore())
    for span in spans(count, rows_per_block(row_bytes)):
        assembler.add(Rows(**{label: column[span] for label, column in columns.items()}))
    return assemble(assembler, action_low, action_high, metadata)


def assemble(assembler: Assembler, action_low: Any, action_high: Any, metadata: Metadata) -> Dataset:
    """The dataset of all rows that an assembler has taken."""
    columns, details = assembler.finish(action_low, action_high)
    return Dataset(**columns, metadata=replace(metadata, details={**metadata.details, **details}))


def _column(array: Any) -> Any:
    """Something with a shape, a type and slices: an array, or a column that is still in its file."""
    column = array if hasattr(array, "shape") and hasattr(array, "dtype") else np.asarray(array)
    return column if column.ndim else np.reshape(column, (1,))


def _validate(dataset: Dataset) -> None:
    name = dataset.name
    transitions, episodes = len(dataset.rewards), len(dataset.lengths)
    shapes = {
        "observations": (transitions + episodes, *dataset.observations.shape[1:2]),
        "actions": (transitions, *dataset.actions.shape[1:2]),
        "terminals": (transitions,),
        "truncations": (transitions,),
        "action_low": dataset.actions.shape[1:],
        "action_high": dataset.actions.shape[1:],
    }
    for label, shape in shapes.items():
        if getattr(dataset, label).shape != shape:
            raise DataError(
                f"Dataset {name!r}: {label} have shape {getattr(dataset, label).shape} where {shape} is needed."
            )
    if not episodes or dataset.lengths.min() < 1 or dataset.lengths.sum() != transitions:
        raise DataError(
            f"Dataset {name!r}: the lengths of its episodes do not add up to its {transitions} transitions."
        )
    if not np.isfinite(dataset.action_low).all() or not np.isfinite(dataset.action_high).all():
        raise DataError(
            f"Dataset {name!r}: the declared action bounds are not finite; declare the range the actuators have."
        )
    if (dataset.action_high <= dataset.action_low).any():
        column = int(np.argmax(dataset.action_high <= dataset.action_low))
        raise DataError(
            f"Dataset {name!r}: action dimension {column} has an empty range; "
            "declare bounds with low < high, or drop it."
        )
    _validate_actions(dataset)
    _validate_ends(dataset)
    if dataset.lengths.max() < 2:
        raise DataError(
            f"Dataset {name!r} has only one-step episodes; QDQ learns from what follows an action, so keep rows "
            "in time order and mark only the ends of episodes as terminal or truncated."
        )


def _validate_actions(dataset: Dataset) -> None:
    slack, row = 1e-4 * (dataset.action_high - dataset.action_low), 0
    for actions in blocks_of(dataset.actions):
        outside = (actions < dataset.action_low - slack) | (actions > dataset.action_high + slack)
        if outside.any():
            i, column = np.argwhere(outside)[0]
            raise DataError(
                f"Dataset {dataset.name!r}: action {actions[i, column]:.6g} in row {row + i}, dimension {column} is "
                f"outside the declared bounds [{dataset.action_low[column]:.6g}, {dataset.action_high[column]:.6g}]; "
                "correct the bounds or the data."
            )
        row += len(actions)


def _validate_ends(dataset: Dataset) -> None:
    """Every episode ends in exactly one of terminal and truncation, and neither is found elsewhere."""
    episode, start = 0, 0
    for span in spans(dataset.transitions, rows_per_block(8)):
        terminals, truncations = dataset.terminals[span], dataset.truncations[span]
        ends = np.flatnonzero(terminals | truncations)
        stops = start + np.cumsum(dataset.lengths[episode : episode + len(ends)])
        if (terminals & truncations).any() or not np.array_equal(span.start + ends + 1, stops):
            raise DataError(
                f"Dataset {dataset.name!r}: the terminals and truncations do not mark the ends of its episodes, one each; "
                "write the dataset again."
            )
        if len(stops):
            episode, start = episode + len(stops), int(stops[-1])
        release(dataset.terminals, dataset.truncations, dataset.lengths)
