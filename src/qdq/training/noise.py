"""Noise on the states that are learned from, for any algorithm (what it did to scores: docs/research.md).

A step sees its states before and after with the same noise, so that the step itself stays what it was.
"""

import jax
from jax import Array

from qdq.data.batches import LoggedTransitions
from qdq.training.loop import Metrics, Step

STATE_NOISE = 7  # random role, apart from those of the algorithms


def perturbed(batch: LoggedTransitions, scale: float, key: Array) -> LoggedTransitions:
    """The batch with normal noise of this standard deviation on its states."""
    noise = scale * jax.random.normal(key, batch.observations.shape)
    return batch._replace(observations=batch.observations + noise, next_observations=batch.next_observations + noise)


def with_state_noise(cycle: tuple[Step, ...], scale: float) -> tuple[Step, ...]:
    """The cycle of steps on perturbed batches; the cycle itself where the noise is 0."""

    def lifted(step: Step) -> Step:
        def noisy(state: object, batch: LoggedTransitions, key: Array) -> tuple[object, Metrics]:
            return step(state, perturbed(batch, scale, jax.random.fold_in(key, STATE_NOISE)), key)

        return noisy

    return tuple(lifted(step) for step in cycle) if scale > 0 else cycle
