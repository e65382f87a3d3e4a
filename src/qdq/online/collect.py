"""Collecting transitions for the replay buffer of an online run."""

from typing import Any

import numpy as np

from qdq.data.batches import Transitions
from qdq.online.acting import BehaviourPolicy, scale_action


class Collector:
    """Steps one environment block by block, going on with the episode where the last block ended."""

    def __init__(self, environment: Any, seed: int):
        self.environment = environment
        self.random = np.random.default_rng(seed)
        self.low, self.high = environment.action_space.low, environment.action_space.high
        self.observation, _ = environment.reset(seed=seed)
        self.episode_return = 0.0
        self.returns: list[float] = []

    def block(self, length: int, policy: BehaviourPolicy) -> Transitions:
        """`length` transitions on the host."""
        size, actions = self.observation.shape[0], self.low.shape[0]
        observations, next_observations = np.empty((2, length, size), np.float32)
        taken = np.empty((length, actions), np.float32)
        rewards, terminals = np.empty((2, length), np.float32)
        for i in range(length):
            action = policy.act(self.observation, self.random)
            following, reward, terminal, truncated, _ = self.environment.step(scale_action(action, self.low, self.high))
            observations[i], taken[i], rewards[i] = self.observation, action, reward
            next_observations[i], terminals[i] = following, float(terminal)
            self.observation, self.episode_return = following, self.episode_return + float(reward)
            if terminal or truncated:
                self.returns.append(self.episode_return)
                self.observation, _ = self.environment.reset()
                self.episode_return = 0.0
        return Transitions(observations, taken, rewards, next_observations, terminals)  # type: ignore[arg-type]
