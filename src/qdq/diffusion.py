"""Stage 2, the diffusion teacher: EDM preconditioning (Karras et al. 2022) on the scaled truncated return.

    D(x, t | s, a) = c_skip x + c_out F(c_in x, c_noise | s, a)      the denoiser
    loss           = weight * (D(q + t * noise, t | s, a) - q)^2,    ln t ~ N(-1.2, 1.2^2)

Samplers are pure functions of a denoiser; the same Heun step serves sampling and distillation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.networks import ConditionalScalar
from qdq.settings import PAPER_TABLE_3, setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start

SIGMA_DATA = 0.5
TIME_MIN, TIME_MAX = 0.002, 80.0
RHO = 7.0
LOG_TIME_MEAN, LOG_TIME_STD = -1.2, 1.2

Denoiser = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Config:
    """Settings of the diffusion teacher."""

    steps: int = setting(80_000, "training steps", PAPER_TABLE_3)
    batch_size: int = setting(256, "windows per step", PAPER_TABLE_3)
    learning_rate: float = setting(5e-4, "Adam's learning rate", PAPER_TABLE_3)
    cosine_decay: bool = setting(False, "decay the learning rate to zero over the run", "release: true")


class QBatch(NamedTuple):
    """Windows: where they start, and their truncated return scaled to [-1, 1]."""

    observations: Array
    actions: Array
    values: Array


class State(eqx.Module):
    """Everything that changes during training."""

    network: ConditionalScalar
    optimiser: optax.OptState


def preconditioning(t: Array) -> tuple[Array, Array, Array, Array]:
    """c_skip, c_out, c_in, c_noise of EDM."""
    c_skip = SIGMA_DATA**2 / (t**2 + SIGMA_DATA**2)
    c_out = t * SIGMA_DATA / jnp.sqrt(t**2 + SIGMA_DATA**2)
    c_in = 1.0 / jnp.sqrt(t**2 + SIGMA_DATA**2)
    c_noise = 0.25 * jnp.log(t)
    return c_skip, c_out, c_in, c_noise


def denoise(network: ConditionalScalar, x: Array, t: Array, observations: Array, actions: Array) -> Array:
    """The teacher's estimate of the clean value behind `x` at noise level `t`."""
    c_skip, c_out, c_in, c_noise = preconditioning(t)
    return c_skip * x + c_out * network(observations, actions, c_in * x, c_noise)


def time_grid(intervals: int) -> Array:
    """`intervals` + 1 noise levels from TIME_MAX down to TIME_MIN, evenly spaced in t^(1/RHO)."""
    position = jnp.linspace(0.0, 1.0, intervals + 1)
    high, low = TIME_MAX ** (1 / RHO), TIME_MIN ** (1 / RHO)
    return (high + position * (low - high)) ** RHO


def heun_step(denoiser: Denoiser, x: Array, t: Array, following: Array) -> Array:
    """One second-order step of the probability-flow equation dx/dt = (x - D(x, t)) / t from `t` to `following` > 0."""
    slope = (x - denoiser(x, t)) / t
    guess = x + (following - t) * slope
    slope_at_guess = (guess - denoiser(guess, following)) / following
    return x + (following - t) * 0.5 * (slope + slope_at_guess)


def sample(denoiser: Denoiser, x: Array, grid: Array) -> Array:
    """Carry `x` at noise level grid[0] down the grid with Heun steps, then denoise once."""

    def body(x: Array, pair: tuple[Array, Array]) -> tuple[Array, None]:
        return heun_step(denoiser, x, *pair), None

    x, _ = jax.lax.scan(body, x, (grid[:-1], grid[1:]))
    return denoiser(x, grid[-1])


def loss(network: ConditionalScalar, batch: QBatch, key: Array) -> tuple[Array, Metrics]:
    """EDM's weighted denoising error."""
    time_key, noise_key = jax.random.split(key)
    t = jnp.exp(LOG_TIME_MEAN + LOG_TIME_STD * jax.random.normal(time_key, batch.values.shape))
    x = batch.values + t * jax.random.normal(noise_key, batch.values.shape)
    weight = (t**2 + SIGMA_DATA**2) / (t * SIGMA_DATA) ** 2
    error = denoise(network, x, t, batch.observations, batch.actions) - batch.values
    value = jnp.mean(weight * jnp.square(error))
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
        grads, metrics = jax.grad(loss, has_aux=True)(state.network, batch, key)
        return State(*descend(optimiser, grads, state.optimiser, state.network)), metrics

    return (step,)
