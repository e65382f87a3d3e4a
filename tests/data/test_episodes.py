from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.references import Reference
from qdq.errors import DataError


def brute_force(rows: dict[str, Any], with_next: bool) -> list[dict[str, Any]]:
    """Episodes by walking over the rows one at a time."""
    episodes: list[dict[str, Any]] = []
    current: dict[str, Any] = {"observations": [], "actions": [], "rewards": [], "terminal": False}
    count = len(rows["rewards"])
    for i in range(count):
        terminal, truncated = bool(rows["terminals"][i]), bool(rows["truncations"][i])
        jump = False
        if with_next and i + 1 < count and not terminal and not truncated:
            jump = not np.allclose(rows["next_observations"][i], rows["observations"][i + 1], rtol=1e-4, atol=1e-5)
        end = terminal or truncated or jump or i == count - 1
        current["observations"].append(rows["observations"][i])
        if not with_next and end and not terminal:  # what follows is unknown, so the step itself is dropped
            if current["rewards"]:
                episodes.append(current)
            current = {"observations": [], "actions": [], "rewards": [], "terminal": False}
            continue
        current["actions"].append(rows["actions"][i])
        current["rewards"].append(rows["rewards"][i])
        if end:
            current["observations"].append(rows["next_observations"][i] if with_next else rows["observations"][i])
            current["terminal"] = terminal
            episodes.append(current)
            current = {"observations": [], "actions": [], "rewards": [], "terminal": False}
    return episodes


@st.composite
def random_rows(draw: st.DrawFn) -> tuple[dict[str, Any], bool]:
    count = draw(st.integers(2, 40))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    kinds = draw(st.lists(st.sampled_from("....TX"), min_size=count, max_size=count))
    observations = random.normal(size=(count, 3)).astype(np.float32)
    following = np.roll(observations, -1, axis=0)
    terminals, truncations = np.array([k == "T" for k in kinds]), np.array([k == "X" for k in kinds])
    ends = terminals | truncations
    ends[-1] = True
    following[ends] = random.normal(size=(int(ends.sum()), 3))
    return {
        "observations": observations,
        "actions": random.uniform(-1, 1, (count, 2)).astype(np.float32),
        "rewards": random.normal(size=count).astype(np.float32),
        "terminals": terminals,
        "truncations": truncations,
        "next_observations": following,
    }, draw(st.booleans())


@settings(max_examples=150, deadline=None)
@given(random_rows())
def test_from_arrays_equals_a_walk_over_the_rows(drawn: tuple[dict[str, Any], bool]) -> None:
    rows, with_next = drawn
    expected = brute_force(rows, with_next)
    given_rows = rows if with_next else {key: value for key, value in rows.items() if key != "next_observations"}
    if not expected or max(len(episode["rewards"]) for episode in expected) < 2:
        with pytest.raises(DataError):
            from_arrays(**given_rows)
        return
    dataset = from_arrays(**given_rows)
    assert dataset.lengths.tolist() == [len(episode["rewards"]) for episode in expected]
    np.testing.assert_array_equal(dataset.observations, np.concatenate([e["observations"] for e in expected]))
    np.testing.assert_array_equal(dataset.actions, np.concatenate([e["actions"] for e in expected]))
    np.testing.assert_array_equal(dataset.rewards, np.concatenate([e["rewards"] for e in expected]))
    final = np.cumsum(dataset.lengths) - 1
    assert dataset.terminals[final].tolist() == [episode["terminal"] for episode in expected]
    np.testing.assert_array_equal(dataset.truncations[final], ~dataset.terminals[final])
    assert dataset.terminals.sum() + dataset.truncations.sum() == dataset.episodes


@settings(max_examples=60, deadline=None)
@given(random_rows())
def test_rows_of_a_dataset_rebuild_it(drawn: tuple[dict[str, Any], bool]) -> None:
    try:
        first = from_arrays(**drawn[0])
    except DataError:
        return
    again = from_arrays(
        first.current_observations,
        first.actions,
        first.rewards,
        first.terminals,
        first.truncations,
        first.next_observations,
    )
    assert again.sha256 == first.sha256


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observations": np.full((27, 4), np.nan)}, "NaN"),
        ({"rewards": np.full(27, 1e300)}, "infinity"),
        ({"actions": np.full((27, 2), "x")}, "numbers are needed"),
        ({"terminals": np.full(27, 2)}, "flags"),
        ({"terminals": np.zeros(5)}, "one flag per transition"),
        ({"actions": np.zeros((27, 0))}, "no columns"),
        ({"actions": np.zeros((5, 2))}, "one row per transition"),
        ({"next_observations": np.zeros((27, 3))}, "must agree"),
        ({"action_low": -1.0}, "both"),
        ({"action_low": [1, 2, 3], "action_high": 4}, "one number"),
        ({"action_low": "x", "action_high": 1}, "one number"),
        ({"action_low": -np.inf, "action_high": np.inf}, "not finite"),
        ({"action_low": 1.0, "action_high": 1.0}, "empty range"),
        ({"action_low": 0.0, "action_high": 1.0}, "outside the declared"),
        ({"terminals": np.ones(27)}, "one-step"),
    ],
)
def test_bad_arrays_are_named_in_one_sentence(make_rows: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_arrays(**{**make_rows(), **change})


def test_shuffled_rows_are_refused(make_rows: Any) -> None:
    rows = make_rows((200,), (False,))
    order = np.random.default_rng(0).permutation(200)
    with pytest.raises(DataError, match="time order"):
        from_arrays(**{key: value[order] for key, value in rows.items()})


def test_a_jump_splits_the_episode_and_is_counted(make_rows: Any) -> None:
    rows = make_rows((20,), (True,))
    rows["next_observations"][9] += 5.0
    dataset = from_arrays(**rows)
    assert dataset.lengths.tolist() == [10, 10]
    assert dataset.metadata.details["discontinuities"] == 1
    assert dataset.truncations[9]


def test_selection_keeps_only_its_own_cut(make_rows: Any) -> None:
    rows = make_rows((5, 6), (True, False))
    rows["truncations"][:] = False
    dataset = from_arrays(**rows)
    assert dataset.complete.tolist() == [True, False]
    assert dataset.select(np.array([0])).complete.tolist() == [True]
    both = dataset.select(np.array([1, 0]))
    assert both.lengths.tolist() == [6, 5]
    np.testing.assert_array_equal(both.next_observations[:6], rows["next_observations"][5:])
    with pytest.raises(DataError, match="at least one"):
        dataset.select(np.array([], int))


def test_success_scores_each_maze_episode_once(make_rows: Any) -> None:
    rows = make_rows((5, 5), (False, False))
    rows["rewards"] = np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 0], np.float32)
    dataset = from_arrays(**rows, metadata=Metadata(reference=Reference(0.0, 1.0, "success")))
    assert dataset.behaviour_score == 50.0


def test_inconsistent_parts_are_refused(dataset: Dataset) -> None:
    from dataclasses import replace

    with pytest.raises(DataError, match="add up"):
        replace(dataset, lengths=dataset.lengths + np.array([1, -1, 1, 0]))
    with pytest.raises(DataError, match="shape"):
        replace(dataset, terminals=dataset.terminals[1:])
