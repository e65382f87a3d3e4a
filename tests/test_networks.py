"""Networks against closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from qdq import networks


def test_gaussian_log_density_equals_scipy() -> None:
    policy = networks.GaussianPolicy(3, 2, (16,), jax.random.key(0))
    policy = eqx.tree_at(lambda p: p.raw_log_std, policy, jnp.array([-0.5, 0.3]))
    observations = jax.random.normal(jax.random.key(1), (5, 3))
    actions = jax.random.uniform(jax.random.key(2), (5, 2), minval=-1.0)
    expected = stats.norm.logpdf(actions, policy(observations), np.exp([-0.5, 0.3])).sum(axis=1)
    np.testing.assert_allclose(policy.log_density(observations, actions), expected, rtol=1e-5, atol=1e-5)


def test_mish_and_its_slope_equal_the_definition() -> None:
    x = jnp.linspace(-60.0, 60.0, 4001)
    np.testing.assert_allclose(networks.mish(x), x * jnp.tanh(jax.nn.softplus(x)), rtol=1e-5, atol=1e-6)
    slope, expected = (jax.vmap(jax.grad(f))(x) for f in (networks.mish, lambda y: y * jnp.tanh(jax.nn.softplus(y))))
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-5)


def test_swish_equals_its_definition_with_its_gradient() -> None:
    x = jnp.linspace(-200.0, 200.0, 2001)
    np.testing.assert_allclose(networks.swish(x), jax.nn.swish(x), rtol=1e-4, atol=2e-5)
    slope, expected = (jax.vmap(jax.grad(f))(x) for f in (networks.swish, jax.nn.swish))
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=2e-5)


def test_log_std_has_a_floor() -> None:
    policy = networks.GaussianPolicy(1, 1, (8,), jax.random.key(0))
    policy = eqx.tree_at(lambda p: p.raw_log_std, policy, jnp.array([-50.0]))
    assert policy.log_std[0] == networks.LOG_STD_MIN


def _group_norm(x: jax.Array, groups: int) -> jax.Array:
    return networks.strided_group_norm(networks.group_means_removed(x, groups), groups)


def test_strided_group_norm_equals_group_norm_of_permuted_channels() -> None:
    x = jax.random.normal(jax.random.key(0), (4, 64)) * 3 + 1
    groups = 16
    grouped = np.asarray(x).reshape(4, -1, groups)  # channel c is in group c mod 16
    mean, variance = grouped.mean(axis=1, keepdims=True), grouped.var(axis=1, keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + 1e-5)).reshape(4, 64)
    np.testing.assert_allclose(_group_norm(x, groups), expected, rtol=2e-4, atol=2e-4)


def test_gradient_of_group_norm_equals_the_derived_one() -> None:
    def derived(x: jax.Array) -> jax.Array:
        split = x.reshape(6, -1, 8)
        return jax.vmap(jax.vmap(jax.nn.standardize, -1, -1))(split).reshape(x.shape)

    x, weight = (jax.random.normal(jax.random.key(i), (6, 64)) for i in range(2))
    expected = jax.grad(lambda x: jnp.sum(weight * derived(x)))(x)
    found = jax.grad(lambda x: jnp.sum(weight * _group_norm(x, 8)))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("samples", "rows"), [(50, 256), (7, 600), (3, 5000), (4, 8)])
def test_many_samples_in_parts_equal_one_at_a_time(samples: int, rows: int) -> None:
    network = networks.ConditionalScalar(3, 2, (32, 32), jax.random.key(0), groups=8)
    s, a = jax.random.normal(jax.random.key(1), (rows, 3)), jax.random.normal(jax.random.key(2), (rows, 2))
    x, level = jax.random.normal(jax.random.key(3), (samples, rows)), jnp.asarray(0.3)
    together = network(s, a, x, level)
    for i in (0, samples - 1):
        np.testing.assert_allclose(together[i], network(s, a, x[i], level), rtol=1e-4, atol=1e-5)
    shared = network(s, a, x[:, :1], level)  # the same samples for every row
    np.testing.assert_allclose(shared[-1], network(s, a, jnp.full(rows, x[-1, 0]), level), rtol=1e-4, atol=1e-5)


def test_conditional_scalar_equals_a_plain_concatenation() -> None:
    network = networks.ConditionalScalar(3, 2, (32, 32), jax.random.key(0), groups=8)
    s, a = jax.random.normal(jax.random.key(1), (6, 3)), jax.random.normal(jax.random.key(2), (6, 2))
    x, level = jax.random.normal(jax.random.key(3), (4, 6)), jnp.asarray(0.3)
    for i in range(4):
        time = jnp.broadcast_to(network.time(level), (6, 32))
        hidden = network.first(jnp.concatenate([s, a, x[i][:, None], time], axis=-1))
        for layer, gain, shift in zip((*network.body, network.last), network.gains, network.shifts, strict=True):
            hidden = layer(jax.nn.swish(_group_norm(hidden, 8) * gain + shift))
        np.testing.assert_allclose(network(s, a, x, level)[i], hidden[:, 0], rtol=1e-4, atol=1e-5)


def test_fourier_frequencies_get_no_gradient() -> None:
    network = networks.ConditionalScalar(1, 1, (32,), jax.random.key(0), groups=8)
    one = jnp.ones((2, 1))
    gradient = jax.grad(lambda n: jnp.sum(n(one, one, jnp.ones(2), jnp.ones(2))))(network)
    assert not jnp.any(gradient.time.frequencies)
    assert jnp.any(gradient.time.first.weight)


def test_moving_average_and_copy() -> None:
    a, b = networks.Linear(2, 2, jax.random.key(0)), networks.Linear(2, 2, jax.random.key(1))
    mixed = networks.moving_average(a, b, 0.25)
    np.testing.assert_allclose(mixed.weight, 0.75 * a.weight + 0.25 * b.weight, rtol=1e-6)
    assert networks.copy(a).weight.unsafe_buffer_pointer() != a.weight.unsafe_buffer_pointer()
