"""Theorem 2: how far one prior sample, the noise level and the action move the variance of n samples of Q.

V is the sample variance of f(T z_i | s, a), i = 1..n, with the product's own consistency function. Theorem 2 is about
the size of its derivatives: of order 1/n for one prior sample, and of order 1 for the noise level and the action.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from qdq.consistency import consistency_function
from qdq.diffusion import TIME_MAX
from qdq.networks import ConditionalScalar

COUNTS = (50, 400, 1600)


def variance(f: Array, used: Array) -> Array:
    """V of the paper's Appendix C over the samples that are used."""
    count = jnp.sum(used)
    mean = jnp.sum(used * f) / count
    return jnp.sum(used * jnp.square(f - mean)) / (count - 1)


def network() -> ConditionalScalar:
    return ConditionalScalar(3, 2, (32, 32), jax.random.key(4), groups=8)


@eqx.filter_jit
def derivatives(model: ConditionalScalar, prior: Array, used: Array) -> tuple[Array, Array, Array, Array]:
    """dV/dx_i for all i, dV/dT (the prior moves with T), dV/da, and the slopes of f along the prior."""
    state, action, time = jnp.array([0.3, -0.2, 0.5]), jnp.array([0.4, -0.1]), jnp.asarray(TIME_MAX)

    def values(prior: Array, time: Array, action: Array) -> Array:
        return consistency_function(model, prior, time, state, action)

    _, backward = jax.vjp(values, prior, time, action)
    f = values(prior, time, action)
    by_prior, by_time, by_action = backward(jax.grad(variance)(f, used))
    slope, _, _ = backward(jnp.ones_like(f))  # each value depends on its own sample alone
    return by_prior, by_time + jnp.sum(by_prior * prior) / time, by_action, slope


@functools.cache
def at(count: int) -> tuple[Array, Array, Array, Array, Array]:
    """The prior samples, the three derivatives and the largest slope; padded, so that every n is one program."""
    prior = TIME_MAX * jax.random.normal(jax.random.key(count), (max(COUNTS),))
    used = (jnp.arange(max(COUNTS)) < count).astype(jnp.float32)
    by_prior, by_time, by_action, slope = derivatives(network(), prior, used)
    return prior[:count], by_prior[:count], by_time, by_action, jnp.max(jnp.abs(slope[:count]))


@pytest.mark.parametrize("count", COUNTS)
def test_the_influence_of_one_prior_sample_is_bounded(count: int) -> None:
    """|dV/dx_i| <= 2 L^2 / (n - 1) * (largest distance of two prior samples), which is O(L^2 T sqrt(log n) / n)."""
    prior, by_prior, _, _, slope = at(count)
    spread = float(jnp.max(prior) - jnp.min(prior))
    assert float(jnp.max(jnp.abs(by_prior))) <= 2 * float(slope) ** 2 / (count - 1) * spread * 1.01
    assert spread <= 2 * TIME_MAX * np.sqrt(2 * np.log(count)) * 1.2


def test_it_falls_as_one_over_n_while_that_of_time_and_action_stays() -> None:
    def root_mean_square(values: Array) -> float:
        return float(jnp.sqrt(jnp.mean(jnp.square(values))))

    sizes = {count: [root_mean_square(values) for values in at(count)[1:4]] for count in COUNTS}
    for small, large in itertools.pairwise(COUNTS):
        prior, time, action = (b / a for a, b in zip(sizes[small], sizes[large], strict=True))
        assert prior == pytest.approx(small / large, rel=0.35)
        assert 0.5 < time < 2.0
        assert 0.5 < action < 2.0


def test_a_bound_on_the_action_needs_smoothness_in_the_action() -> None:
    """f = x sin(k a) / T is Lipschitz in x with L = 1/T whatever k; dV/da grows with k, so the printed bound cannot hold."""
    time, action = 80.0, 0.3
    prior = time * jax.random.normal(jax.random.key(0), (50,))
    sizes = [
        abs(float(jax.grad(lambda a, k=k: variance(prior * jnp.sin(k * a) / time, jnp.ones(50)))(action)))
        for k in (1.0, 100.0)
    ]
    printed = 4 * (1 / time) ** 2 * time * np.sqrt(np.log(50))
    assert sizes[1] > 20 * sizes[0]
    assert sizes[1] > 20 * printed


def test_it_is_an_upper_bound_so_h_may_ignore_the_action_altogether() -> None:
    """The theorem does not say that H tells actions apart: an f without any action meets it."""
    model = network()
    blind = eqx.tree_at(lambda m: m.first.weight, model, model.first.weight.at[3:5].set(0.0))
    prior = TIME_MAX * jax.random.normal(jax.random.key(0), (max(COUNTS),))
    _, _, by_action, _ = derivatives(blind, prior, jnp.ones(max(COUNTS)))
    assert float(jnp.max(jnp.abs(by_action))) == 0.0
