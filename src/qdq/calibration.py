"""Calibration of a learned Q distribution on episodes that it was not learned from (split-conformal, over levels).

A model that has memorised its data is too narrow for new episodes. Some episodes are therefore kept from learning, and
for each of their windows we ask at which z of the model its return lies. If the model were calibrated, these z would be
standard normal. The `LevelMap` sends standard-normal z to the z of the model with the same rank among them, so that a
central interval of any level holds its share of the returns of episodes like those that were kept.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtr, ndtri

from qdq.errors import DataError
from qdq.q_distribution import LARGEST_Z, LevelMap, QDistribution

KNOTS = ndtri(np.array([0.005, 0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975, 0.995]))
GRID = np.linspace(-LARGEST_Z, LARGEST_Z, 145)
FEWEST_EPISODES = 8  # with fewer the map is noise
MOST_EPISODES = 1_000  # more do not make the map any better, and are missed in learning
WINDOWS = 8_192  # evenly spaced over those episodes
BLOCK = 128  # windows that are computed together


def choose_episodes(episodes: int, share: float) -> np.ndarray:
    """Which of the episodes are kept from learning, in order; none of few."""
    count = min(round(share * episodes), MOST_EPISODES)
    if count < FEWEST_EPISODES:
        return np.zeros(0, np.int64)
    return np.sort(np.random.default_rng([episodes, count]).permutation(episodes)[:count])


@eqx.filter_jit
def _values(distribution: QDistribution, observations: Array, actions: Array, z: Array) -> Array:
    return distribution.values(observations, actions, jnp.broadcast_to(z[:, None], (len(z), len(observations))))


def positions(distribution: QDistribution, observations: Array, actions: Array, values: np.ndarray) -> np.ndarray:
    """The z at which each value lies in its distribution, at most LARGEST_Z in size."""
    found = np.empty(len(values))
    for first in range(0, len(values), BLOCK):
        rows = slice(first, first + BLOCK)
        grid = np.asarray(_values(distribution, observations[rows], actions[rows], jnp.asarray(GRID, jnp.float32)))
        for row, curve in enumerate(np.sort(grid, axis=0).T, first):
            found[row] = np.interp(values[row], curve, GRID)
    return found


def inside(positions: np.ndarray, share: float) -> float:
    """How many of the positions lie in the central interval of this share."""
    return float(np.mean(np.abs(positions) <= ndtri(0.5 + 0.5 * share)))


def fit(positions: np.ndarray) -> LevelMap:
    """The map that makes these positions standard normal: from KNOTS to the quantiles of the positions."""
    mapped = np.quantile(positions, ndtr(KNOTS), method="hazen")
    return LevelMap(jnp.asarray(KNOTS, jnp.float32), jnp.asarray(mapped, jnp.float32))


def to_json(levels: LevelMap) -> dict[str, list[float]]:
    """A map as it is saved."""
    return {"z": np.asarray(levels.z).tolist(), "mapped": np.asarray(levels.mapped).tolist()}


def from_json(content: Any) -> LevelMap:
    """A saved map, or an error if it is none."""
    problem = DataError("The saved calibration of the Q distribution is damaged; copy the run again or train it anew.")
    try:
        z, mapped = (np.asarray(content[name], np.float32) for name in ("z", "mapped"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise problem from error
    if z.ndim != 1 or z.shape != mapped.shape or len(z) < 2 or not np.isfinite(z).all():
        raise problem
    if not (np.abs(mapped) <= LARGEST_Z).all() or (np.diff(z) <= 0).any() or (np.diff(mapped) < 0).any():
        raise problem
    return LevelMap(jnp.asarray(z), jnp.asarray(mapped))
