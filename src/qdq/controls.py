"""What may stand in the place of H: controls that could prove the method wrong.

If a policy learns as well with a random number as with the spread of the Q distribution, that spread is not what made it
learn. `qdq ablate DATASET --over uncertainty` runs them side by side.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

Signal = Literal["q_distribution", "behaviour", "random", "constant", "ensemble", "nearest"]
RECORDED_PAIRS = 4096  # recorded actions among which the nearest one is looked for


class RecordedPairs(eqx.Module):
    """Recorded states and actions, spread over the data, in units of their own standard deviations."""

    pairs: Array
    scale: Array

    @classmethod
    def of(cls, observations: Array, actions: Array) -> "RecordedPairs":
        """From rows of the data; a column that never changes counts as it is."""
        pairs = jnp.concatenate([observations, actions], axis=-1)
        spread = jnp.std(pairs, axis=0)
        scale = 1.0 / jnp.where(spread > 1e-6, spread, 1.0)
        return cls(pairs * scale, scale)

    def distance(self, observations: Array, actions: Array) -> Array:
        """From each (s, a) to the nearest recorded one."""
        asked = jnp.concatenate([observations, actions], axis=-1) * self.scale
        squares = jnp.sum(asked**2, -1)[:, None] + jnp.sum(self.pairs**2, -1) - 2.0 * asked @ self.pairs.T
        return jnp.sqrt(jnp.maximum(jnp.min(squares, axis=-1), 1e-12))  # the root has no slope at zero


def stand_in(
    signal: Signal, q: Array, observations: Array, actions: Array, recorded: RecordedPairs | None, key: Array
) -> Array:
    """One number for each action where H would be; `q` holds the critics' values, one row for each critic."""
    if signal == "random":
        return jnp.exp(jax.random.normal(key, q.shape[1:]))
    if signal == "constant":
        return jnp.ones(q.shape[1:])
    if signal == "ensemble":
        return jnp.sqrt(jnp.var(q, axis=0) + 1e-12)  # the root has no slope at zero
    assert signal == "nearest", signal
    assert recorded is not None, "the nearest recorded action needs recorded actions"
    return recorded.distance(observations, actions)
