"""What an algorithm is told about the data and the run, besides its own configuration."""

from dataclasses import dataclass

from qdq.controls import RecordedPairs
from qdq.q_distribution import QDistribution
from qdq.uncertainty import Config as UncertaintyConfig


@dataclass(frozen=True, eq=False)
class Problem:
    """Sizes, scales and the learned Q distribution (for algorithms that ask for one)."""

    observation_size: int
    action_size: int
    steps: int  # length of the run, for schedules
    reward_minimum: float
    return_std: float  # spread of the truncated returns: the unit of advantages
    distribution: QDistribution | None = None
    uncertainty: UncertaintyConfig = UncertaintyConfig()
    recorded: RecordedPairs | None = None  # for the control that looks for the nearest recorded action
