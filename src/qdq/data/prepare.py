"""From a dataset to what the stages train on: shifted and scaled rewards, normalised states, arrays on the device."""

from dataclasses import dataclass, replace
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from qdq import algorithms, normalisers, q_dataset
from qdq.config import Config
from qdq.data.batches import TransitionData, WindowData
from qdq.data.episodes import Dataset
from qdq.errors import DataError
from qdq.normalisers import Affine


@dataclass(frozen=True, eq=False)
class Prepared:
    """A dataset ready for training, with everything needed to undo the preparation."""

    dataset: Dataset  # with shifted and scaled rewards
    windows: q_dataset.QDataset
    observation_normaliser: Affine
    action_scaler: Affine
    transitions: TransitionData

    @cached_property
    def window_data(self) -> WindowData:
        """The windows on the device, with values scaled to [-1, 1], for the stages of the Q distribution."""
        scale = normalisers.unit_interval(self.windows.minimum, self.windows.maximum)
        values = scale.forward(jnp.asarray(self.windows.values))
        return WindowData(self.transitions, jnp.asarray(self.windows.index, jnp.int32), values)


def prepare(dataset: Dataset, config: Config) -> Prepared:
    """Apply the `data` and `q_dataset` sections of a configuration."""
    dataset = replace(dataset, rewards=_rewards(dataset, config))
    # Algorithms that do not learn from the windows take data on which all of them are the same.
    needs_windows = config.algorithm_name in algorithms.USES_Q_DISTRIBUTION
    windows = (q_dataset.build if needs_windows else q_dataset.collect)(dataset, config.q_dataset)
    returns, exact = q_dataset.truncated_returns(dataset, config.q_dataset.width, config.q_dataset.discount)
    if getattr(config.algorithm, "extraction_share", 0.0) > 0 and exact.mean() < 0.05:
        width = max(2, int(np.median(dataset.lengths)) // 2)
        raise DataError(
            f"Dataset {dataset.name!r} has episodes that are cut by a time limit before a window of {config.q_dataset.width} "
            f"steps is full; use a shorter one, such as --set q_dataset.width={width}."
        )
    size = dataset.observation_size
    normaliser = (
        normalisers.standard(dataset.observations) if config.data.normalise_states else normalisers.identity(size)
    )
    scaler = normalisers.unit_interval(dataset.action_low, dataset.action_high)
    transitions = TransitionData(
        normaliser.forward(jnp.asarray(dataset.observations)),
        jnp.asarray(dataset.rows, jnp.int32),
        jnp.clip(scaler.forward(jnp.asarray(dataset.actions)), -1.0, 1.0),
        jnp.asarray(dataset.rewards),
        jnp.asarray(dataset.terminals, jnp.float32),
        jnp.asarray(returns),
        jnp.asarray(exact, jnp.float32),
    )
    return Prepared(dataset, windows, normaliser, scaler, transitions)


def _rewards(dataset: Dataset, config: Config) -> np.ndarray:
    rewards = dataset.rewards
    if config.data.reward_scaling == "return_range":
        complete = dataset.episode_returns[dataset.complete]
        spread = float(complete.max() - complete.min()) if len(complete) else 0.0
        if spread <= 0:
            raise DataError(
                f"Dataset {dataset.name!r} has the same return in every episode, so rewards cannot be scaled by their range; "
                "use --set data.reward_scaling=none."
            )
        rewards = rewards * np.float32(1000.0 / spread)
    return rewards + np.float32(config.data.reward_shift)
