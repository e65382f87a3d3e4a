"""Stages 2 and 3 in one: the consistency function learned directly, because in one dimension it is the quantile function.

The probability-flow map of a scalar is monotone and carries N(0, TIME_MAX^2) to the distribution of Q, so
f(TIME_MAX z | s, a) is the quantile of Q at level Phi(z), up to O(1 / TIME_MAX). The same network is trained on that
with the pinball loss: no teacher, no target network, calibrated within minutes.

The plain pinball loss on uniform levels memorises small data and says little about the tails, which decide the standard
deviation. Against the first there are weight decay, an average of the weights, and episodes kept for calibration
(`qdq.calibration`); for the second, levels are drawn wider and the loss is divided by the spread of its gradient.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.scipy.special import ndtr, ndtri

from qdq.consistency import consistency_function
from qdq.diffusion import TIME_MAX, QBatch
from qdq.networks import ConditionalScalar, copy, moving_average
from qdq.q_distribution import LARGEST_Z
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
    level_spread: float = setting(
        1.0,
        "levels are Phi(z) of normal z with this standard deviation; 1 draws them uniformly, more favours the tails",
    )
    tail_weight: float = setting(
        0.0, "the loss at level p is divided by sqrt(4 p (1 - p)) to this power; 1 gives all levels equal gradients"
    )
    weight_decay: float = setting(0.0, "AdamW's decay of the weight matrices, per step and unit of learning rate")
    average_share: float = setting(
        0.0, "the network is a moving average of the weights over about this share of the run; 0 takes the last ones"
    )
    calibration_share: float = setting(
        0.0, "share of the episodes kept from learning to calibrate the levels on; 0 does not calibrate"
    )


class State(eqx.Module):
    """Everything that changes during training."""

    network: ConditionalScalar
    average: ConditionalScalar | None
    optimiser: optax.OptState

    @property
    def learned(self) -> ConditionalScalar:
        """What the training is for: the averaged network, or the last one."""
        return self.network if self.average is None else self.average


def draw_levels(config: Config, key: Array, rows: int) -> tuple[Array, Array]:
    """Levels and their z, shape (levels, rows): each row has one from every one of `levels` equal parts of the normal z."""
    offsets = jax.random.uniform(key, (config.levels, rows), minval=1e-4, maxval=1.0 - 1e-4)
    z = config.level_spread * ndtri((jnp.arange(config.levels)[:, None] + offsets) / config.levels)
    z = jnp.clip(z, -LARGEST_Z, LARGEST_Z)
    return ndtr(z), z


def loss(network: ConditionalScalar, config: Config, batch: QBatch, key: Array) -> tuple[Array, Metrics]:
    """Pinball loss at stratified levels, with the weights of `tail_weight`."""
    level, z = draw_levels(config, key, len(batch.values))
    time = jnp.asarray(TIME_MAX)
    predicted = consistency_function(network, time * z, time, batch.observations, batch.actions)
    error = batch.values - predicted
    above = ndtr(-z)  # 1 - level, without the loss of digits next to 1
    weight = (4.0 * level * above) ** (-0.5 * config.tail_weight)
    value = jnp.mean(weight * jnp.maximum(level * error, -above * error))
    return value, {"loss": value}


def _optimiser(config: Config) -> optax.GradientTransformation:
    rate = learning_rate(config.learning_rate, config.cosine_decay, config.steps)
    if config.weight_decay == 0.0:
        return optax.adam(rate)
    return optax.adamw(rate, weight_decay=config.weight_decay, mask=_is_matrix)


def _is_matrix(parameters: ConditionalScalar) -> ConditionalScalar:
    return jax.tree.map(lambda leaf: leaf.ndim == 2, parameters)


def init(config: Config, network: ConditionalScalar) -> State:
    """The state around a fresh network."""
    average = copy(network) if config.average_share > 0 else None
    return State(network, average, start(_optimiser(config), network))


def steps(config: Config) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    optimiser = _optimiser(config)
    average_rate = 1.0 / max(config.average_share * config.steps, 1.0)

    def step(state: State, batch: QBatch, key: Array) -> tuple[State, Metrics]:
        grads, metrics = jax.grad(loss, has_aux=True)(state.network, config, batch, key)
        network, optimiser_state = descend(optimiser, grads, state.optimiser, state.network)
        average = None if state.average is None else moving_average(state.average, network, average_rate)
        return State(network, average, optimiser_state), metrics

    return (step,)
