"""The curves and maps of a dataset's card as small lists, so that a card can be drawn without the dataset."""

from typing import Any

import numpy as np

from qdq.data.episodes import Dataset

POINTS = 1_000
PIECES = 100
ACTION_BINS = 40


def curves(dataset: Dataset) -> dict[str, Any]:
    """What `qdq.report.data_card` draws beside the histograms."""
    return {
        "returns_in_order": _returns_in_order(dataset),
        "lengths": _lengths(dataset),
        "within_episode": _within_episode(dataset),
        "action_map": _action_map(dataset),
        "observation_ranges": _observation_ranges(dataset),
    }


def _spaced(count: int, limit: int) -> np.ndarray:
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(int))


def _returns_in_order(dataset: Dataset) -> dict[str, Any]:
    """Returns in the order of recording, and their moving average."""
    keep = _spaced(dataset.episodes, POINTS)
    window = max(1, dataset.episodes // 25)
    smooth = np.convolve(dataset.episode_returns, np.ones(window) / window, "valid")
    index = _spaced(len(smooth), 200)
    return {
        "episodes": keep.tolist(),
        "returns": dataset.episode_returns[keep].tolist(),
        "average_episodes": (index + (window - 1) / 2).tolist(),
        "average": smooth[index].tolist(),
    }


def _lengths(dataset: Dataset) -> dict[str, Any]:
    terminal = dataset.terminals[np.cumsum(dataset.lengths) - 1]
    edges = np.histogram_bin_edges(dataset.lengths, bins=min(40, max(1, int(np.ptp(dataset.lengths)) + 1)))
    return {
        "edges": edges.tolist(),
        "all": np.histogram(dataset.lengths, edges)[0].tolist(),
        "terminal": np.histogram(dataset.lengths[terminal], edges)[0].tolist(),
    }


def _within_episode(dataset: Dataset) -> dict[str, Any]:
    """Mean reward at each step of an episode, and the share of episodes that last so long."""
    longest = int(dataset.lengths.max())
    step = np.arange(dataset.transitions) - np.repeat(dataset.starts, dataset.lengths)
    alive = np.bincount(step, minlength=longest)
    reward = np.bincount(step, weights=dataset.rewards, minlength=longest) / alive
    pieces = np.array_split(np.arange(longest), min(longest, PIECES))
    return {
        "steps": [float(piece.mean()) for piece in pieces],
        "reward": [float(reward[piece].mean()) for piece in pieces],
        "running": [float(alive[piece].mean() / dataset.episodes) for piece in pieces],
    }


def _action_map(dataset: Dataset) -> list[list[float]]:
    """For each action dimension, how often each part of its range is used, relative to the most used."""
    scaled = (dataset.actions - dataset.action_low) / (dataset.action_high - dataset.action_low)
    counts = np.stack([np.histogram(column, bins=ACTION_BINS, range=(0.0, 1.0))[0] for column in scaled.T])
    return np.round(counts / counts.max(axis=1, keepdims=True), 4).tolist()


def _observation_ranges(dataset: Dataset) -> dict[str, Any]:
    """Quantiles of each observation column in standard deviations from its mean."""
    sample = dataset.observations[:: max(1, len(dataset.observations) // 50_000)].astype(np.float64)
    deviation = np.where(sample.std(axis=0) > 0, sample.std(axis=0), 1.0)
    levels = [0, 0.05, 0.5, 0.95, 1]
    values = np.quantile((sample - sample.mean(axis=0)) / deviation, levels, axis=0)
    names = ("lowest", "low_5", "median", "high_95", "highest")
    return {name: np.round(row, 4).tolist() for name, row in zip(names, values, strict=True)}
