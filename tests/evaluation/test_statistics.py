"""Statistics against hand-computed values."""

import numpy as np
import pytest

from qdq.data.references import Reference, d4rl_reference
from qdq.evaluation import statistics


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert statistics.interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0])) == pytest.approx(3.5)


def test_interval_of_identical_seeds_is_a_point() -> None:
    assert statistics.bootstrap_interval(np.full(5, 42.0)) == (42.0, 42.0)


def test_interval_is_seeded_and_contains_the_estimate() -> None:
    scores = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    low, high = statistics.bootstrap_interval(scores)
    assert (low, high) == statistics.bootstrap_interval(scores)
    assert 10.0 <= low < statistics.interquartile_mean(scores) < high <= 50.0


def test_strata_do_not_mix_tasks() -> None:
    table = np.array([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]])  # seeds agree within each task
    assert statistics.bootstrap_interval(table) == (50.0, 50.0)


def test_summary_by_hand() -> None:
    made = statistics.summary([10.0, 20.0, 30.0])
    assert made["mean"] == pytest.approx(20.0)
    assert made["std"] == pytest.approx(10.0)
    assert made["iqm"] == pytest.approx(20.0)
    assert made["interval_95"] is not None
    assert statistics.summary([5.0])["interval_95"] is None


def test_scores_are_0_to_100() -> None:
    reference = d4rl_reference("Hopper-v4")
    assert reference is not None
    assert reference.score(-20.272305) == pytest.approx(0.0)
    assert reference.score(3234.3) == pytest.approx(100.0)
    assert d4rl_reference("CartPole-v1") is None
    assert Reference(0.0, 1.0, "success").score([0.0, 7.0]).tolist() == [0.0, 100.0]
