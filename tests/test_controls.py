"""What may stand in the place of H: each control on numbers, and the distribution of a teacher without a student."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq import controls
from qdq.algorithms import iql, qdq, uses_behaviour, uses_distribution
from qdq.algorithms.problem import Problem
from qdq.diffusion import preconditioning
from qdq.normalisers import unit_interval
from qdq.q_distribution import TeacherDistribution
from qdq.uncertainty import Config, mean_and_std

ROWS = 6
OBSERVATIONS = jnp.linspace(-1.0, 1.0, ROWS * 2).reshape(ROWS, 2)
ACTIONS = jnp.linspace(0.0, 1.0, ROWS).reshape(ROWS, 1)
CRITICS = jnp.stack([jnp.arange(1.0, ROWS + 1), jnp.arange(1.0, ROWS + 1) * 3])


class Fixed(eqx.Module):
    """Critics that answer with given numbers, and a Q distribution with the same spread."""

    numbers: jax.Array

    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return self.numbers

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        row = jnp.argmin(jnp.abs(observations[:, :1] - OBSERVATIONS[:, 0]), axis=1)
        return z * self.numbers[0][row]


def aware(signal: controls.Signal, key: int = 0, shuffle: bool = False) -> np.ndarray:
    config = qdq.Config(uncertainty=signal, alpha=0.5, beta=0.5, shuffle_risk=shuffle)
    recorded = controls.RecordedPairs.of(OBSERVATIONS, ACTIONS)
    problem = Problem(2, 1, 10, 0.0, 1.0, distribution=Fixed(CRITICS), recorded=recorded)  # type: ignore[arg-type]
    critics = Fixed(CRITICS)
    value, _ = qdq.uncertainty_aware(critics, OBSERVATIONS, ACTIONS, config, problem, jax.random.key(key))  # type: ignore[arg-type]
    return np.asarray(value)


def by_hand(h: np.ndarray) -> np.ndarray:
    """alpha * Q + (1 - alpha) * Q_L for positive Q, alpha = beta = 0.5."""
    q, border = np.asarray(CRITICS[0]), np.quantile(h, 0.5)
    return 0.5 * q + 0.5 * q * np.where(h > border, 0.5 * border / h, 0.5)


def test_constant_has_no_risk_set_and_equals_the_matched_discount() -> None:
    np.testing.assert_allclose(aware("constant"), 0.75 * CRITICS[0], rtol=1e-6)
    config = qdq.Config(penalty="discount", alpha=0.5, beta=0.5)
    problem = Problem(2, 1, 10, 0.0, 1.0)
    value, metrics = qdq.uncertainty_aware(Fixed(CRITICS), OBSERVATIONS, ACTIONS, config, problem, jax.random.key(0))  # type: ignore[arg-type]
    np.testing.assert_allclose(value, aware("constant"), rtol=1e-6)
    assert not metrics


def test_ensemble_is_the_disagreement_of_the_critics() -> None:
    np.testing.assert_allclose(aware("ensemble"), by_hand(np.std(CRITICS, axis=0)), rtol=1e-5)


def test_critics_that_agree_have_a_gradient() -> None:
    same = jnp.ones((2, ROWS))

    def disagreement(q: jax.Array) -> jax.Array:
        return jnp.sum(controls.stand_in("ensemble", q, OBSERVATIONS, ACTIONS, None, jax.random.key(0)))

    assert np.isfinite(jax.grad(disagreement)(same)).all()


def test_random_is_new_with_every_key_and_knows_nothing() -> None:
    h = np.exp(np.asarray(jax.random.normal(jax.random.key(0), (ROWS,))))
    np.testing.assert_allclose(aware("random"), by_hand(h), rtol=1e-5)
    assert not np.allclose(aware("random", 1), aware("random", 2))


def test_shuffled_judges_actions_at_other_states() -> None:
    np.testing.assert_allclose(aware("q_distribution"), by_hand(np.asarray(CRITICS[0])), rtol=1e-4)
    h = np.asarray(jax.random.permutation(jax.random.key(0), CRITICS[0]))
    np.testing.assert_allclose(aware("q_distribution", shuffle=True), by_hand(h), rtol=1e-4)


def test_nearest_is_the_distance_to_the_nearest_recorded_pair() -> None:
    generator = np.random.default_rng(0)
    recorded, asked = generator.normal(size=(50, 5)) * [1, 2, 3, 4, 5], generator.normal(size=(20, 5))
    recorded[:, 4] = 0.3  # a column that never changes is taken as it is
    scale = np.where(recorded.std(axis=0) > 1e-6, recorded.std(axis=0), 1.0)
    brute = np.linalg.norm((asked[:, None] - recorded) / scale, axis=-1).min(axis=1)
    pairs = controls.RecordedPairs.of(jnp.asarray(recorded[:, :3]), jnp.asarray(recorded[:, 3:]))
    distance = pairs.distance(jnp.asarray(asked[:, :3]), jnp.asarray(asked[:, 3:]))
    np.testing.assert_allclose(distance, brute, rtol=1e-4)
    assert float(pairs.distance(jnp.asarray(recorded[:1, :3]), jnp.asarray(recorded[:1, 3:]))[0]) < 1e-2


@pytest.mark.parametrize(
    ("penalty", "signal", "objective", "distribution", "behaviour"),
    [("signed", "q_distribution", "eq9", True, False), ("signed", "random", "eq9", False, False),
     ("none", "q_distribution", "eq9", False, False), ("discount", "q_distribution", "eq9", False, False),
     ("signed", "behaviour", "eq9", False, True), ("none", "behaviour", "support", True, True),
     ("none", "q_distribution", "support", True, False),
     ("none", "random", "support", False, False), ("none", "behaviour", "awr", False, False)],
)  # fmt: skip
def test_only_what_is_asked_for_is_learned(
    penalty: str, signal: str, objective: str, distribution: bool, behaviour: bool
) -> None:
    config = qdq.Config(penalty=penalty, uncertainty=signal, objective=objective)  # type: ignore[arg-type]
    assert uses_distribution("qdq", config) == distribution
    assert uses_behaviour("qdq", config) == behaviour
    other = iql.Config()
    assert not uses_behaviour("iql", other)
    assert not uses_distribution("iql", other)


class GaussianDenoiser(eqx.Module):
    """The network whose denoiser is optimal for a Gaussian of known mean and standard deviation (scaled units)."""

    mean: float
    std: float

    def __call__(self, observations: jax.Array, actions: jax.Array, scaled: jax.Array, c_noise: jax.Array) -> jax.Array:
        t = jnp.exp(4.0 * c_noise)
        c_skip, c_out, c_in, _ = preconditioning(t)
        x = scaled / c_in
        best = (self.std**2 * x + t**2 * self.mean) / (self.std**2 + t**2)
        return (best - c_skip * x) / c_out


def test_a_perfect_teacher_gives_the_moments_of_its_gaussian() -> None:
    distribution = TeacherDistribution(GaussianDenoiser(0.2, 0.3), unit_interval(0.0, 10.0))  # type: ignore[arg-type]
    mean, std = mean_and_std(distribution, OBSERVATIONS, ACTIONS, Config(nodes=8))
    np.testing.assert_allclose(mean, 5.0 + 5.0 * 0.2, atol=0.03)
    np.testing.assert_allclose(std, 5.0 * 0.3, rtol=0.08)  # 18 steps widen it by 6 %
    assert mean.shape == (ROWS,)
