"""The NumPy policies are the JAX policies, and densities are the true ones."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from qdq import networks
from qdq.errors import UsageError
from qdq.numpy_networks import host_layers
from qdq.online import acting


def test_log_std_limits_are_those_of_the_networks():
    assert (acting.LOG_STD_MIN, acting.LOG_STD_MAX) == (networks.LOG_STD_MIN, networks.LOG_STD_MAX)


def test_tanh_gaussian_log_density_matches_scipy_and_integrates_to_one():
    policy = networks.TanhGaussianPolicy(3, 1, (8,), jax.random.key(0))
    observation = jnp.asarray([0.3, -1.0, 2.0])
    mean, log_std = (float(value[0]) for value in policy.moments(observation))
    action, log_density = policy.sample_with_log_density(observation, jax.random.key(1))

    def density(a: float) -> float:
        return float(norm.pdf(np.arctanh(a), mean, np.exp(log_std)) / (1.0 - a**2))

    assert float(log_density) == pytest.approx(np.log(density(float(action[0]))), rel=1e-4)
    assert quad(density, -1.0, 1.0)[0] == pytest.approx(1.0, abs=1e-6)


def test_numpy_log_density_matches_scipy_and_jax():
    policy = networks.TanhGaussianPolicy(3, 2, (8,), jax.random.key(0))
    host = acting.TanhGaussianBehaviour(host_layers(policy.network))
    random = np.random.default_rng(0)
    observations, actions = random.standard_normal((50, 3)), random.uniform(-0.999, 0.999, (50, 2))
    means, log_stds = (np.asarray(value, np.float64) for value in policy.moments(jnp.asarray(observations)))
    density = norm.pdf(np.arctanh(actions), means, np.exp(log_stds)) / (1.0 - actions**2)
    np.testing.assert_allclose(host.log_density(observations, actions), np.log(density).sum(axis=1), rtol=1e-4)
    sampled, expected = policy.sample_with_log_density(jnp.asarray(observations), jax.random.key(1))
    np.testing.assert_allclose(host.log_density(observations, np.asarray(sampled)), expected, atol=1e-2)
    one = host.log_density(observations[0], actions[0])  # a single row
    assert one == pytest.approx(np.log(density[0]).sum(), rel=1e-4)

    def along(a: float) -> float:  # the second action in the middle
        return float(np.exp(host.log_density(observations[0], np.array([a, 0.1]))))

    rest = norm.pdf(np.arctanh(0.1), means[0, 1], np.exp(log_stds[0, 1])) / (1.0 - 0.1**2)
    assert quad(along, -1.0, 1.0)[0] / rest == pytest.approx(1.0, abs=1e-4)


def test_numpy_log_density_is_finite_at_the_border_and_knows_a_narrow_policy():
    layers = [(np.zeros((1, 2), np.float32), np.array([0.5, -9.0], np.float32))]  # mean 0.5, the smallest spread
    host = acting.TanhGaussianBehaviour(layers)
    border = host.log_density(np.zeros((2, 1)), np.array([[1.0], [-1.0]]))
    assert np.isfinite(border).all()
    np.testing.assert_array_equal(border, host.log_density(np.zeros((2, 1)), np.array([[1.0 - 1e-6], [1e-6 - 1.0]])))
    middle = host.log_density(np.zeros((1, 1)), np.tanh([[0.5]]))[0]
    expected = norm.logpdf(0.0, scale=np.exp(acting.LOG_STD_MIN)) - np.log(1.0 - np.tanh(0.5) ** 2)
    assert middle == pytest.approx(expected, rel=1e-6)
    assert border.max() < middle


def test_log_density_stays_finite_far_out():
    policy = networks.TanhGaussianPolicy(1, 1, (4,), jax.random.key(0))
    _, log_density = policy.sample_with_log_density(jnp.full((1,), 1e4), jax.random.key(1))
    assert np.isfinite(log_density)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_numpy_tanh_gaussian_equals_jax(scale):
    policy = networks.TanhGaussianPolicy(5, 2, (16, 16), jax.random.key(0))
    host = acting.TanhGaussianBehaviour(host_layers(policy.network))
    observation = scale * np.random.default_rng(0).standard_normal(5)
    np.testing.assert_allclose(host.act(observation, None), policy(jnp.asarray(observation)), atol=2e-5)

    noise = np.random.default_rng(7).standard_normal(2, np.float32)
    mean, log_std = policy.moments(jnp.asarray(observation))
    expected = jnp.tanh(mean + jnp.exp(log_std) * noise)
    np.testing.assert_allclose(host.act(observation, np.random.default_rng(7)), expected, atol=2e-5)


def test_numpy_deterministic_policy_equals_jax_and_explores_within_bounds():
    policy = networks.DeterministicPolicy(5, 2, (16, 16), jax.random.key(0))
    host = acting.NoisyBehaviour(host_layers(policy.network))
    observation = np.random.default_rng(0).standard_normal(5)
    mean = host.act(observation, None)
    np.testing.assert_allclose(mean, policy(jnp.asarray(observation)), atol=2e-5)
    random = np.random.default_rng(1)
    samples = np.stack([host.act(observation, random) for _ in range(4000)])
    np.testing.assert_allclose(samples.std(axis=0), acting.EXPLORATION_NOISE, rtol=0.1)
    assert np.abs(samples).max() <= 1.0


def test_scale_action_maps_the_unit_range():
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    np.testing.assert_allclose(acting.scale_action(np.array([-1.0, -1.0]), low, high), low)
    np.testing.assert_allclose(acting.scale_action(np.array([1.0, 1.0]), low, high), high)
    np.testing.assert_allclose(acting.scale_action(np.array([0.0, 0.5]), low, high), [0.0, 7.5])


def test_unknown_environment_is_a_usage_error_with_a_hint():
    with pytest.raises(UsageError, match="Hopper-v"):
        acting.make_environment("Hoper-v4")


def test_uniform_behaviour_needs_randomness():
    with pytest.raises(ValueError, match="randomness"):
        acting.UniformBehaviour(2).act(np.zeros(3), None)


def test_worker_modules_do_not_import_jax():
    code = "import sys, qdq.data.rollouts, qdq.data.mazes, qdq.online.snapshots; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_catalogue_is_cheap_to_import():
    code = "import sys, qdq.data.factory; sys.exit(any(name in sys.modules for name in ('gymnasium', 'jax', 'minari')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
