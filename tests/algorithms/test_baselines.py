"""TD3+BC and IQL on hand-computed numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq.algorithms import bc, iql, td3_bc
from qdq.algorithms.problem import Problem
from tests.algorithms.test_qdq import Constant, batch

PROBLEM = Problem(2, 1, 10, 0.0, 1.0)


def test_td3_bc_target_separates_terminal_from_truncated() -> None:
    config = td3_bc.Config(discount=0.9)
    state = td3_bc.init(config, PROBLEM, jax.random.key(0))
    state = eqx.tree_at(lambda s: s.target_critics, state, Constant(jnp.array([[4.0], [7.0]])))
    rows = batch([1.0, 1.0], [1.0, 0.0])  # the second may well be the last of a truncated episode: it bootstraps
    target = td3_bc.bellman_target(state, config, rows, jax.random.key(1))  # type: ignore[arg-type]
    np.testing.assert_allclose(target, [1.0, 1.0 + 0.9 * 4.0], rtol=1e-6)


def test_td3_bc_policy_loss_by_hand() -> None:
    state = td3_bc.init(td3_bc.Config(), PROBLEM, jax.random.key(0))
    rows = batch([0.0, 0.0], [0.0, 0.0])._replace(actions=jnp.array([[0.5], [-0.5]]))
    loss, _ = td3_bc.policy_loss(state.policy, Constant(jnp.array([[-4.0], [0.0]])), td3_bc.Config(), rows)  # type: ignore[arg-type]
    action = state.policy(rows.observations)
    imitation = np.mean(np.square(np.asarray(action) - np.asarray(rows.actions)))
    assert float(loss) == pytest.approx(2.5 * 4.0 / 4.0 + imitation, rel=1e-5)


def test_iql_losses_by_hand() -> None:
    config = iql.Config(discount=0.9)
    state = iql.init(config, PROBLEM, jax.random.key(0))
    state = eqx.tree_at(lambda s: s.target_critics, state, Constant(jnp.array([[3.0], [5.0]])))

    def value(level: float):
        return lambda observations: jnp.full((*observations.shape[:-1], 1), level)

    rows = batch([1.0, 1.0], [1.0, 0.0])
    above, _ = iql.value_loss(value(2.0), state, config, rows)  # type: ignore[arg-type]
    below, _ = iql.value_loss(value(4.0), state, config, rows)  # type: ignore[arg-type]
    assert float(above) == pytest.approx(0.7 * 1.0)
    assert float(below) == pytest.approx(0.3 * 1.0)
    loss, _ = iql.critic_loss(Constant(jnp.array([[0.0], [0.0]])), value(2.0), config, rows)  # type: ignore[arg-type]
    assert float(loss) == pytest.approx((1.0 + (1 + 0.9 * 2.0) ** 2) / 2, rel=1e-5)


def test_bc_loss_is_the_squared_distance() -> None:
    state = bc.init(bc.Config(), PROBLEM, jax.random.key(0))
    rows = batch([0.0], [0.0])._replace(actions=jnp.array([[0.7]]))
    loss, _ = bc.policy_loss(state.policy, rows)
    assert float(loss) == pytest.approx(float((state.policy(rows.observations)[0, 0] - 0.7) ** 2), rel=1e-5)
