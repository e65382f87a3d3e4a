import numpy as np
import pytest
from gymnasium import spaces

from qdq.data.flatten import ObservationLayout, flatten_observation, layout_of
from qdq.errors import DataError


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float64)


MAZE = spaces.Dict({"achieved_goal": box(2), "desired_goal": box(2), "observation": box(27)})


def test_one_step_and_batches_agree() -> None:
    layout = layout_of(MAZE)
    batch = {
        key: np.random.default_rng(0).normal(size=(5, 3, space.shape[0]))
        for key, space in MAZE.spaces.items()
        if space.shape
    }
    flat = flatten_observation(batch, layout)
    assert flat.shape == (5, 3, 31)
    assert flat.dtype == np.float32
    single = flatten_observation({key: value[2, 1] for key, value in batch.items()}, layout)
    np.testing.assert_array_equal(flat[2, 1], single)


def test_layouts_survive_json() -> None:
    layout = layout_of(MAZE)
    assert ObservationLayout.from_json(layout.to_json()) == layout
    with pytest.raises(DataError, match="names and widths"):
        ObservationLayout.from_json([1, 2])


def test_vectors_and_other_dictionaries() -> None:
    assert layout_of(box(5)).size == 5
    np.testing.assert_array_equal(flatten_observation(np.arange(5), layout_of(box(5))), np.arange(5, dtype=np.float32))
    other = layout_of(spaces.Dict({"speed": box(1), "angle": box(3)}))
    assert other.parts == (("angle", 3), ("speed", 1))


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(DataError, match="only vectors"):
        layout_of(spaces.Box(0, 255, (8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="only vectors"):
        layout_of(spaces.Dict({"a": spaces.Discrete(3)}))
    with pytest.raises(DataError, match="lacks 'achieved_goal'"):
        flatten_observation({"observation": np.zeros(27), "desired_goal": np.zeros(2)}, layout_of(MAZE))
    with pytest.raises(DataError, match="last axis must be 27"):
        flatten_observation({key: np.zeros(2) for key in MAZE.spaces}, layout_of(MAZE))
    with pytest.raises(DataError, match="plain observation"):
        flatten_observation(np.zeros(31), layout_of(MAZE))
