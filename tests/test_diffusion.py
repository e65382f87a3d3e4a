"""The teacher: closed forms of EDM for Gaussian data."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq import diffusion
from qdq.networks import ConditionalScalar
from qdq.training.loop import train
from tests.probes import KnownDistribution, grid_points


def gaussian_denoiser(mean: float, std: float) -> diffusion.Denoiser:
    """The optimal denoiser of N(mean, std^2) is linear in x."""
    return lambda x, t: (std**2 * x + t**2 * mean) / (std**2 + t**2)


def test_grid_runs_from_the_highest_to_the_lowest_noise() -> None:
    grid = np.asarray(diffusion.time_grid(1000))
    assert len(grid) == 1001
    assert grid[0] == pytest.approx(80.0, rel=1e-5)
    assert grid[-1] == pytest.approx(0.002, rel=1e-3)
    assert (np.diff(grid) < 0).all()


def test_heun_sampler_reproduces_a_gaussian() -> None:
    prior = 80.0 * jax.random.normal(jax.random.key(0), (20_000,))
    samples = diffusion.sample(gaussian_denoiser(0.3, 0.2), prior, diffusion.time_grid(40))
    assert float(jnp.mean(samples)) == pytest.approx(0.3, abs=0.01)
    assert float(jnp.std(samples)) == pytest.approx(0.2, rel=0.03)


def test_heun_step_is_second_order() -> None:
    denoiser = gaussian_denoiser(0.0, 0.5)
    exact = jnp.asarray(1.0) * jnp.sqrt((0.25 + 1.0) / (0.25 + 4.0))  # the flow of a Gaussian scales with its spread

    def error(steps: int) -> float:
        times, x = jnp.linspace(2.0, 1.0, steps + 1), jnp.asarray(1.0)
        for t, following in itertools.pairwise(times):
            x = diffusion.heun_step(denoiser, x, t, following)
        return float(abs(x - exact))

    assert error(4) / error(8) == pytest.approx(4.0, rel=0.25)


def test_teacher_learns_the_optimal_denoiser() -> None:
    data = KnownDistribution(bimodal=False)
    config = diffusion.Config(steps=2_000, learning_rate=2e-3, cosine_decay=True)
    network = ConditionalScalar(1, 1, (64, 64), jax.random.key(0), fourier_scale=1.0, groups=8)
    state = diffusion.init(config, network)
    state = train(diffusion.steps(config), state, data, key=jax.random.key(1), batch_size=256, stop=2_000, chunk=1_000)
    s, a = grid_points(6)
    mean, std = data.moments(s, a)
    for level in (0.1, 0.3, 1.0):
        t = jnp.asarray(level)
        for shift in (-1.0, 0.0, 1.0):
            x = mean + shift * jnp.sqrt(std**2 + t**2)
            expected = (std**2 * x + t**2 * mean) / (std**2 + t**2)
            learned = diffusion.denoise(state.network, x, t, s, a)
            assert float(jnp.sqrt(jnp.mean(jnp.square(learned - expected)))) < 0.04
