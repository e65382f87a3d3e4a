"""Measures of an uncertainty on plain arrays: how well it ranks, and how well a distribution forecasts.

A distribution is given by equally probable values, shape (count, rows): samples of it, or its quantiles at the levels
(i + 1/2) / count.
"""

from typing import Any

import numpy as np
from scipy.stats import rankdata

COVERAGES = (0.5, 0.8, 0.95)
PIT_BINS = 20
RECORDED_QUANTILE = 0.95  # the paper's
BETAS = (0.5, RECORDED_QUANTILE)  # what a suggested beta is held between


def auroc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """The chance that a positive is larger than a negative, a tie counting one half."""
    ranks = rankdata(np.concatenate([negatives, positives]))[len(negatives) :]
    larger = ranks.sum() - 0.5 * len(positives) * (len(positives) + 1)
    return float(larger / (len(positives) * len(negatives)))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Rank correlation; NaN where one of the two is constant."""
    ranks = [rankdata(values) - 0.5 * (len(values) + 1) for values in (first, second)]
    scale = np.sqrt(np.sum(ranks[0] ** 2) * np.sum(ranks[1] ** 2))
    return float(np.sum(ranks[0] * ranks[1]) / scale) if scale else float("nan")


def crps(quantiles: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """The continuous ranked probability score of each observed value: E|X - y| - E|X - X'| / 2, in the values' units.

    `quantiles` are equally probable values, shape (count, rows) or (count, 1): samples, or quantiles at (i + 1/2) / count.
    In order they give the same number as twice the mean pinball loss at these levels, without all pairs.
    """
    ordered = np.sort(np.asarray(quantiles, np.float64), axis=0)
    levels = ((np.arange(len(ordered)) + 0.5) / len(ordered))[:, None]
    errors = np.asarray(observed, np.float64) - ordered
    return 2.0 * np.mean(np.maximum(levels * errors, (levels - 1.0) * errors), axis=0)


def coverage(quantiles: np.ndarray, observed: np.ndarray, share: float) -> float:
    """How often the observed value lies in the central interval that should hold `share` of them."""
    tails = [0.5 * (1.0 - share), 0.5 * (1.0 + share)]
    low, high = np.quantile(quantiles, tails, axis=0, method="hazen")  # value i is the quantile at (i + 1/2) / count
    return float(np.mean((low <= observed) & (observed <= high)))


def pit(quantiles: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """The probability integral transform: at which level of its distribution each observed value lies.

    Between two quantiles by interpolation; the middle of their levels where several quantiles equal the observed value.
    """
    ordered, count = np.sort(np.asarray(quantiles, np.float64), axis=0), len(quantiles)
    below, up_to = np.sum(ordered < observed, axis=0), np.sum(ordered <= observed, axis=0)
    columns = np.arange(ordered.shape[1])
    left, right = ordered[np.maximum(below - 1, 0), columns], ordered[np.minimum(below, count - 1), columns]
    part = (observed - left) / np.where(right > left, right - left, 1.0)
    levels = np.where(up_to > below, 0.5 * (below + up_to), below - 0.5 + part) / count
    return np.where(up_to == 0, 0.25 / count, np.where(below == count, 1.0 - 0.25 / count, levels))


def share_within(values: np.ndarray) -> float:
    """The share of the variance that lies within rows, of shape (rows, columns); NaN where nothing varies."""
    within = float(np.mean(np.var(values, axis=1, ddof=1)))
    between = max(0.0, float(np.var(values.mean(axis=1), ddof=1)) - within / values.shape[1])
    return within / (within + between) if within + between > 0 else float("nan")


def border_quantile(recorded: np.ndarray, random: np.ndarray) -> float:
    """The paper's check: which quantile of H over random actions the 95 % quantile over recorded ones is."""
    return float(np.mean(random <= np.quantile(recorded, RECORDED_QUANTILE)))


def starting_beta(quantile: float) -> float:
    """The beta to begin tuning with, from `border_quantile`.

    The paper compares the two distributions of H and starts from the quantile of random actions at which 95 % of the
    recorded ones are passed (its 75 % gives 0.75 or 0.80). Without any difference that is 0.95, the upper end here; the
    lower end is ours, because beta also weighs every value off the risk set.
    """
    return round(min(max(quantile, BETAS[0]), BETAS[1]), 2)


def calibration(quantiles: np.ndarray, observed: np.ndarray, marginal: np.ndarray) -> dict[str, Any]:
    """Coverage, CRPS, its skill over always forecasting the marginal distribution, and the histogram of the PIT.

    `quantiles` has the shape (count, rows) and `marginal` (count, 1); both are equally probable values.
    """
    score, reference = float(np.mean(crps(quantiles, observed))), float(np.mean(crps(marginal, observed)))
    heights, _ = np.histogram(pit(quantiles, observed), np.linspace(0.0, 1.0, PIT_BINS + 1))
    return {
        "windows": len(observed),
        "coverage": {f"{share:.0%}": coverage(quantiles, observed, share) for share in COVERAGES},
        "crps": score,
        "crps_marginal": reference,
        "crps_skill": 1.0 - score / reference if reference > 0 else float("nan"),
        "pit_histogram": (heights / len(observed)).tolist(),
    }


def describe_actions(kind: str, other_policy: str | None = None) -> str:
    """A kind of actions in `quality.json`, in words."""
    if kind.startswith("noise_"):
        return f"recorded actions with noise up to {kind.removeprefix('noise_')}"
    if kind == "other_policy":
        return f"actions of {other_policy}"
    known = {
        "random": "random actions",
        "policy": "actions of the trained policy",
        "recorded": "recorded actions (false alarms)",
    }
    return known.get(kind, kind)


def describe_correlation(checkpoints: dict[str, Any]) -> str:
    """How the signals of kept policies follow their distance to the data, in one sentence."""
    found = checkpoints["spearman"]
    parts = [
        f"of {label} {'undefined' if found[key] is None else f'{found[key]:.2f}'}"
        for key, label in (("surprise", "the mean surprise"), ("uncertainty", "the mean H"))
        if checkpoints["policies"] and checkpoints["policies"][0][key] is not None
    ]
    return (
        f"Rank correlation with the distance to the nearest recorded pair, over {len(checkpoints['policies'])} kept "
        f"policies: {', '.join(parts) or 'not measured'}."
    )
