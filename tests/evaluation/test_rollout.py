"""An evaluation plays the same episodes as a plain loop around Gymnasium does."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

from qdq.data.episodes import Metadata
from qdq.evaluation.rollout import Evaluator, without_bookkeeping
from qdq.numpy_networks import NumpyMLP


def act(observations: np.ndarray) -> np.ndarray:
    return np.tanh(observations[..., :3]).astype(np.float32)


@pytest.mark.parametrize("options", [{}, {"max_episode_steps": 7}])
def test_evaluation_equals_a_plain_loop(options: dict[str, Any]) -> None:
    evaluator = Evaluator(Metadata("data", environment_id="Hopper-v4", environment_options=options), 4, 11, 3)
    played = evaluator.play(act, seed=5)
    evaluator.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = gymnasium.make("Hopper-v4", **options)
    for i in range(4):
        observation, _ = environment.reset(seed=5 + i)
        total, length, ended = 0.0, 0, False
        while not ended:
            observation, reward, terminal, truncated, _ = environment.step(act(observation.astype(np.float32)))
            total, length, ended = total + float(reward), length + 1, terminal or truncated
        assert (played.returns[i], played.lengths[i]) == (pytest.approx(total, rel=1e-6), length)
    assert "max_episode_steps" not in options or max(played.lengths) <= 7


def test_only_the_outermost_checks_are_taken_off() -> None:
    inner, limit = without_bookkeeping(gymnasium.make("Pendulum-v1", max_episode_steps=500))
    assert inner is inner.unwrapped
    assert limit == 500
    scaled = TransformReward(gymnasium.make("Pendulum-v1"), lambda reward: 2 * float(reward))
    kept, limit = without_bookkeeping(TimeLimit(scaled, 30))
    assert kept is scaled
    assert limit == 30


@pytest.mark.parametrize("count", [1, 10, 33])
def test_rows_go_through_a_network_as_they_would_alone(count: int) -> None:
    random = np.random.default_rng(0)
    layers = [(random.normal(size=(a, b)), random.normal(size=b)) for a, b in ((4, 32), (32, 16), (16, 2))]
    network = NumpyMLP(layers)
    x = random.normal(size=(count, 4)).astype(np.float32)
    hidden = np.maximum(np.maximum(x @ layers[0][0] + layers[0][1], 0) @ layers[1][0] + layers[1][1], 0)
    np.testing.assert_allclose(network(x), hidden @ layers[2][0] + layers[2][1], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(network(x), np.stack([network(row) for row in x]), rtol=1e-4, atol=1e-3)
