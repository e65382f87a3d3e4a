"""The truncated Q dataset against a brute-force double loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdq import q_dataset
from qdq.data.episodes import Dataset, from_arrays
from qdq.errors import DataError


def make(lengths: list[int], terminal: list[bool], seed: int) -> Dataset:
    random = np.random.default_rng(seed)
    count = sum(lengths)
    ends = np.cumsum(lengths) - 1
    terminals, truncations = np.zeros(count, bool), np.zeros(count, bool)
    terminals[ends], truncations[ends] = terminal, ~np.asarray(terminal)
    observations = random.normal(size=(count, 2))
    following = np.roll(observations, -1, axis=0)
    following[ends] = random.normal(size=(len(ends), 2))
    return from_arrays(
        observations, random.uniform(-1, 1, (count, 1)), random.normal(size=count), terminals, truncations, following
    )


episodes = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=6).filter(
    lambda items: max(length for length, _ in items) > 1
)


def brute_force(data: Dataset, width: int, discount: float) -> tuple[list[float], list[bool]]:
    returns, exact = [], []
    for start, length in zip(data.starts, data.lengths, strict=True):
        for i in range(length):
            total = 0.0
            for m in range(i, min(i + width, length)):
                total += discount ** (m - i) * float(data.rewards[start + m])
            returns.append(total)
            exact.append(i + width <= length or bool(data.terminals[start + length - 1]))
    return returns, exact


@given(episodes, st.integers(1, 40), st.floats(0.5, 0.999), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_returns_equal_the_double_loop(items: list[tuple[int, bool]], width: int, discount: float, seed: int) -> None:
    data = make([length for length, _ in items], [terminal for _, terminal in items], seed)
    returns, exact = q_dataset.truncated_returns(data, width, discount)
    expected, expected_exact = brute_force(data, width, discount)
    np.testing.assert_allclose(returns, expected, atol=1e-4)
    np.testing.assert_array_equal(exact, expected_exact)


@given(episodes, st.integers(1, 12), st.integers(1, 40), st.sampled_from(["exact", "release"]), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_windows_are_the_documented_ones(
    items: list[tuple[int, bool]], stride: int, width: int, tail: str, seed: int
) -> None:
    data = make([length for length, _ in items], [terminal for _, terminal in items], seed)
    config = q_dataset.Config(width=width, stride=stride, tail=tail)  # type: ignore[arg-type]
    expected = []
    for start, (length, terminal) in zip(data.starts, items, strict=True):
        kept = 0
        for i in range(0, length, stride):
            if tail == "exact":
                if i == 0 or terminal or i + width <= length:
                    expected.append(start + i)
            elif kept < 100:
                expected.append(start + i)
                kept += 1
                if i + width >= length:
                    break
    try:
        built = q_dataset.build(data, config)
    except DataError:  # all windows the same, a single one for instance
        assert np.ptp(q_dataset.truncated_returns(data, width, config.discount)[0][expected]) < 1e-3
        return
    assert built.index.tolist() == expected
    assert built.minimum == built.values.min()
    assert built.maximum == built.values.max()


def test_a_reward_in_another_episode_changes_nothing() -> None:
    data = make([20, 20], [False, True], 0)
    before, _ = q_dataset.truncated_returns(data, 15, 0.9)
    data.rewards[20:] += 100.0
    after, _ = q_dataset.truncated_returns(data, 15, 0.9)
    np.testing.assert_array_equal(before[:20], after[:20])


def test_antmaze_minimum() -> None:
    count = 1000
    rewards = np.zeros(count)
    rewards[500] = 1.0  # one success, so that the returns differ
    data = from_arrays(
        np.zeros((count, 1)), np.zeros((count, 1)), rewards - 1.0, np.zeros(count), np.arange(count) == count - 1
    )
    built = q_dataset.build(data, q_dataset.Config(tail="release"))
    assert built.minimum == pytest.approx(-86.60203, abs=1e-4)


def test_release_keeps_at_most_100_windows() -> None:
    data = make([3000], [False], 1)
    built = q_dataset.build(data, q_dataset.Config(width=50, stride=10, tail="release"))
    assert len(built.index) == 100


def test_constant_returns_name_the_dataset() -> None:
    data = from_arrays(np.zeros((10, 1)), np.zeros((10, 1)), np.zeros(10), np.arange(10) == 9)
    with pytest.raises(DataError, match="'arrays' has the same truncated return"):
        q_dataset.build(data, q_dataset.Config())


@given(episodes, st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_width_is_kept_where_enough_windows_are_exact(items: list[tuple[int, bool]], width: int, seed: int) -> None:
    data = make([length for length, _ in items], [terminal for _, terminal in items], seed)
    exact = np.mean(brute_force(data, width, 0.99)[1])
    fitting = q_dataset.fitting_width(data, width)
    assert fitting == (width if exact >= q_dataset.FEWEST_EXACT else min(width, max(2, np.median(data.lengths) // 2)))


def test_half_an_episode_fits() -> None:
    """Episodes of 24 steps that a time limit cuts: thirteen of their windows of 12 steps are exact, of 200 none."""
    data = make([24] * 10, [False] * 10, 0)
    assert q_dataset.fitting_width(data, 200) == 12
    assert q_dataset.collect(data, q_dataset.Config(width=12)).exact_share == pytest.approx(13 / 24)
