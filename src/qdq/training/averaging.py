"""A moving average of the policy's weights, which is evaluated and deployed in the policy's place; for any algorithm.

The score of single weights swings by tens of points between evaluations, that of their average does not.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from qdq.networks import copy, moving_average
from qdq.training.loop import Metrics, Step


class Averaged(eqx.Module):
    """The state of an algorithm, and the average of its policy over so many cycles of steps."""

    cycles: Array
    state: Any
    average: Any


@dataclass(frozen=True)
class Averaging:
    """An algorithm that answers with the average of its policy."""

    algorithm: ModuleType
    rate: float

    def init(self, config: Any, problem: Any, key: Array) -> Averaged:
        """Fresh networks."""
        state = self.algorithm.init(config, problem, key)
        return Averaged(jnp.zeros((), jnp.int32), state, copy(self.algorithm.policy(state)))

    def steps(self, config: Any, problem: Any) -> tuple[Step, ...]:
        """The algorithm's cycle of steps, after the last of which the average moves."""
        cycle = self.algorithm.steps(config, problem)
        return tuple(self._lifted(step, last=step is cycle[-1]) for step in cycle)

    def _lifted(self, step: Step, last: bool) -> Step:
        def lifted(averaged: Averaged, batch: Any, key: Array) -> tuple[Averaged, Metrics]:
            state, metrics = step(averaged.state, batch, key)
            if not last:
                return Averaged(averaged.cycles, state, averaged.average), metrics
            cycles = averaged.cycles + 1
            # It starts as a plain mean, so that it never holds the weights from before training.
            rate = jnp.maximum(self.rate, 1.0 / cycles)
            return Averaged(
                cycles, state, moving_average(averaged.average, self.algorithm.policy(state), rate)
            ), metrics

        return lifted

    def policy(self, averaged: Averaged) -> Any:
        """The policy to evaluate and deploy."""
        return averaged.average


def averaging(algorithm: ModuleType, rate: float) -> Any:
    """The algorithm with an averaged policy; the algorithm itself where the rate is 0."""
    return Averaging(algorithm, rate) if rate > 0 else algorithm
