"""How much of the space of states and actions a dataset has seen, from a fixed sample of it."""

from typing import Any

import numpy as np

from qdq.data.episodes import Dataset

SAMPLE = 50_000
NEIGHBOURS = 4_000
QUERIES = 500
CELLS = 40


def coverage(dataset: Dataset) -> dict[str, Any]:
    """Measures of coverage, and a map of the data along its two main directions.

    `effective_dimensions` is the participation ratio of the principal components: 1 is a line, the number of columns is
    a ball. `neighbour_distance` compares the distance of a state-action pair to its nearest neighbour (in another
    episode, where there are several) with that of two random pairs: near 0 is dense or repetitive data, near 1 is
    scattered. `action_spread` is the standard deviation of the actions over that of uniform actions.
    """
    random = np.random.default_rng(0)
    size = min(SAMPLE, dataset.transitions)
    index = np.sort(random.choice(dataset.transitions, size, replace=False))
    states, actions = _standard(dataset.observations[dataset.rows[index]]), _standard(dataset.actions[index])
    pairs = np.concatenate([states, actions], axis=1)
    uniform = (dataset.action_high - dataset.action_low) / np.sqrt(12.0)
    projected = pairs @ _main_directions(pairs)
    counts, x_edges, y_edges = np.histogram2d(
        projected[:, 0], projected[:, 1], bins=CELLS, range=_robust_range(projected)
    )
    return {
        "effective_state_dimensions": _participation(states),
        "effective_action_dimensions": _participation(actions),
        "neighbour_distance": _neighbour_distance(dataset, index, pairs, random),
        "action_spread": float(np.mean(dataset.actions[index].std(axis=0) / uniform)),
        "occupied_cells": float((counts > 0).mean()),
        "map": {"counts": counts.astype(int).tolist(), "x": x_edges.tolist(), "y": y_edges.tolist()},
    }


def _standard(values: np.ndarray) -> np.ndarray:
    """Zero mean and unit deviation; constant columns stay zero."""
    values = values.astype(np.float64)
    deviation = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)


def _participation(values: np.ndarray) -> float:
    spectrum = np.clip(np.linalg.eigvalsh(np.atleast_2d(values.T @ values / len(values))), 0.0, None)
    return float(spectrum.sum() ** 2 / np.sum(spectrum**2)) if spectrum.any() else 0.0


def _main_directions(values: np.ndarray) -> np.ndarray:
    """The two directions of largest variance, as columns."""
    _, vectors = np.linalg.eigh(values.T @ values / len(values))
    return vectors[:, ::-1][:, :2]


def _robust_range(projected: np.ndarray) -> list[tuple[float, float]]:
    """The bulk of both coordinates, so that one outlier does not shrink the map."""
    low, high = np.quantile(projected, [0.002, 0.998], axis=0)
    return [(float(a), float(b) if b > a else float(a) + 1.0) for a, b in zip(low, high, strict=True)]


def _neighbour_distance(
    dataset: Dataset, index: np.ndarray, pairs: np.ndarray, random: np.random.Generator
) -> float | None:
    """Median distance to the nearest pair over the median distance of random pairs."""
    chosen = random.permutation(len(index))
    queries, others = chosen[: min(QUERIES, len(chosen) // 2)], chosen[len(chosen) // 2 :][:NEIGHBOURS]
    if not len(queries):
        return None
    distances = np.sqrt(
        np.clip(
            (pairs[queries] ** 2).sum(1)[:, None] + (pairs[others] ** 2).sum(1) - 2 * pairs[queries] @ pairs[others].T,
            0.0,
            None,
        )
    )
    typical = float(np.median(distances))
    if dataset.episodes > 1:  # a neighbour in time is no evidence of coverage
        episode = np.searchsorted(dataset.starts, index, side="right")
        distances = np.where(episode[queries][:, None] == episode[others], np.inf, distances)
    nearest = distances.min(axis=1)
    nearest = nearest[np.isfinite(nearest)]
    return float(np.median(nearest) / typical) if typical > 0 and len(nearest) else None
