"""The one type for data: whole episodes in flat arrays. Everything else reads it, writes it or trains on it.

An episode of n transitions has n + 1 observations, so the next observation of a transition is the row after its
own and is never stored twice. `terminals` marks the step at which the task itself ended (no value beyond it);
`truncations` marks a time limit or the end of the recording (the value goes on, unseen).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from qdq.data.references import Reference
from qdq.errors import DataError


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

    @cached_property
    def starts(self) -> np.ndarray:
        """The first transition of each episode."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of `observations` for each transition; its next observation is one row further."""
        return np.arange(self.transitions) + np.repeat(np.arange(self.episodes), self.lengths)

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
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts)

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
        for name in (
            "observations",
            "actions",
            "rewards",
            "terminals",
            "truncations",
            "lengths",
            "action_low",
            "action_high",
        ):
            array = np.ascontiguousarray(getattr(self, name))
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            digest.update(array.data if array.size else b"")
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
    metadata = metadata or Metadata()
    name = metadata.name
    observations = as_numbers(name, "observations", observations, 2)
    actions = as_numbers(name, "actions", actions, 2)
    rewards = as_numbers(name, "rewards", rewards, 1)
    count = len(rewards)
    terminals = _flags(name, "terminals", terminals, count)
    truncations = np.zeros(count, bool) if truncations is None else _flags(name, "truncations", truncations, count)
    for label, array in (("observations", observations), ("actions", actions)):
        if len(array) != count:
            raise DataError(
                f"Dataset {name!r} has {count} rewards but {len(array)} {label}; give one row per transition."
            )
    if count == 0:
        raise DataError(f"Dataset {name!r} is empty; it needs at least one episode of two transitions.")
    if next_observations is not None:
        next_observations = as_numbers(name, "next_observations", next_observations, 2)
        if next_observations.shape != observations.shape:
            raise DataError(
                f"Dataset {name!r} has next_observations of shape {next_observations.shape} but observations of shape "
                f"{observations.shape}; they must agree."
            )

    ends = terminals | truncations
    last_episode_cut = not ends[-1]
    discontinuities = 0
    if next_observations is not None:
        breaks = _breaks(name, observations, next_observations, ends)
        discontinuities = int(breaks.sum())
        ends = ends | breaks
    ends[-1] = True
    starts = np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])
    stops = np.flatnonzero(ends) + 1
    if next_observations is None:  # what follows the last step of a truncated episode is unknown: drop that step
        stops = np.where(terminals[stops - 1], stops, stops - 1)
        last_episode_cut = last_episode_cut and stops[-1] > starts[-1]  # else that episode vanishes
        starts, stops = starts[stops > starts], stops[stops > starts]
        if not len(starts):
            raise DataError(
                f"Dataset {name!r} has only one-step episodes without next_observations; "
                "check that rows are in time order and truncations mark only the ends of episodes."
            )
    lengths = stops - starts
    index = np.concatenate([np.arange(a, b) for a, b in zip(starts, stops, strict=True)])
    final = np.cumsum(lengths) - 1
    terminals = terminals[index]
    truncations = np.zeros(len(index), bool)
    truncations[final] = ~terminals[final]
    after = observations[index[final]] if next_observations is None else next_observations[index[final]]
    if next_observations is None:  # a truncated episode keeps its last observation as what follows
        cut = ~terminals[final]
        after[cut] = observations[stops[cut]]
    rows = np.insert(observations[index], final + 1, after, axis=0)
    low, high = _bounds(name, actions, action_low, action_high)
    details = dict(metadata.details)
    if last_episode_cut:
        details["last_episode_cut"] = True
    if discontinuities:
        details["discontinuities"] = discontinuities
    return Dataset(
        rows,
        actions[index],
        rewards[index],
        terminals,
        truncations,
        lengths,
        low,
        high,
        replace(metadata, details=details),
    )


def as_numbers(name: str, label: str, array: Any, dimensions: int) -> np.ndarray:
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
            f"Dataset {name!r}: {label} hold NaN or infinity, first in row {row}; remove or repair such rows."
        )
    return converted


def _flags(name: str, label: str, array: Any, count: int) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (count,):
        raise DataError(
            f"Dataset {name!r} has {count} rewards but {label} of shape {array.shape}; give one flag per transition."
        )
    if array.dtype.kind not in "fiub" or not np.isin(array, (0, 1)).all():
        raise DataError(f"Dataset {name!r}: {label} must be flags (0 or 1).")
    return array.astype(bool)


def _breaks(name: str, observations: np.ndarray, next_observations: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Steps inside an episode after which the recording jumps to an unrelated observation."""
    inside = np.flatnonzero(~ends[:-1])
    jump = ~np.isclose(next_observations[inside], observations[inside + 1], rtol=1e-4, atol=1e-5).all(axis=1)
    if len(inside) and jump.mean() > 0.5:
        raise DataError(
            f"Dataset {name!r}: {jump.mean():.0%} of the next observations differ from the following row's "
            "observation; rows must be in time order (not shuffled) and both must be in the same units."
        )
    breaks = np.zeros(len(ends), bool)
    breaks[inside[jump]] = True
    return breaks


def _bounds(name: str, actions: np.ndarray, low: Any, high: Any) -> tuple[np.ndarray, np.ndarray]:
    if (low is None) != (high is None):
        raise DataError(f"Dataset {name!r}: give both action_low and action_high, or neither.")
    size = actions.shape[1]
    if low is None:
        if np.abs(actions).max() <= 1.0:
            return -np.ones(size, np.float32), np.ones(size, np.float32)
        return actions.min(axis=0), actions.max(axis=0)
    try:
        with np.errstate(over="ignore"):
            bounds = [np.broadcast_to(np.asarray(value, np.float32), (size,)).copy() for value in (low, high)]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Dataset {name!r}: action bounds must be one number, or {size} numbers, one per dimension."
        ) from error
    return bounds[0], bounds[1]


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
    slack = 1e-4 * (dataset.action_high - dataset.action_low)
    outside = (dataset.actions < dataset.action_low - slack) | (dataset.actions > dataset.action_high + slack)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise DataError(
            f"Dataset {name!r}: action {dataset.actions[row, column]:.6g} in row {row}, dimension {column} is "
            f"outside the declared bounds [{dataset.action_low[column]:.6g}, {dataset.action_high[column]:.6g}]; "
            "correct the bounds or the data."
        )
    if dataset.lengths.max() < 2:
        raise DataError(
            f"Dataset {name!r} has only one-step episodes; QDQ learns from what follows an action, so keep rows "
            "in time order and mark only the ends of episodes as terminal or truncated."
        )
