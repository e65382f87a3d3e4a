"""Small datasets and distributions whose answers are known."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.diffusion import QBatch


def probe_dataset(noise: float, episodes: int = 400, length: int = 4, seed: int = 0, **metadata: Any) -> Dataset:
    """States drawn anew at each step, reward -(a - s / 2)^2: the best action is s / 2 and the best value 0 everywhere.

    The recorded action is s / 2 plus uniform noise of the given size, so that behaviour is near the best for small noise.
    """
    random = np.random.default_rng(seed)
    count = episodes * length
    states = random.uniform(-1, 1, (count, 1)).astype(np.float32)
    actions = np.clip(0.5 * states + random.uniform(-noise, noise, (count, 1)), -1, 1).astype(np.float32)
    rewards = -np.square(actions - 0.5 * states)[:, 0]
    terminals = (np.arange(count) % length) == length - 1
    details = {"name": "probe"} | metadata
    return from_arrays(states, actions, rewards, terminals, metadata=Metadata(**details))


class KnownDistribution(eqx.Module):
    """Windows from a known conditional distribution of Q over one state and one action dimension."""

    bimodal: bool = eqx.field(static=True)

    def moments(self, states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The true mean and standard deviation."""
        mean, std, share = self._shape(states, actions)
        if self.bimodal:  # two equal peaks at mean +- 0.4 with weights (share, 1 - share)
            centre = mean + 0.4 * (2 * share - 1)
            return centre, jnp.sqrt(std**2 + 0.4**2 * (1 - (2 * share - 1) ** 2))
        return mean, std

    def _shape(self, states: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        s, a = states[..., 0], actions[..., 0]
        mean = 0.2 * jnp.sin(2.0 * s) + 0.1 * a
        std = (0.05 if self.bimodal else 0.15) * jnp.exp(0.5 * a)
        return mean, std, jax.nn.sigmoid(1.5 * s)

    def sample(self, key: jax.Array, batch_size: int) -> QBatch:
        keys = jax.random.split(key, 4)
        states = jax.random.uniform(keys[0], (batch_size, 1), minval=-1.0, maxval=1.0)
        actions = jax.random.uniform(keys[1], (batch_size, 1), minval=-1.0, maxval=1.0)
        mean, std, share = self._shape(states, actions)
        values = mean + std * jax.random.normal(keys[2], (batch_size,))
        if self.bimodal:
            values = values + 0.4 * jnp.where(jax.random.uniform(keys[3], (batch_size,)) < share, 1.0, -1.0)
        return QBatch(states, actions, values)


def grid_points(count: int = 12) -> tuple[jax.Array, jax.Array]:
    """States and actions on a grid inside the support."""
    s, a = jnp.meshgrid(jnp.linspace(-0.9, 0.9, count), jnp.linspace(-0.9, 0.9, count))
    return s.reshape(-1, 1), a.reshape(-1, 1)
