"""Gradient descent on any pytree of parameters, with types that say so."""

from typing import Any, TypeVar

import optax

Parameters = TypeVar("Parameters")


def start(optimiser: optax.GradientTransformation, parameters: Any) -> optax.OptState:
    """The optimiser's state before the first step."""
    return optimiser.init(parameters)


def descend(
    optimiser: optax.GradientTransformation, gradients: Any, state: optax.OptState, parameters: Parameters
) -> tuple[Parameters, optax.OptState]:
    """The parameters and the optimiser's state after one step."""
    updates, state = optimiser.update(gradients, state, parameters)  # type: ignore[arg-type]
    return optax.apply_updates(parameters, updates), state  # type: ignore[return-value, arg-type]


def learning_rate(rate: float, cosine_decay: bool, steps: int) -> optax.ScalarOrSchedule:
    """A constant rate, or one that falls to zero along a cosine."""
    return optax.cosine_decay_schedule(rate, max(1, steps)) if cosine_decay else rate
