"""Small datasets and distributions whose answers are known."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.diffusion import QBatch


def probe_dataset(
    noise: float, episodes: int = 800, seed: int = 0, bias: float = 0.0, name: str = "probe", **metadata: Any
) -> Dataset:
    """Two steps an episode, observations (s, step) with s drawn anew each time, reward 1 - (a - s / 2)^2.

    The best action is s / 2 everywhere, and its value is 1 at the last step and 1 + discount at the first. The recorded
    action is s / 2 plus `bias` plus uniform noise of the given size: near the best for small noise and no bias.
    """
    random = np.random.default_rng(seed)
    count = 2 * episodes
    s = random.uniform(-1, 1, count)
    step = np.arange(count) % 2
    observations = np.stack([s, step], axis=1).astype(np.float32)
    actions = np.clip(0.5 * s + bias + random.uniform(-noise, noise, count), -1, 1)[:, None].astype(np.float32)
    rewards = 1.0 - np.square(actions[:, 0] - 0.5 * s)
    return from_arrays(observations, actions, rewards, step == 1, metadata=Metadata(name, **metadata))


def uneven_probe(episodes: int = 800, seed: int = 0, name: str = "uneven") -> Dataset:
    """The same two steps, but where s > 0 data is sparse (one state in ten) and its rewards are noisy (std 0.3)."""
    random = np.random.default_rng(seed)
    count = 2 * episodes
    s = random.uniform(0, 1, count) * np.where(random.uniform(size=count) < 0.1, 1.0, -1.0)
    step = np.arange(count) % 2
    actions = np.clip(0.5 * s + random.uniform(-0.5, 0.5, count), -1, 1)
    rewards = 1.0 - np.square(actions - 0.5 * s) + np.where(s > 0, random.normal(0.0, 0.3, count), 0.0)
    observations = np.stack([s, step], axis=1).astype(np.float32)
    return from_arrays(observations, actions[:, None].astype(np.float32), rewards, step == 1, metadata=Metadata(name))


def optimal_values(observations: np.ndarray, actions: np.ndarray, discount: float) -> np.ndarray:
    """Q* of both probes: the expected reward, and before the last step the discounted best one (1) after it."""
    s, step = observations[:, 0], observations[:, 1]
    return 1.0 - np.square(actions[:, 0] - 0.5 * s) + np.where(step == 1, 0.0, discount)


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
