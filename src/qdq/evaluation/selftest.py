"""A few seconds of checks that the installation computes what it should: each compares with a known answer."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from qdq import q_dataset, quantile, uncertainty
from qdq.data.episodes import Metadata, from_arrays
from qdq.diffusion import QBatch
from qdq.errors import QDQError
from qdq.evaluation.rollout import Evaluator
from qdq.networks import ConditionalScalar
from qdq.normalisers import unit_interval
from qdq.q_distribution import QDistribution
from qdq.training.loop import train


class _Known:
    """Windows whose return is normal with mean 0.3 s and standard deviation 0.2."""

    def sample(self, key: jax.Array, batch_size: int) -> QBatch:
        state_key, action_key, noise_key = jax.random.split(key, 3)
        states = jax.random.uniform(state_key, (batch_size, 1), minval=-1.0, maxval=1.0)
        actions = jax.random.uniform(action_key, (batch_size, 1), minval=-1.0, maxval=1.0)
        return QBatch(states, actions, 0.3 * states[:, 0] + 0.2 * jax.random.normal(noise_key, (batch_size,)))


jax.tree_util.register_pytree_node(_Known, lambda known: ((), None), lambda _, __: _Known())


def self_test() -> Iterator[str]:
    """Run the checks; yields one line each and raises on the first failure."""
    yield _check("truncated return", _truncated_return(), -(1 - 0.99**200) / 0.01, 1e-4)
    yield _check("learned standard deviation", _learned_std(), 0.2, 0.06)
    yield _environment()


def _check(name: str, value: float, expected: float, tolerance: float) -> str:
    if not abs(value - expected) <= tolerance:
        raise QDQError(
            f"Self-test failed: {name} is {value:.5g} where {expected:.5g} is expected; reinstall with the constraints file."
        )
    return f"{name}: {value:.5g} (expected {expected:.5g})"


def _truncated_return() -> float:
    steps = 1000
    data = from_arrays(
        np.zeros((steps, 1)), np.zeros((steps, 1)), -np.ones(steps), np.zeros(steps), np.arange(steps) == steps - 1
    )
    return float(q_dataset.truncated_returns(data, 200, 0.99)[0][0])


def _learned_std() -> float:
    # Most of the time is compilation: one program makes the network, one trains it, and both are small.
    config = quantile.Config(steps=300, learning_rate=1e-2)
    start = jax.jit(lambda key: quantile.init(config, ConditionalScalar(1, 1, (32, 32), key, groups=8)))
    state = start(jax.random.key(0))
    state = train(quantile.steps(config), state, _Known(), key=jax.random.key(1), batch_size=128, stop=300, chunk=300)
    distribution = QDistribution(state.network, unit_interval(-1.0, 1.0))
    points = jnp.linspace(-0.9, 0.9, 64)[:, None]
    _, std = uncertainty.mean_and_std(distribution, points, jnp.zeros_like(points), uncertainty.Config())
    return float(jnp.mean(std))


def _environment() -> str:
    evaluator = Evaluator(Metadata("self-test", environment_id="Hopper-v4"), 1, 11, 3)
    episodes = evaluator.play(lambda observations: np.zeros((1, 3), np.float32), seed=0)
    evaluator.close()
    return f"Hopper-v4: an episode of {episodes.lengths[0]} steps without action, return {episodes.returns[0]:.1f}"
