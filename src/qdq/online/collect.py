"""Acting in an environment with plain NumPy: a policy of this size is faster there than through a device."""

from typing import Any

import numpy as np

from qdq.data.batches import Transitions
from qdq.networks import LOG_STD_MAX, LOG_STD_MIN


class NumpyMLP:
    """A ReLU network evaluated on the host."""

    def __init__(self, layers: list[tuple[np.ndarray, np.ndarray]]):
        self.layers = layers

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self.layers[:-1]:
            x = np.maximum(x @ weight + bias, 0.0)
        weight, bias = self.layers[-1]
        return x @ weight + bias


class BehaviourPolicy:
    """A tanh-Gaussian policy on the host: samples, or acts with its mean."""

    def __init__(self, layers: list[tuple[np.ndarray, np.ndarray]]):
        self.network = NumpyMLP([(np.asarray(w, np.float32), np.asarray(b, np.float32)) for w, b in layers])

    def act(self, observation: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """An action in [-1, 1]; the mean where `noise` is None."""
        mean, log_std = np.split(self.network(observation.astype(np.float32)), 2, axis=-1)
        if noise is not None:
            spread = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
            mean = mean + spread * noise.standard_normal(mean.shape, np.float32)
        return np.tanh(mean)


class Collector:
    """Steps one environment block by block, going on with the episode where the last block ended."""

    def __init__(self, environment: Any, seed: int):
        self.environment = environment
        self.random = np.random.default_rng(seed)
        self.low, self.high = environment.action_space.low, environment.action_space.high
        self.observation, _ = environment.reset(seed=seed)
        self.episode_return = 0.0
        self.returns: list[float] = []

    def block(self, length: int, policy: BehaviourPolicy | None) -> Transitions:
        """`length` transitions on the host; uniformly random actions where `policy` is None."""
        size, actions = self.observation.shape[0], self.low.shape[0]
        out = Transitions(
            np.empty((length, size), np.float32),  # type: ignore[arg-type]
            np.empty((length, actions), np.float32),  # type: ignore[arg-type]
            np.empty(length, np.float32),  # type: ignore[arg-type]
            np.empty((length, size), np.float32),  # type: ignore[arg-type]
            np.empty(length, np.float32),  # type: ignore[arg-type]
        )
        for i in range(length):
            if policy is None:
                action = self.random.uniform(-1.0, 1.0, actions).astype(np.float32)
            else:
                action = policy.act(self.observation, self.random)
            scaled = self.low + 0.5 * (action + 1.0) * (self.high - self.low)
            following, reward, terminal, truncated, _ = self.environment.step(scaled)
            out.observations[i], out.actions[i], out.rewards[i] = self.observation, action, reward  # type: ignore[index]
            out.next_observations[i], out.terminals[i] = following, float(terminal)  # type: ignore[index]
            self.observation, self.episode_return = following, self.episode_return + float(reward)
            if terminal or truncated:
                self.returns.append(self.episode_return)
                self.observation, _ = self.environment.reset()
                self.episode_return = 0.0
        return out
