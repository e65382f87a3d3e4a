"""Statistics against hand-computed values."""

import numpy as np
import pytest

from qdq.data.references import Reference, d4rl_reference
from qdq.evaluation import statistics


def test_interquartile_mean_drops_a_quarter_at_each_end() -> None:
    assert statistics.interquartile_mean(np.array([100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -50.0])) == pytest.approx(3.5)
    ragged = [np.array([100.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0, 6.0, -50.0])]
    assert statistics.interquartile_mean(ragged) == pytest.approx(3.5)


def test_interval_of_identical_seeds_is_a_point() -> None:
    assert statistics.bootstrap_interval(np.full(5, 42.0)) == (42.0, 42.0)


def test_interval_is_seeded_and_contains_the_estimate() -> None:
    scores = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    interval = statistics.bootstrap_interval(scores)
    assert interval is not None
    low, high = interval
    assert interval == statistics.bootstrap_interval(scores)
    assert 10.0 <= low < statistics.interquartile_mean(scores) < high <= 50.0


def test_intervals_of_few_seeds_by_hand() -> None:
    """Two seeds: a quarter of all draws is the lower one twice. Three: one in 27, which is more than 2.5 %."""
    assert statistics.bootstrap_interval(np.array([10.0, 30.0])) == (10.0, 30.0)
    assert statistics.bootstrap_interval(np.array([10.0, 20.0, 60.0])) == (10.0, 60.0)
    # Of the 27 draws of three, 26 % have a mean of at most 50/3, and 85 % one of at most 130/3 (74 % less than that).
    interval = statistics.bootstrap_interval(np.array([10.0, 20.0, 60.0]), confidence=0.6)
    assert interval == pytest.approx((50 / 3, 130 / 3))


def test_strata_do_not_mix_tasks() -> None:
    table = np.array([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]])  # seeds agree within each task
    assert statistics.bootstrap_interval(table) == (50.0, 50.0)
    assert statistics.bootstrap_interval([np.zeros(2), np.full(2, 100.0)]) == (50.0, 50.0)


def test_a_single_seed_has_no_interval() -> None:
    assert statistics.bootstrap_interval(np.array([5.0])) is None
    assert statistics.bootstrap_interval([np.array([5.0, 6.0]), np.array([7.0])]) is None
    assert statistics.performance_profile(np.array([5.0]), np.array([0.0])).low is None
    assert statistics.probability_of_improvement(np.array([5.0, 6.0]), np.array([1.0])) == (1.0, None)


def test_summary_by_hand() -> None:
    made = statistics.summary([10.0, 20.0, 30.0])
    assert made["mean"] == pytest.approx(20.0)
    assert made["std"] == pytest.approx(10.0)
    assert made["iqm"] == pytest.approx(20.0)
    assert made["interval_95"] == [10.0, 30.0]
    assert statistics.summary([5.0])["interval_95"] is None


def test_performance_profile_by_hand() -> None:
    """Tasks count the same: (1/2 + 1/4) / 2 above 20, whatever the number of their seeds."""
    tasks = [np.array([10.0, 30.0]), np.array([0.0, 10.0, 20.0, 30.0])]
    made = statistics.performance_profile(tasks, np.array([-1.0, 10.0, 20.0, 30.0]))
    np.testing.assert_allclose(made.share, [1.0, 0.5, 0.375, 0.0])
    assert made.low is not None
    assert made.high is not None
    assert (made.low[0], made.high[0]) == (1.0, 1.0)  # all runs lie above, in every draw
    assert (made.low[3], made.high[3]) == (0.0, 0.0)
    assert (made.low <= made.share).all()
    assert (made.share <= made.high).all()


def test_a_band_of_the_profile_by_hand() -> None:
    """One task, two seeds, one above: the share is 0, 1/2, 1 in 1/4, 1/2, 1/4 of the draws, so the band is [0, 1]."""
    made = statistics.performance_profile(np.array([10.0, 30.0]), np.array([20.0]))
    assert made.low is not None
    assert made.high is not None
    assert (made.share[0], made.low[0], made.high[0]) == (0.5, 0.0, 1.0)


def test_probability_of_improvement_by_hand() -> None:
    """First task: of 2 x 2 pairs two wins, one tie. Second task: always worse. Tasks count the same."""
    first = [np.array([1.0, 3.0]), np.array([0.0, 0.0])]
    second = [np.array([1.0, 2.0]), np.array([5.0, 5.0])]
    estimate, interval = statistics.probability_of_improvement(first, second)
    assert estimate == pytest.approx(((2 + 0.5) / 4 + 0.0) / 2)
    assert interval is not None
    assert interval[0] == pytest.approx(0.0)  # (1, 1) against (2, 2): one draw in 16
    assert interval[1] == pytest.approx(0.5)  # (3, 3) against anything
    back, reverse = statistics.probability_of_improvement(second, first)
    assert back == pytest.approx(1.0 - estimate)
    assert reverse == pytest.approx((0.5, 1.0))


def test_equal_methods_improve_half_of_the_time() -> None:
    same = np.full((4, 3), 7.0)
    assert statistics.probability_of_improvement(same, same) == (0.5, (0.5, 0.5))
    with pytest.raises(ValueError, match="same tasks"):
        statistics.probability_of_improvement(same, same[:, :2])


def test_scores_are_0_to_100() -> None:
    reference = d4rl_reference("Hopper-v4")
    assert reference is not None
    assert reference.score(-20.272305) == pytest.approx(0.0)
    assert reference.score(3234.3) == pytest.approx(100.0)
    assert d4rl_reference("CartPole-v1") is None
    assert Reference(0.0, 1.0, "success").score([0.0, 7.0]).tolist() == [0.0, 100.0]
