"""Behaviour policies and their episodes, in plain NumPy.

Nothing here imports JAX, so that worker processes which only roll out policies start quickly and stay small.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from qdq.data.mazes import register_robotics
from qdq.errors import UsageError, suggest
from qdq.numpy_networks import Layers, NumpyMLP

# The same limits as `qdq.networks`, repeated because that module imports JAX; a test holds them together.
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LARGEST_ACTION = 1.0 - 1e-6  # tanh in float32 reaches 1, whose inverse is infinite
EXPLORATION_NOISE = 0.1  # TD3's, as in its paper


class BehaviourPolicy(Protocol):
    """What acts in an environment."""

    def act(self, observation: Any, noise: np.random.Generator | None) -> np.ndarray:
        """An action in [-1, 1]; without exploration where `noise` is None."""
        ...


@runtime_checkable
class DensityBehaviour(Protocol):
    """A policy that knows how probable its own actions are."""

    def log_density(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The log density of each row's action in [-1, 1]."""
        ...


@runtime_checkable
class EpisodicBehaviour(Protocol):
    """A policy that wants to know when an episode begins."""

    def begin(self, noise: np.random.Generator | None) -> None:
        """Forget the last episode and draw what the next one is like."""
        ...


class TanhGaussianBehaviour:
    """SAC's policy: a Gaussian squashed by tanh, whose spread depends on the state."""

    def __init__(self, layers: Layers):
        self.network = NumpyMLP(layers)

    def act(self, observation: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """A sample, or the mode of the Gaussian where `noise` is None."""
        mean, log_std = np.split(self.network(observation.astype(np.float32)), 2, axis=-1)
        if noise is not None:
            spread = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
            mean = mean + spread * noise.standard_normal(mean.shape, np.float32)
        return np.tanh(mean)

    def log_density(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The log density of each row's sampled actions in [-1, 1]; beyond `LARGEST_ACTION` it is that of the limit."""
        mean, log_std = np.split(self.network(observations.astype(np.float32)).astype(np.float64), 2, axis=-1)
        log_std = np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
        inside = np.clip(np.asarray(actions, np.float64), -LARGEST_ACTION, LARGEST_ACTION)
        z = (np.arctanh(inside) - mean) * np.exp(-log_std)
        gaussian = -0.5 * np.square(z) - log_std - 0.5 * np.log(2.0 * np.pi)
        return np.sum(gaussian - np.log1p(-np.square(inside)), axis=-1)


class NoisyBehaviour:
    """TD3's policy: deterministic, with Gaussian noise added to explore."""

    def __init__(self, layers: Layers, spread: float = EXPLORATION_NOISE):
        self.network = NumpyMLP(layers)
        self.spread = np.float32(spread)

    def act(self, observation: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """The network's action, with noise unless `noise` is None."""
        action = np.tanh(self.network(observation.astype(np.float32)))
        if noise is None:
            return action
        return np.clip(action + self.spread * noise.standard_normal(action.shape, np.float32), -1.0, 1.0)


class UniformBehaviour:
    """Uniformly random actions."""

    def __init__(self, action_size: int):
        self.action_size = action_size

    def act(self, observation: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """A random action; this policy has no other."""
        if noise is None:
            raise ValueError("a uniformly random policy needs a source of randomness")
        return noise.uniform(-1.0, 1.0, self.action_size).astype(np.float32)


BEHAVIOURS: dict[str, Callable[[Layers], BehaviourPolicy]] = {"sac": TanhGaussianBehaviour, "td3": NoisyBehaviour}


def make_environment(environment_id: str, **options: Any) -> Any:
    """The Gymnasium environment of that id; gymnasium-robotics is registered where the id needs it."""
    import gymnasium

    with warnings.catch_warnings():
        # D4RL's tasks are the v4 environments, on purpose; Gymnasium would advise newer ones each time.
        warnings.simplefilter("ignore")
        try:
            register_robotics(environment_id)
            return gymnasium.make(environment_id, **options)
        except gymnasium.error.UnregisteredEnv as error:
            hint = suggest(environment_id, sorted(gymnasium.registry))
            raise UsageError(f"Gymnasium has no environment {environment_id!r}; {hint}") from error
        except gymnasium.error.Error as error:
            raise UsageError(f"Gymnasium cannot make {environment_id!r}: {error}") from error


def scale_action(action: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """From [-1, 1] to the environment's own units."""
    return low + 0.5 * (action + 1.0) * (high - low)


def evaluate(
    environment: Any, policy: BehaviourPolicy, episodes: int, *, first_seed: int, noise_seed: int
) -> np.ndarray:
    """Undiscounted returns of `episodes` episodes with sampled actions; episode e starts from seed `first_seed` + e."""
    random = np.random.default_rng(noise_seed)
    low, high = environment.action_space.low, environment.action_space.high
    returns = np.zeros(episodes)
    for episode in range(episodes):
        observation, _ = environment.reset(seed=first_seed + episode)
        ended = False
        while not ended:
            action = scale_action(policy.act(observation, random), low, high)
            observation, reward, terminal, truncated, _ = environment.step(action)
            returns[episode] += float(reward)
            ended = terminal or truncated
    return returns
