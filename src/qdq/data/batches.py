"""Training data on the device: pytrees that draw batches inside jitted code."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from qdq.diffusion import QBatch


class Transitions(NamedTuple):
    """A batch of transitions; `terminals` is 1.0 where the task ended, and 0.0 at a time limit."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array


class LoggedTransitions(NamedTuple):
    """A batch from a dataset: transitions with what really followed them."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminals: Array
    returns: Array  # truncated return of the transition's window, in reward units
    exact: Array  # 1.0 where that return is exact, 0.0 where a time limit cut it short


class TransitionData(eqx.Module):
    """A dataset on the device: observations normalised, actions in [-1, 1], next observations by index."""

    observations: Array
    rows: Array
    actions: Array
    rewards: Array
    terminals: Array
    returns: Array
    exact: Array

    def at(self, index: Array) -> LoggedTransitions:
        """The transitions at `index`."""
        rows = self.rows[index]
        return LoggedTransitions(
            self.observations[rows],
            self.actions[index],
            self.rewards[index],
            self.observations[rows + 1],
            self.terminals[index],
            self.returns[index],
            self.exact[index],
        )

    def sample(self, key: Array, batch_size: int) -> LoggedTransitions:
        """Transitions drawn uniformly with replacement."""
        return self.at(jax.random.randint(key, (batch_size,), 0, len(self.rewards)))


class SomeTransitions(eqx.Module):
    """Part of a dataset on the device."""

    transitions: TransitionData
    index: Array

    def sample(self, key: Array, batch_size: int) -> LoggedTransitions:
        """Transitions of that part drawn uniformly with replacement."""
        return self.transitions.at(self.index[jax.random.randint(key, (batch_size,), 0, len(self.index))])


class WindowData(eqx.Module):
    """The Q dataset on the device: window starts and their scaled truncated returns."""

    transitions: TransitionData
    index: Array
    values: Array

    def sample(self, key: Array, batch_size: int) -> QBatch:
        """Windows drawn uniformly with replacement."""
        chosen = jax.random.randint(key, (batch_size,), 0, len(self.index))
        index = self.index[chosen]
        transitions = self.transitions
        return QBatch(
            transitions.observations[transitions.rows[index]], transitions.actions[index], self.values[chosen]
        )


class WindowBlock(eqx.Module):
    """Some windows of the Q dataset on the device: where they start, and their scaled truncated returns."""

    observations: Array
    actions: Array
    values: Array

    def sample(self, key: Array, batch_size: int) -> QBatch:
        """Windows drawn uniformly with replacement."""
        chosen = jax.random.randint(key, (batch_size,), 0, len(self.values))
        return QBatch(self.observations[chosen], self.actions[chosen], self.values[chosen])


class ReplayBuffer(eqx.Module):
    """A growing ring of transitions for online training."""

    transitions: Transitions
    size: Array

    @classmethod
    def empty(cls, capacity: int, observation_size: int, action_size: int) -> "ReplayBuffer":
        """A buffer without transitions."""
        zeros = partial(jnp.zeros, dtype=jnp.float32)
        observations = (capacity, observation_size)
        return cls(
            Transitions(
                zeros(observations),
                zeros((capacity, action_size)),
                zeros(capacity),
                zeros(observations),
                zeros(capacity),
            ),
            jnp.zeros((), jnp.int32),
        )

    @partial(jax.jit, donate_argnums=0)
    def insert(self, block: Transitions) -> "ReplayBuffer":
        """The buffer with `block` appended; the capacity must be a multiple of the block's length."""
        capacity, length = self.transitions.rewards.shape[0], block.rewards.shape[0]
        position = self.size % capacity
        transitions = jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, position, axis=0), self.transitions, block
        )
        return ReplayBuffer(transitions, self.size + length)

    def sample(self, key: Array, batch_size: int) -> Transitions:
        """Transitions drawn uniformly with replacement."""
        filled = jnp.minimum(self.size, self.transitions.rewards.shape[0])
        index = jax.random.randint(key, (batch_size,), 0, filled)
        return jax.tree.map(lambda array: array[index], self.transitions)
