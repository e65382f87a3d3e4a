"""The average of a policy's weights: a plain mean first, a moving one later, nothing where the rate is zero."""

import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.algorithms import bc
from qdq.training.averaging import averaging


class Walk(eqx.Module):
    """A state whose policy is one number that grows by what the batch says."""

    number: jax.Array


def _algorithm() -> types.SimpleNamespace:
    def wait(state: Walk, batch: jax.Array, key: jax.Array) -> tuple[Walk, dict[str, jax.Array]]:
        return state, {}

    def walk(state: Walk, batch: jax.Array, key: jax.Array) -> tuple[Walk, dict[str, jax.Array]]:
        return Walk(state.number + batch), {"number": state.number}

    return types.SimpleNamespace(
        init=lambda config, problem, key: Walk(jnp.asarray(100.0)),
        steps=lambda config, problem: (wait, walk),
        policy=lambda state: state.number,
    )


def test_average_by_hand() -> None:
    averaged = averaging(_algorithm(), 0.5)  # type: ignore[arg-type]
    state = averaged.init(None, None, jax.random.key(0))
    first, last = averaged.steps(None, None)
    seen, expected = [], []
    number, average = 100.0, 0.0
    for cycle, move in enumerate([1.0, 3.0, -2.0, 5.0], start=1):
        before = averaged.policy(state)
        state, _ = first(state, jnp.asarray(move), jax.random.key(1))
        assert averaged.policy(state) is before  # the average moves once in a cycle
        state, metrics = last(state, jnp.asarray(move), jax.random.key(1))
        assert float(metrics["number"]) == number
        number += move
        average += max(0.5, 1.0 / cycle) * (number - average)
        seen.append(float(averaged.policy(state)))
        expected.append(average)
    np.testing.assert_allclose(seen, expected)
    assert seen[0] == 101.0  # nothing is left of the weights from before training


def test_rate_zero_is_the_algorithm_itself() -> None:
    assert averaging(bc, 0.0) is bc
