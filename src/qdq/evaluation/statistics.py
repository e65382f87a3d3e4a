"""Statistics of scores over seeds and tasks, as Agarwal et al. (2021) recommend for few seeds.

A method's `scores` are one array of seeds per task, of any length each; a single array stands for a single task. Every
interval is a percentile bootstrap in which seeds are drawn anew within their own task (stratified), never across tasks.
A task with a single seed shows no spread at all, so there the interval is None rather than a false point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import trim_mean

RESAMPLES = 2_000

Scores = Sequence[np.ndarray] | np.ndarray
Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Profile:
    """The share of runs above each threshold, with a pointwise 95 % band where there are seeds enough."""

    thresholds: np.ndarray
    share: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


def by_task(scores: Any) -> list[np.ndarray]:
    """Scores as one array of seeds per task; a two-dimensional array has the shape (seeds, tasks)."""
    if isinstance(scores, np.ndarray) and scores.ndim == 2:
        return [column.astype(np.float64) for column in scores.T]
    if len(scores) and np.ndim(scores[0]) == 0:
        return [np.asarray(scores, np.float64)]
    return [np.asarray(task, np.float64) for task in scores]


def interquartile_mean(scores: Any) -> float:
    """Mean of the middle half of all scores, of all tasks together."""
    return float(trim_mean(np.concatenate(by_task(scores)), 0.25))


def resample(tasks: list[np.ndarray], random: np.random.Generator, resamples: int = RESAMPLES) -> list[np.ndarray]:
    """Seeds drawn with replacement within each task: arrays of shape (resamples, seeds of the task)."""
    return [task[random.integers(0, len(task), size=(resamples, len(task)))] for task in tasks]


def _percentiles(draws: np.ndarray, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(draws, [tail, 100.0 - tail], axis=0)
    return low, high


def _has_spread(*methods: list[np.ndarray]) -> bool:
    return all(len(task) > 1 for tasks in methods for task in tasks)


def bootstrap_interval(scores: Any, confidence: float = 0.95, seed: int = 0) -> Interval | None:
    """Stratified bootstrap interval of the interquartile mean."""
    return _interval(by_task(scores), lambda pool: trim_mean(pool, 0.25, axis=1), confidence, seed)


def _interval(
    tasks: list[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray], confidence: float, seed: int
) -> Interval | None:
    if not _has_spread(tasks):
        return None
    pool = np.concatenate(resample(tasks, np.random.default_rng(seed)), axis=1)
    low, high = _percentiles(statistic(pool), confidence)
    return float(low), float(high)


def performance_profile(scores: Any, thresholds: np.ndarray, confidence: float = 0.95, seed: int = 0) -> Profile:
    """Share of runs whose score exceeds each threshold; every task counts the same, however many seeds it has."""
    tasks, thresholds = by_task(scores), np.asarray(thresholds, np.float64)

    def share(seeds: np.ndarray) -> np.ndarray:
        """The share above each threshold along the last axis: shape (..., thresholds)."""
        return np.stack([(seeds > threshold).mean(axis=-1) for threshold in thresholds], axis=-1)

    estimate = np.mean([share(task) for task in tasks], axis=0)
    if not _has_spread(tasks):
        return Profile(thresholds, estimate, None, None)
    draws = np.mean([share(task) for task in resample(tasks, np.random.default_rng(seed))], axis=0)
    low, high = _percentiles(draws, confidence)
    return Profile(thresholds, estimate, low, high)


def _share_of_wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Over all pairs of seeds, the share in which `first` is larger; a tie counts one half."""
    pairs = first[..., :, None] - second[..., None, :]
    return np.mean((pairs > 0) + 0.5 * (pairs == 0), axis=(-2, -1))


def probability_of_improvement(
    first: Any, second: Any, confidence: float = 0.95, seed: int = 0
) -> tuple[float, Interval | None]:
    """The chance that a run of the first method beats one of the second on the same task, averaged over tasks."""
    ours, theirs = by_task(first), by_task(second)
    if len(ours) != len(theirs):
        raise ValueError(f"both methods need the same tasks, but have {len(ours)} and {len(theirs)}")
    estimate = float(np.mean([_share_of_wins(a, b) for a, b in zip(ours, theirs, strict=True)]))
    if not _has_spread(ours, theirs):
        return estimate, None
    random = np.random.default_rng(seed)
    draws = zip(resample(ours, random), resample(theirs, random), strict=True)
    low, high = _percentiles(np.mean([_share_of_wins(a, b) for a, b in draws], axis=0), confidence)
    return estimate, (float(low), float(high))


def summary(scores: Any) -> dict[str, float | list[float] | int | None]:
    """Mean, standard deviation, interquartile mean and its 95 % interval over seeds; a single seed has no spread."""
    values = np.asarray(scores, np.float64)
    interval = bootstrap_interval(values)
    return {
        "seeds": len(values),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "iqm": interquartile_mean(values),
        "interval_95": list(interval) if interval else None,
    }
