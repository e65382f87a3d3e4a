"""Stages 2 and 3 in one: the consistency function learned directly, because in one dimension it is the quantile function.

The probability-flow map of a scalar is monotone and carries N(0, TIME_MAX^2) to the distribution of Q, so
f(TIME_MAX z | s, a) is the quantile of Q at level Phi(z), up to O(1 / TIME_MAX). The same network is trained on that
with the pinball loss: no teacher, no target network, calibrated within minutes.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtri

from qdq.consistency import consistency_function
from qdq.diffusion import TIME_MAX, QBatch
from qdq.networks import ConditionalScalar
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start


@dataclass(frozen=True)
class Config:
    """Settings of the quantile learner."""

    steps: int = setting(10_000, "training steps")
    batch_size: int = setting(256, "windows per step")
    levels: int = setting(4, "quantile levels per window and step, stratified over (0, 1)")
    learning_rate: float = setting(1e-3, "Adam's learning rate")
    cosine_decay: bool = setting(True, "decay the learning rate to zero over the run")


class State(eqx.Module):
    """Everything that changes during training."""

    network: ConditionalScalar
    optimiser: optax.OptState


def loss(network: ConditionalScalar, levels: int, batch: QBatch, key: Array) -> tuple[Array, Metrics]:
    """Pinball loss at stratified levels: each window sees one level from every one of `levels` equal parts of (0, 1)."""
    offsets = jax.random.uniform(key, (levels, *batch.values.shape), minval=1e-4, maxval=1.0 - 1e-4)
    level = (jnp.arange(levels)[:, None] + offsets) / levels
    time = jnp.asarray(TIME_MAX)
    predicted = consistency_function(network, time * ndtri(level), time, batch.observations, batch.actions)
    error = batch.values - predicted
    value = jnp.mean(jnp.maximum(level * error, (level - 1.0) * error))
    return value, {"loss": value}


def _optimiser(config: Config) -> optax.GradientTransformation:
    return optax.adam(learning_rate(config.learning_rate, config.cosine_decay, config.steps))


def init(config: Config, network: ConditionalScalar) -> State:
    """The state around a fresh network."""
    return State(network, start(_optimiser(config), network))


def steps(config: Config) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    optimiser = _optimiser(config)

    def step(state: State, batch: QBatch, key: Array) -> tuple[State, Metrics]:
        grads, metrics = jax.grad(loss, has_aux=True)(state.network, config.levels, batch, key)
        return State(*descend(optimiser, grads, state.optimiser, state.network)), metrics

    return (step,)
