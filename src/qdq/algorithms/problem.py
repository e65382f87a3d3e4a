"""What an algorithm is told about the data and the run, besides its own configuration."""

from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from qdq import algorithms
from qdq.behaviour import BehaviourModel
from qdq.controls import RecordedPairs
from qdq.q_distribution import QDistribution
from qdq.uncertainty import Config as UncertaintyConfig


@dataclass(frozen=True, eq=False)
class Problem:
    """Sizes, scales and what the earlier stages learned (for algorithms that ask for it)."""

    observation_size: int
    action_size: int
    steps: int  # length of the run, for schedules
    reward_minimum: float
    return_std: float  # spread of the truncated returns: the unit of advantages
    return_mean: float = 0.0  # of the truncated returns
    distribution: QDistribution | None = None
    uncertainty: UncertaintyConfig = UncertaintyConfig()
    recorded: RecordedPairs | None = None  # for the control that looks for the nearest recorded action
    behaviour: BehaviourModel | None = None  # of the recorded actions (for settings that ask for it)
    surprise_border: float = float("inf")  # of the risk set


def state_shapes(config: Any, observation_size: int, action_size: int) -> Any:
    """The state of a run's algorithm before the first step, as shapes: nothing is computed, and no data is needed."""
    name, settings = config.algorithm_name, config.algorithm
    sizes = observation_size, action_size

    def state(key: Array) -> Any:
        uses_model = algorithms.uses_behaviour(name, settings)
        model = BehaviourModel(*sizes, config.behaviour, key) if uses_model else None
        problem = Problem(*sizes, config.training.steps, 0.0, 1.0, behaviour=model)
        return algorithms.get(name).init(settings, problem, key)

    return jax.eval_shape(state, jax.random.key(0))
