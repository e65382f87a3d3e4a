"""Stage 3, the consistency student: distillation of the teacher into one step (Song et al. 2023, Definition 1).

    f(x, t | s, a) = c_skip(t) x + c_out(t) F(c_in x, c_noise | s, a),   f(x, TIME_MIN) = x exactly
    loss           = (f(x_t, t) - f_target(Heun(x_t, t -> t'), t'))^2    on adjacent noise levels t > t'

The target is a moving average of the student. Student and target start from the teacher's weights, and the highest
noise level, where sampling starts, is trained as well (the released code does neither).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.diffusion import SIGMA_DATA, TIME_MIN, QBatch, denoise, heun_step, time_grid
from qdq.networks import ConditionalScalar, copy, moving_average
from qdq.settings import PAPER_TABLE_3, setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start


@dataclass(frozen=True)
class Config:
    """Settings of the consistency student."""

    steps: int = setting(160_000, "training steps", PAPER_TABLE_3)
    batch_size: int = setting(256, "windows per step", PAPER_TABLE_3)
    learning_rate: float = setting(4e-4, "RAdam's learning rate", PAPER_TABLE_3)
    cosine_decay: bool = setting(False, "decay the learning rate to zero over the run", "release: true")
    intervals: int = setting(1000, "number N of intervals of the noise grid", PAPER_TABLE_3)
    target_rate: float = setting(0.005, "moving-average rate of the target network, per step", "release")


class State(eqx.Module):
    """Everything that changes during training, and the frozen teacher."""

    network: ConditionalScalar
    target: ConditionalScalar
    teacher: ConditionalScalar
    optimiser: optax.OptState


def preconditioning(t: Array) -> tuple[Array, Array, Array, Array]:
    """c_skip, c_out, c_in, c_noise of the consistency function: the identity at TIME_MIN."""
    c_skip = SIGMA_DATA**2 / ((t - TIME_MIN) ** 2 + SIGMA_DATA**2)
    c_out = (t - TIME_MIN) * SIGMA_DATA / jnp.sqrt(t**2 + SIGMA_DATA**2)
    c_in = 1.0 / jnp.sqrt(t**2 + SIGMA_DATA**2)
    c_noise = 0.25 * jnp.log(t)
    return c_skip, c_out, c_in, c_noise


def consistency_function(network: ConditionalScalar, x: Array, t: Array, observations: Array, actions: Array) -> Array:
    """f(x, t | s, a): the clean value at the end of the path through `x` at noise level `t`."""
    c_skip, c_out, c_in, c_noise = preconditioning(t)
    return c_skip * x + c_out * network(observations, actions, c_in * x, c_noise)


def loss(
    network: ConditionalScalar,
    target: ConditionalScalar,
    teacher: ConditionalScalar,
    grid: Array,
    batch: QBatch,
    key: Array,
) -> tuple[Array, Metrics]:
    """Squared disagreement of neighbours on the teacher's path."""
    index_key, noise_key = jax.random.split(key)
    index = jax.random.randint(index_key, batch.values.shape, 0, len(grid) - 1)
    t, following = grid[index], grid[index + 1]
    x = batch.values + t * jax.random.normal(noise_key, batch.values.shape)

    def denoiser(x: Array, t: Array) -> Array:
        return denoise(teacher, x, t, batch.observations, batch.actions)

    neighbour = heun_step(denoiser, x, t, following)
    goal = consistency_function(target, neighbour, following, batch.observations, batch.actions)
    prediction = consistency_function(network, x, t, batch.observations, batch.actions)
    value = jnp.mean(jnp.square(prediction - jax.lax.stop_gradient(goal)))
    return value, {"loss": value}


def _optimiser(config: Config) -> optax.GradientTransformation:
    return optax.radam(learning_rate(config.learning_rate, config.cosine_decay, config.steps))


def init(config: Config, teacher: ConditionalScalar) -> State:
    """Student and target start as copies of the teacher."""
    network = copy(teacher)
    return State(network, copy(teacher), copy(teacher), start(_optimiser(config), network))


def steps(config: Config) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    optimiser = _optimiser(config)
    grid = time_grid(config.intervals)

    def step(state: State, batch: QBatch, key: Array) -> tuple[State, Metrics]:
        grads, metrics = jax.grad(loss, has_aux=True)(state.network, state.target, state.teacher, grid, batch, key)
        network, optimiser_state = descend(optimiser, grads, state.optimiser, state.network)
        target = moving_average(state.target, network, config.target_rate)
        return State(network, target, state.teacher, optimiser_state), metrics

    return (step,)
