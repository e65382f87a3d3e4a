"""Acting in the real environment: a batch of episodes in lockstep, seeded, so that a score can be had again."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdq.data.episodes import Metadata
from qdq.data.flatten import flatten_observation, layout_of
from qdq.data.mazes import register_robotics
from qdq.errors import DataError, UsageError

Act = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Episodes:
    """What came of an evaluation, one entry per episode."""

    returns: list[float]
    lengths: list[int]


def make_environment(metadata: Metadata) -> Any:
    """The environment in which policies from this dataset are evaluated."""
    import gymnasium

    identifier = metadata.environment_id
    if identifier is None:
        raise UsageError(
            f"Dataset {metadata.name!r} names no environment, so its policies cannot be scored in one; "
            "give environment_id when the data is loaded, or use the policy without a score."
        )
    register_robotics(identifier)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # v4 is what D4RL scores refer to
        try:
            return gymnasium.make(identifier, **metadata.environment_options)
        except (gymnasium.error.Error, TypeError, ValueError, OSError) as error:  # the options are the file's
            raise UsageError(f"Environment {identifier!r} cannot be made ({error}); check environment_id.") from error


def without_bookkeeping(environment: Any) -> tuple[Any, float]:
    """The environment inside Gymnasium's outermost checks, and its time limit, which is then the caller's to keep.

    They cost as much as a layer of the policy; any other wrapper stays.
    """
    from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

    limit = math.inf
    while type(environment) in (OrderEnforcing, PassiveEnvChecker, TimeLimit):
        if type(environment) is TimeLimit:
            specification: Any = environment.spec
            limit = min(limit, specification.max_episode_steps)
        environment = environment.env
    return environment, limit


class Evaluator:
    """A fixed set of environments that plays `episodes` episodes at a time."""

    def __init__(self, metadata: Metadata, episodes: int, observation_size: int, action_size: int):
        made = [without_bookkeeping(make_environment(metadata)) for _ in range(episodes)]
        self.environments, self.limits = [environment for environment, _ in made], [limit for _, limit in made]
        self.observation_size = observation_size
        self.layout = layout_of(self.environments[0].observation_space)
        self._plain = self.layout.parts[0][0] == ""  # vectors need no joining, which would take a tenth of the time
        found = self.layout.size
        if found != observation_size:
            raise DataError(
                f"Environment {metadata.environment_id!r} has observations of size {found}, but dataset {metadata.name!r} has "
                f"{observation_size}; it was recorded in another environment or version."
            )

        actions = self.environments[0].action_space.shape
        if actions != (action_size,):
            raise DataError(
                f"Environment {metadata.environment_id!r} takes actions of shape {actions}, but dataset {metadata.name!r} has "
                f"actions of size {action_size}; it was recorded in another environment or version."
            )

    def play(self, act: Act, seed: int) -> Episodes:
        """One episode per environment with the batched policy `act`; the same seed gives the same episodes."""
        played = self.play_unless(act, seed, lambda: False)
        assert played is not None
        return played

    def play_unless(self, act: Act, seed: int, stopped: Callable[[], bool]) -> Episodes | None:
        """The same, but None as soon as `stopped` says so."""
        count = len(self.environments)
        observations = np.zeros((count, self.observation_size), np.float32)
        for i, environment in enumerate(self.environments):
            observations[i] = self._vector(environment.reset(seed=seed + i)[0])
        returns, lengths = [0.0] * count, [0] * count
        playing = list(range(count))
        while playing:
            if stopped():
                return None
            actions = act(observations)
            for i in list(playing):
                observation, reward, terminal, truncated, _ = self.environments[i].step(actions[i])
                observations[i] = self._vector(observation)
                returns[i] += float(reward)
                lengths[i] += 1
                if terminal or truncated or lengths[i] >= self.limits[i]:
                    playing.remove(i)
        return Episodes(returns, lengths)

    def _vector(self, observation: Any) -> np.ndarray:
        return observation if self._plain else flatten_observation(observation, self.layout)

    def close(self) -> None:
        """Free the environments."""
        for environment in self.environments:
            environment.close()
