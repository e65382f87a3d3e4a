"""Quadrature against Monte Carlo, and the choice of the rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq import uncertainty


class Smooth(eqx.Module):
    """Q = 10 + 3 z + 0.5 z^2, whose moments are known: mean 10.5, variance 9.5."""

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.broadcast_to(10.0 + 3.0 * z + 0.5 * z**2, (z.shape[0], observations.shape[0]))

    def sample(self, observations: jax.Array, actions: jax.Array, key: jax.Array, count: int) -> jax.Array:
        return self.values(observations, actions, jax.random.normal(key, (count, observations.shape[0])))


class Steep(Smooth):
    """Failure or success: a steep step from 0 to 100 at z = 0.5."""

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        return jnp.broadcast_to(100.0 * jax.nn.sigmoid(12.0 * (z - 0.5)), (z.shape[0], observations.shape[0]))


S, A = jnp.zeros((3, 2)), jnp.zeros((3, 1))


def monte_carlo(distribution: Smooth) -> float:
    rule = uncertainty.Config(rule="monte_carlo", samples=100_000)
    return float(uncertainty.mean_and_std(distribution, S, A, rule, jax.random.key(0))[1][0])  # type: ignore[arg-type]


def test_quadrature_is_exact_for_polynomials() -> None:
    mean, std = uncertainty.mean_and_std(Smooth(), S, A, uncertainty.Config())  # type: ignore[arg-type]
    np.testing.assert_allclose(mean, 10.5, rtol=1e-5)
    np.testing.assert_allclose(std, np.sqrt(9.5), rtol=1e-4)


def test_quadrature_equals_monte_carlo_for_smooth_distributions() -> None:
    _, std = uncertainty.mean_and_std(Smooth(), S, A, uncertainty.Config())  # type: ignore[arg-type]
    assert float(std[0]) == pytest.approx(monte_carlo(Smooth()), rel=0.01)


def test_steep_distributions_get_equal_probability_nodes() -> None:
    rule, gap = uncertainty.choose_rule(Steep(), S, A, uncertainty.Config())  # type: ignore[arg-type]
    assert rule.rule == "equal_probability"
    assert rule.nodes == 64
    assert gap > rule.agreement
    _, std = uncertainty.mean_and_std(Steep(), S, A, rule)  # type: ignore[arg-type]
    assert float(std[0]) == pytest.approx(monte_carlo(Steep()), rel=0.05)


def test_smooth_distributions_keep_their_rule() -> None:
    rule, gap = uncertainty.choose_rule(Smooth(), S, A, uncertainty.Config(nodes=4))  # type: ignore[arg-type]
    assert rule.nodes == 4
    assert gap < 1e-3


@pytest.mark.parametrize("rule", ["gauss_hermite", "equal_probability"])
def test_weights_sum_to_one_and_nodes_are_symmetric(rule: str) -> None:
    z, weights = uncertainty.nodes_and_weights(uncertainty.Config(rule=rule, nodes=8))  # type: ignore[arg-type]
    assert weights.sum() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(np.sort(z), -np.sort(z)[::-1], atol=1e-6)


def test_threshold_is_the_quantile() -> None:
    values = jnp.arange(101.0)
    assert float(uncertainty.threshold(values, 0.8)) == pytest.approx(80.0)
