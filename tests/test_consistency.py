"""The two learners of the Q distribution against known conditional distributions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qdq import consistency, diffusion, quantile, uncertainty
from qdq.diffusion import TIME_MIN
from qdq.networks import ConditionalScalar
from qdq.normalisers import unit_interval
from qdq.q_distribution import QDistribution
from qdq.training.loop import train
from tests.probes import KnownDistribution, grid_points

NETWORK = ConditionalScalar(1, 1, (64, 64), jax.random.key(0), fourier_scale=1.0, groups=8)


@given(*(st.floats(-size, size, allow_subnormal=False) for size in (3, 1, 1)))  # XLA flushes subnormal numbers to zero
@settings(max_examples=30, deadline=None)
def test_boundary_condition_is_exact(x: float, s: float, a: float) -> None:
    value = consistency.consistency_function(
        NETWORK, jnp.array([x]), jnp.asarray(TIME_MIN), jnp.array([[s]]), jnp.array([[a]])
    )
    assert float(value[0]) == np.float32(x)


def errors(network: ConditionalScalar, data: KnownDistribution) -> tuple[float, float, float]:
    """RMS error of the mean, relative RMS error of the standard deviation, and rank correlation of the latter."""
    s, a = grid_points()
    mean, std = data.moments(s, a)
    distribution = QDistribution(network, unit_interval(-1.0, 1.0))
    rule = uncertainty.Config(rule="equal_probability", nodes=64)
    learned_mean, learned_std = uncertainty.mean_and_std(distribution, s, a, rule)
    mean_error = float(jnp.sqrt(jnp.mean(jnp.square(learned_mean - mean))))
    std_error = float(jnp.sqrt(jnp.mean(jnp.square(learned_std / std - 1.0))))
    return mean_error, std_error, float(stats.spearmanr(np.asarray(learned_std), np.asarray(std))[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("bimodal", [False, True])
def test_quantile_learner_matches_a_known_distribution(bimodal: bool) -> None:
    data = KnownDistribution(bimodal)
    config = quantile.Config(steps=2_000, learning_rate=2e-3)
    state = quantile.init(config, jax.tree.map(jnp.array, NETWORK))
    state = train(quantile.steps(config), state, data, key=jax.random.key(1), batch_size=256, stop=2_000, chunk=1_000)
    mean_error, std_error, rank = errors(state.network, data)
    assert mean_error < 0.05
    assert std_error < 0.15
    assert rank > 0.85


@pytest.mark.parametrize("bimodal", [False, True])
def test_distilled_student_matches_a_known_distribution(bimodal: bool) -> None:
    data = KnownDistribution(bimodal)
    teacher = diffusion.Config(steps=3_000, learning_rate=2e-3, cosine_decay=True)
    state = diffusion.init(teacher, jax.tree.map(jnp.array, NETWORK))
    state = train(diffusion.steps(teacher), state, data, key=jax.random.key(1), batch_size=256, stop=3_000, chunk=1_000)
    student = consistency.Config(steps=2_000, intervals=40, target_rate=0.05, learning_rate=1e-3, cosine_decay=True)
    state = consistency.init(student, state.network)
    state = train(
        consistency.steps(student), state, data, key=jax.random.key(2), batch_size=256, stop=2_000, chunk=1_000
    )
    mean_error, std_error, rank = errors(state.network, data)
    assert mean_error < 0.08
    assert std_error < 0.35
    assert rank > 0.7


def test_student_and_target_start_from_the_teacher() -> None:
    state = consistency.init(consistency.Config(), NETWORK)
    for network in (state.network, state.target, state.teacher):
        for ours, teachers in zip(jax.tree.leaves(network), jax.tree.leaves(NETWORK), strict=True):
            np.testing.assert_array_equal(ours, teachers)


def test_every_noise_level_is_trained_and_the_highest_too(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def recording(denoiser: Any, x: jax.Array, t: jax.Array, following: jax.Array) -> jax.Array:
        drawn.append((np.asarray(t), np.asarray(following)))
        return x

    monkeypatch.setattr(consistency, "heun_step", recording)
    grid, rows = diffusion.time_grid(10), KnownDistribution(False).sample(jax.random.key(1), 500)
    consistency.loss(NETWORK, NETWORK, NETWORK, grid, rows, jax.random.key(0))
    (t, following), levels = drawn[0], np.asarray(grid)
    assert levels[0] == pytest.approx(diffusion.TIME_MAX, rel=1e-6)  # where sampling starts
    assert set(zip(t.tolist(), following.tolist(), strict=True)) == set(
        zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True)
    )
