"""Theorem 1: truncated returns are near the true ones, by gamma^T c / (1 - gamma) for rewards within +-c."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qdq.data.episodes import Dataset, from_arrays
from qdq.q_dataset import truncated_returns

LONG = 1500  # 0.97^1500 is 1e-20: the return of an episode of this length stands for that of an endless one


def recorded(rewards: np.ndarray, terminal: bool = False) -> Dataset:
    """One episode with these rewards that ends in a terminal or at a time limit."""
    count = len(rewards)
    last = np.arange(count) == count - 1
    return from_arrays(np.zeros((count, 1)), np.zeros((count, 1)), rewards, last & terminal, last & (not terminal))


def true_returns(rewards: np.ndarray, discount: float) -> np.ndarray:
    """Discounted sums to the end, by the recursion that defines them."""
    returns, following = np.zeros(len(rewards)), 0.0
    for step in reversed(range(len(rewards))):
        returns[step] = following = rewards[step] + discount * following
    return returns


@given(st.integers(0, 2**31), st.integers(1, 200), st.floats(0.5, 0.97))
@settings(max_examples=40, deadline=None)
def test_distance_of_values_and_of_distributions(seed: int, width: int, discount: float) -> None:
    random = np.random.default_rng(seed)
    largest = random.uniform(0.1, 10.0)
    rewards = random.uniform(-largest, largest, LONG).astype(np.float32)
    window = slice(0, LONG // 2)  # far from the end of the recording
    truncated = truncated_returns(recorded(rewards), width, discount)[0][window]
    true = true_returns(rewards, discount)[window]
    bound = discount**width * largest / (1 - discount)
    slack = 1e-5 * largest / (1 - discount)
    assert np.abs(truncated - true).max() <= bound + slack
    assert np.abs(np.sort(truncated) - np.sort(true)).max() <= bound + slack  # every quantile of the distribution


def test_the_bound_is_reached() -> None:
    """Constant rewards c: what lies beyond the window is gamma^T c / (1 - gamma) exactly."""
    rewards = np.full(LONG, 2.0, np.float32)
    missing = true_returns(rewards, 0.95)[0] - truncated_returns(recorded(rewards), 40, 0.95)[0][0]
    np.testing.assert_allclose(missing, 0.95**40 * 2.0 / 0.05, rtol=1e-4)


def test_rewards_must_be_bounded_from_below_too() -> None:
    """The paper asks for r < c only; rewards of -100 are below 1 and break the bound a hundredfold."""
    rewards = np.full(LONG, -100.0, np.float32)
    missing = true_returns(rewards, 0.95)[0] - truncated_returns(recorded(rewards), 40, 0.95)[0][0]
    assert abs(missing) > 90 * 0.95**40 * 1.0 / 0.05


def test_a_terminal_makes_every_window_exact_and_a_time_limit_none() -> None:
    """A window cut by a time limit misses what it would have seen: no bound holds, and the product says so."""
    rewards = np.ones(50, np.float32)
    returns, exact = truncated_returns(recorded(rewards, terminal=True), 200, 0.95)
    assert exact.all()
    np.testing.assert_allclose(returns, true_returns(rewards, 0.95), rtol=1e-5)
    returns, exact = truncated_returns(recorded(rewards), 200, 0.95)
    assert not exact.any()
    endless = 1.0 / 0.05
    assert endless - returns[-1] > 100 * 0.95**200 * endless
