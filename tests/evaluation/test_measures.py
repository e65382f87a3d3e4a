"""Measures against brute force and closed forms, then on a distribution that is known."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from qdq.evaluation import measures
from tests.probes import KnownDistribution

# Few different numbers, so that ties are common.
numbers = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]) | st.floats(-5, 5), min_size=1, max_size=12)


@given(numbers, numbers)
@settings(max_examples=200, deadline=None)
def test_auroc_counts_pairs(negatives: list[float], positives: list[float]) -> None:
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    assert measures.auroc(np.array(negatives), np.array(positives)) == pytest.approx(np.mean(pairs))


def test_auroc_of_what_is_separable_and_of_what_is_the_same() -> None:
    low, high = np.arange(50.0), np.arange(50.0) + 100.0
    assert measures.auroc(low, high) == 1.0
    assert measures.auroc(high, low) == 0.0
    assert measures.auroc(low, low) == 0.5
    assert measures.auroc(np.ones(7), np.ones(3)) == 0.5


@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(-5, 5)), min_size=3, max_size=15))
@settings(max_examples=100, deadline=None)
def test_spearman_is_scipys(pairs: list[tuple[int, float]]) -> None:
    first, second = np.array(pairs, float).T
    ours = measures.spearman(first, second)
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert np.isnan(ours)
    else:
        theirs: Any = scipy.stats.spearmanr(first, second)
        assert ours == pytest.approx(theirs.statistic, abs=1e-12)


@given(numbers, st.floats(-6, 6))
@settings(max_examples=200, deadline=None)
def test_crps_is_its_definition(values: list[float], observed: float) -> None:
    x = np.array(values)
    expected = np.mean(np.abs(x - observed)) - 0.5 * np.mean(np.abs(x[:, None] - x[None]))
    assert measures.crps(x[:, None], np.array([observed]))[0] == pytest.approx(expected, abs=1e-12)


def normal_quantiles(count: int, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    return mean + std * ndtri((np.arange(count) + 0.5) / count)[:, None]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (3.0, 0.2), (-50.0, 10.0)])
def test_crps_of_a_gaussian_has_a_closed_form(mean: float, std: float) -> None:
    observed = mean + std * np.linspace(-3, 3, 13)
    z = (observed - mean) / std
    normal = scipy.stats.norm
    expected = std * (z * (2 * normal.cdf(z) - 1) + 2 * normal.pdf(z) - 1 / np.sqrt(np.pi))
    quantiles = normal_quantiles(1000, np.full(13, mean), np.full(13, std))
    np.testing.assert_allclose(measures.crps(quantiles, observed), expected, atol=2e-4 * std)


@given(numbers, st.sampled_from([-2.5, -2.0, -1.0, 0.0, 0.25, 1.0, 3.0, 9.0]))
@settings(max_examples=200, deadline=None)
def test_pit_lies_between_the_shares_below_and_up_to_the_value(values: list[float], observed: float) -> None:
    x, half = np.array(values), 0.5 / len(values)
    level = measures.pit(x[:, None], np.array([observed]))[0]
    assert 0.0 < level < 1.0
    assert np.mean(x < observed) - half <= level <= np.mean(x <= observed) + half


def test_pit_of_a_gaussian_is_its_distribution_function() -> None:
    observed = np.linspace(-2, 2, 41)
    quantiles = normal_quantiles(200, np.zeros(41), np.ones(41))
    np.testing.assert_allclose(measures.pit(quantiles, observed), scipy.stats.norm.cdf(observed), atol=2e-3)


def test_coverage_by_hand() -> None:
    quantiles = np.tile(np.linspace(0.005, 0.995, 100)[:, None], (1, 5))  # of the uniform distribution on [0, 1]
    observed = np.array([0.05, 0.2499, 0.2501, 0.5, 0.99])
    assert measures.coverage(quantiles, observed, 0.5) == pytest.approx(2 / 5)
    assert measures.coverage(quantiles, observed, 0.8) == pytest.approx(3 / 5)
    assert measures.coverage(quantiles, observed, 0.95) == pytest.approx(4 / 5)


def test_share_within_rows() -> None:
    random = np.random.default_rng(0)
    rows, noise = random.normal(size=(4000, 1)), random.normal(size=(4000, 8))
    assert measures.share_within(3.0 * rows + noise) == pytest.approx(0.1, abs=0.01)
    assert measures.share_within(np.tile(rows, (1, 8))) == 0.0
    assert measures.share_within(np.tile(noise[:1], (4000, 1))) == 1.0
    assert np.isnan(measures.share_within(np.ones((5, 8))))


def test_the_papers_check_gives_the_papers_beta() -> None:
    recorded = np.linspace(0.0, 1.0, 1001)
    random = np.linspace(0.0, 0.95 / 0.75, 1001)  # three quarters of it below the line that 5 % of the recorded exceed
    quantile = measures.border_quantile(recorded, random)
    assert quantile == pytest.approx(0.75, abs=0.002)
    assert measures.starting_beta(quantile) == pytest.approx(0.75, abs=0.002)
    assert measures.starting_beta(measures.border_quantile(recorded, recorded)) == 0.95
    assert (
        measures.starting_beta(measures.border_quantile(recorded, 0.1 * recorded)) == 0.95
    )  # H is the wrong way round
    assert measures.starting_beta(measures.border_quantile(recorded, recorded + 5.0)) == 0.5


def known(distortion: float) -> dict[str, float]:
    """Calibration of the known Gaussian distribution, with its spread multiplied by `distortion`."""
    batch = KnownDistribution(bimodal=False).sample(jax.random.key(0), 4000)
    mean, std = KnownDistribution(bimodal=False).moments(batch.observations, batch.actions)
    quantiles = normal_quantiles(100, np.asarray(mean, float), distortion * np.asarray(std, float))
    observed = np.asarray(batch.values, float)
    marginal = np.quantile(observed, (np.arange(100) + 0.5) / 100, method="hazen")[:, None]
    found = measures.calibration(quantiles, observed, marginal)
    assert sum(found["pit_histogram"]) == pytest.approx(1.0)
    deviation = max(abs(20 * height - 1) for height in found["pit_histogram"])
    return {**found["coverage"], "skill": found["crps_skill"], "pit": deviation}


def test_the_true_distribution_is_calibrated_and_a_distorted_one_is_not() -> None:
    right, narrow, wide = known(1.0), known(0.5), known(2.0)
    for share in measures.COVERAGES:
        # Five standard errors of a share of 4000.
        assert right[f"{share:.0%}"] == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 4000))
        assert narrow[f"{share:.0%}"] < share - 0.1
    assert wide["50%"] > 0.75
    assert right["pit"] < 0.4 < min(narrow["pit"], wide["pit"])
    assert right["skill"] > max(narrow["skill"], wide["skill"])
    assert right["skill"] > 0.2
