"""Statistics of scores over seeds and tasks: interquartile mean and bootstrap intervals (Agarwal et al. 2021)."""

import numpy as np
from scipy.stats import trim_mean

RESAMPLES = 2_000


def interquartile_mean(scores: np.ndarray) -> float:
    """Mean of the middle half of all scores."""
    return float(trim_mean(np.asarray(scores, np.float64).ravel(), 0.25))


def bootstrap_interval(scores: np.ndarray, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the interquartile mean.

    `scores` has shape (seeds,) or (seeds, tasks); seeds are resampled within each task (stratified).
    """
    table = np.asarray(scores, np.float64)
    table = table[:, None] if table.ndim == 1 else table
    random = np.random.default_rng(seed)
    seeds, tasks = table.shape
    choice = random.integers(0, seeds, size=(RESAMPLES, seeds, tasks))
    resampled = table[choice, np.arange(tasks)]
    means = trim_mean(resampled.reshape(RESAMPLES, -1), 0.25, axis=1)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return float(low), float(high)


def summary(scores: list[float]) -> dict[str, float | list[float] | int | None]:
    """Mean, standard deviation, interquartile mean and its 95 % interval over seeds; a single seed has no spread."""
    values = np.asarray(scores, np.float64)
    return {
        "seeds": len(scores),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(scores) > 1 else None,
        "iqm": interquartile_mean(values),
        "interval_95": list(bootstrap_interval(values)) if len(scores) > 1 else None,
    }
