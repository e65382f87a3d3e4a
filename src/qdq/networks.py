"""The networks: plain pytrees of arrays (equinox modules) that work on any leading batch dimensions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
LARGEST_PART = 2048  # rows of a network evaluated at once: their activations fit in a processor's cache


def mish(x: Array) -> Array:
    """x * tanh(softplus(x)), by its rational form in e^x: one exponential instead of three transcendental functions."""
    exponential = jnp.exp(jnp.minimum(x, 20.0))  # the ratio is 1 in float32 long before 20
    numerator = exponential * (exponential + 2.0)
    return x * (numerator / (numerator + 2.0))


def swish(x: Array) -> Array:
    """x * sigmoid(x), by the hyperbolic tangent, which is the cheaper of the two."""
    half = 0.5 * x
    return half + half * jnp.tanh(half)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "mish": mish,
    "swish": swish,
}


class Linear(eqx.Module):
    """x @ weight + bias, initialised uniformly in +-1/sqrt(inputs)."""

    weight: Array
    bias: Array

    def __init__(self, inputs: int, outputs: int, key: Array, scale: float = 1.0):
        bound = scale / inputs**0.5
        weight_key, bias_key = jax.random.split(key)
        self.weight = jax.random.uniform(weight_key, (inputs, outputs), minval=-bound, maxval=bound)
        self.bias = jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound)

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


def layer_norm(x: Array) -> Array:
    """Zero mean and unit variance over the last axis, without learned scale or shift."""
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5)


def group_means_removed(x: Array, groups: int) -> Array:
    """`x` minus, in each group of channels, the group's mean; channel c belongs to group c mod `groups`."""
    split = x.reshape(*x.shape[:-1], -1, groups)
    return (split - jnp.mean(split, axis=-2, keepdims=True)).reshape(x.shape)


def strided_group_norm(x: Array, groups: int) -> Array:
    """Group normalisation of an `x` whose group means are zero; channel c belongs to group c mod `groups`.

    The usual layout (adjacent channels) is the same function up to a permutation of channels, which a dense layer
    absorbs; this one adds neighbouring blocks of channels, which processors do several times faster. Removing the means
    is left to the weights of the layer before (`group_means_removed`), which are fewer than its outputs. The gradient is
    written out, because the one derived from the formula passes over the data about twice as often.
    """
    return cast(Array, _group_norm(x, groups))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _group_norm(x: Array, groups: int) -> Array:
    return _group_norm_forward(x, groups)[0]


def _group_norm_forward(x: Array, groups: int) -> tuple[Array, tuple[Array, Array]]:
    # A sum over a list needs no reduction over an axis, which is slower here; in the gradient it is faster.
    parts = jnp.split(x, x.shape[-1] // groups, axis=-1)
    scale = jax.lax.rsqrt(sum(jnp.square(part) for part in parts) / len(parts) + 1e-5)
    normalised = jnp.concatenate([part * scale for part in parts], axis=-1)
    return normalised, (normalised, scale)


def _group_norm_backward(groups: int, saved: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    normalised, scale = (array.reshape(*array.shape[:-1], -1, groups) for array in saved)
    split = gradient.reshape(normalised.shape)
    along = normalised * jnp.mean(split * normalised, axis=-2, keepdims=True)
    return (((split - along) * scale).reshape(gradient.shape),)


_group_norm.defvjp(_group_norm_forward, _group_norm_backward)


class MLP(eqx.Module):
    """Dense layers with an activation, and optionally a LayerNorm before each activation.

    The outputs are `shift` plus `scale` times those of the last layer, for values that are far from zero.
    """

    layers: tuple[Linear, ...]
    activation: str = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)
    shift: float = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: tuple[int, ...],
        key: Array,
        activation: str = "relu",
        normalise: bool = False,
        shift: float = 0.0,
        scale: float = 1.0,
    ):
        sizes = (inputs, *hidden, outputs)
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(Linear(a, b, k) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
        self.activation = activation
        self.normalise = normalise
        self.shift, self.scale = shift, scale

    def __call__(self, x: Array) -> Array:
        for layer in self.layers[:-1]:
            x = layer(x)
            if self.normalise:
                x = layer_norm(x)
            x = ACTIVATIONS[self.activation](x)
        return self.shift + self.scale * self.layers[-1](x)


class Critics(eqx.Module):
    """Independent Q functions of (observation, action); a call returns one row per critic."""

    members: tuple[MLP, ...]

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        key: Array,
        activation: str = "relu",
        normalise: bool = False,
        count: int = 2,
        shift: float = 0.0,
        scale: float = 1.0,
    ):
        self.members = tuple(
            MLP(observation_size + action_size, 1, hidden, k, activation, normalise, shift, scale)
            for k in jax.random.split(key, count)
        )

    def __call__(self, observations: Array, actions: Array) -> Array:
        inputs = jnp.concatenate([observations, actions], axis=-1)
        return jnp.stack([jnp.squeeze(member(inputs), axis=-1) for member in self.members])

    def first(self, observations: Array, actions: Array) -> Array:
        """The first critic alone, at half the cost."""
        return jnp.squeeze(self.members[0](jnp.concatenate([observations, actions], axis=-1)), axis=-1)


class GaussianPolicy(eqx.Module):
    """Gaussian over actions with a tanh mean and a log standard deviation that does not depend on the state."""

    mean_network: MLP
    raw_log_std: Array

    def __init__(self, observation_size: int, action_size: int, hidden: tuple[int, ...], key: Array):
        self.mean_network = MLP(observation_size, action_size, hidden, key)
        self.raw_log_std = jnp.zeros(action_size)

    @property
    def log_std(self) -> Array:
        return jnp.clip(self.raw_log_std, LOG_STD_MIN, LOG_STD_MAX)

    def __call__(self, observations: Array) -> Array:
        """The mean: what the policy does when it acts."""
        return jnp.tanh(self.mean_network(observations))

    def sample(self, observations: Array, key: Array) -> Array:
        """One action per observation, clipped to the action range."""
        mean = self(observations)
        return jnp.clip(mean + jnp.exp(self.log_std) * jax.random.normal(key, mean.shape), -1.0, 1.0)

    def log_density(self, observations: Array, actions: Array) -> Array:
        """log pi(a | s), summed over the action's dimensions."""
        z = (actions - self(observations)) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * jnp.square(z) - self.log_std - 0.5 * jnp.log(2 * jnp.pi), axis=-1)


class DeterministicPolicy(eqx.Module):
    """tanh of a dense network."""

    network: MLP

    def __init__(self, observation_size: int, action_size: int, hidden: tuple[int, ...], key: Array):
        self.network = MLP(observation_size, action_size, hidden, key)

    def __call__(self, observations: Array) -> Array:
        return jnp.tanh(self.network(observations))


class TanhGaussianPolicy(eqx.Module):
    """A Gaussian squashed by tanh whose spread depends on the state (soft actor-critic)."""

    network: MLP

    def __init__(self, observation_size: int, action_size: int, hidden: tuple[int, ...], key: Array):
        self.network = MLP(observation_size, 2 * action_size, hidden, key)

    def moments(self, observations: Array) -> tuple[Array, Array]:
        """Mean and log standard deviation before the tanh."""
        mean, log_std = jnp.split(self.network(observations), 2, axis=-1)
        return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)

    def __call__(self, observations: Array) -> Array:
        return jnp.tanh(self.moments(observations)[0])

    def sample_with_log_density(self, observations: Array, key: Array) -> tuple[Array, Array]:
        """One action per observation and its log density."""
        mean, log_std = self.moments(observations)
        noise = jax.random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        log_density = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
        # log(1 - tanh(raw)^2), written so that it stays finite for large |raw|.
        log_slope = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
        return jnp.tanh(raw), jnp.sum(log_density - log_slope, axis=-1)


class TimeFeatures(eqx.Module):
    """Random Fourier features of the noise level, fixed at initialisation, then a two-layer swish network."""

    frequencies: Array
    first: Linear
    second: Linear

    def __init__(self, frequencies: int, scale: float, outputs: int, key: Array):
        frequency_key, first_key, second_key = jax.random.split(key, 3)
        self.frequencies = scale * jax.random.normal(frequency_key, (frequencies,))
        self.first = Linear(2 * frequencies, outputs, first_key)
        self.second = Linear(outputs, outputs, second_key)

    def __call__(self, noise_level: Array) -> Array:
        angles = 2 * jnp.pi * noise_level[..., None] * jax.lax.stop_gradient(self.frequencies)
        features = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return swish(self.second(swish(self.first(features))))


class ConditionalScalar(eqx.Module):
    """The network F(x, noise level | s, a) behind the diffusion teacher and the consistency function: a scalar in and out.

    `x` may have leading axes that the observations lack (several samples per state and action). The first layer is
    applied to its three inputs apart, so that the (s, a) part is computed once for all samples.
    """

    time: TimeFeatures
    first: Linear
    body: tuple[Linear, ...]
    gains: tuple[Array, ...]
    shifts: tuple[Array, ...]
    last: Linear
    condition_size: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: tuple[int, ...],
        key: Array,
        frequencies: int = 8,
        fourier_scale: float = 16.0,
        time_outputs: int = 32,
        groups: int = 32,
    ):
        keys = jax.random.split(key, len(hidden) + 2)
        self.condition_size = observation_size + action_size
        self.groups = groups
        self.time = TimeFeatures(frequencies, fourier_scale, time_outputs, keys[0])
        self.first = Linear(self.condition_size + 1 + time_outputs, hidden[0], keys[1])
        self.body = tuple(Linear(a, b, k) for a, b, k in zip(hidden[:-1], hidden[1:], keys[2:], strict=False))
        self.gains = tuple(jnp.ones(size) for size in hidden)
        self.shifts = tuple(jnp.zeros(size) for size in hidden)
        self.last = Linear(hidden[-1], 1, keys[-1])

    def __call__(self, observations: Array, actions: Array, x: Array, noise_level: Array) -> Array:
        condition = jnp.concatenate([observations, actions], axis=-1)
        layers: tuple[Linear, ...] = (self.first, *self.body)
        first, *body = jax.tree.map(lambda weights: group_means_removed(weights, self.groups), layers)
        weight, n = first.weight, self.condition_size
        common: Array = condition @ weight[:n] + self.time(noise_level) @ weight[n + 1 :] + first.bias

        def rest(x: Array) -> Array:
            hidden = common + x[..., None] * weight[n]
            for layer, gain, shift in zip((*body, self.last), self.gains, self.shifts, strict=True):
                hidden = swish(strided_group_norm(hidden, self.groups) * gain + shift)
                hidden = layer(hidden)
            return jnp.squeeze(hidden, axis=-1)

        shape = jnp.broadcast_shapes(x.shape, common.shape[:-1])
        parts = _cache_sized_parts(math.prod(shape), x.shape[0] if x.ndim >= common.ndim else 1)
        if parts == 1:
            return rest(x)
        return jax.lax.map(rest, x.reshape(parts, -1, *x.shape[1:])).reshape(shape)


def _cache_sized_parts(rows: int, samples: int) -> int:
    """In how many equal parts to compute many samples per row, so that one part's activations stay in the cache."""
    divisors = [parts for parts in range(1, samples + 1) if samples % parts == 0]
    return next((parts for parts in divisors if rows <= parts * LARGEST_PART), divisors[-1])


def copy(tree: Any) -> Any:
    """A copy that shares no buffer with `tree`, so that both can live in one donated state."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True) if eqx.is_array(leaf) else leaf, tree)


def moving_average(average: Any, online: Any, rate: float | Array) -> Any:
    """(1 - rate) * average + rate * online, leaf by leaf."""
    return jax.tree.map(lambda a, o: a + rate * (o - a) if eqx.is_inexact_array(a) else a, average, online)
