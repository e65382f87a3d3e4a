"""SAC and TD3: targets by hand, and one contract for both."""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq.data.batches import ReplayBuffer, Transitions
from qdq.networks import copy
from qdq.online import sac, td3
from qdq.training.loop import compile_chunk

OBSERVATIONS, ACTIONS = 3, 2
METHODS: dict[str, Any] = {"sac": sac, "td3": td3}
SMALL = {"policy_hidden": (4,), "critic_hidden": (4,), "batch_size": 32}


@cache
def _fresh(name: str) -> Any:
    method = METHODS[name]
    return method.init(method.Config(**SMALL), OBSERVATIONS, ACTIONS, jax.random.key(0))


def fresh(name: str) -> Any:
    """A new state; built once, because its dozen small programs take seconds to compile."""
    return copy(_fresh(name))


def batch(count: int = 4) -> Transitions:
    random = np.random.default_rng(0)
    return Transitions(
        jnp.asarray(random.standard_normal((count, OBSERVATIONS)), jnp.float32),
        jnp.asarray(random.uniform(-1, 1, (count, ACTIONS)), jnp.float32),
        jnp.arange(count, dtype=jnp.float32),
        jnp.asarray(random.standard_normal((count, OBSERVATIONS)), jnp.float32),
        jnp.asarray([0.0, 1.0] * (count // 2), jnp.float32),
    )


class Constant(eqx.Module):
    """Stands in for a policy or for critics: returns what it was given."""

    value: jax.Array

    def __call__(self, *inputs: jax.Array) -> jax.Array:
        return self.value


class FirstAction(eqx.Module):
    """Two critics that return the first action's coordinate, and the same plus one."""

    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return jnp.stack([actions[:, 0] + 1.0, actions[:, 0]])


def test_td3_target_by_hand():
    data = batch()
    state = fresh("td3")
    policy = Constant(jnp.tile(jnp.asarray([0.2, 0.0]), (4, 1)))
    state = eqx.tree_at(lambda s: (s.target_policy, s.target_critics), state, (policy, FirstAction()))
    # 0.2 * noise = [0.1, 2 -> clipped to 0.5, -2 -> -0.5, 1 (0.2 * 5) -> 0.5]; actions 0.3, 0.7, -0.3, 0.7.
    noise = jnp.asarray([[0.5, 0.0], [10.0, 0.0], [-10.0, 0.0], [5.0, 0.0]])
    target = td3.bellman_target(state, td3.Config(discount=0.5), data, noise)
    # The smaller critic is the action itself; rows 1 and 3 are terminal.
    np.testing.assert_allclose(target, [0 + 0.5 * 0.3, 1.0, 2 + 0.5 * -0.3, 3.0], rtol=1e-6)


def test_td3_target_action_is_clipped_to_the_action_range():
    data = batch()
    state = fresh("td3")
    policy = Constant(jnp.full((4, ACTIONS), 0.9))
    state = eqx.tree_at(lambda s: (s.target_policy, s.target_critics), state, (policy, FirstAction()))
    target = td3.bellman_target(state, td3.Config(discount=1.0), data, jnp.full((4, ACTIONS), 2.0))
    np.testing.assert_allclose(target, [1.0, 1.0, 3.0, 3.0])


def test_td3_first_step_leaves_policy_and_targets_alone():
    config = td3.Config(**SMALL)
    state = fresh("td3")
    critic_step, full_step = (jax.jit(step) for step in td3.steps(config, ACTIONS))
    after, _ = critic_step(state, batch(), jax.random.key(1))
    assert eqx.tree_equal(after.policy, state.policy)
    assert eqx.tree_equal(after.target_critics, state.target_critics)
    assert not eqx.tree_equal(after.critics, state.critics)
    final, metrics = full_step(after, batch(), jax.random.key(2))
    assert not eqx.tree_equal(final.policy, state.policy)
    assert not eqx.tree_equal(final.target_policy, state.target_policy)
    assert set(metrics) == {"critic_loss", "q_mean", "policy_loss"}


class FixedSampler(eqx.Module):
    """A policy that always samples the same action with the same log density."""

    def sample_with_log_density(self, observations: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        count = observations.shape[0]
        return jnp.full((count, ACTIONS), 0.5), jnp.full(count, -2.0)


def test_sac_critic_loss_by_hand():
    data = batch()
    state = fresh("sac")
    state = eqx.tree_at(
        lambda s: (s.policy, s.target_critics, s.log_temperature), state, (FixedSampler(), FirstAction(), jnp.log(0.25))
    )
    # Value of what follows: min Q - temperature * log density = 0.5 + 0.25 * 2 = 1.
    target = np.array([0 + 0.5, 1.0, 2 + 0.5, 3.0])
    loss, _ = sac.critic_loss(Constant(jnp.zeros((2, 4))), state, sac.Config(discount=0.5), data, jax.random.key(1))  # type: ignore[arg-type]
    np.testing.assert_allclose(loss, np.mean(target**2), rtol=1e-6)


def test_sac_policy_loss_by_hand():
    state = fresh("sac")
    state = eqx.tree_at(lambda s: (s.critics, s.log_temperature), state, (FirstAction(), jnp.log(0.25)))
    loss, metrics = sac.policy_loss(FixedSampler(), state, batch(), jax.random.key(1))  # type: ignore[arg-type]
    np.testing.assert_allclose(loss, 0.25 * -2.0 - 0.5, rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], 2.0)


def test_sac_temperature_rises_when_the_entropy_is_too_low():
    config = sac.Config(**SMALL)
    state = fresh("sac")
    tight = state.policy.network.layers[-1].bias.at[ACTIONS:].set(-20.0)
    state = eqx.tree_at(lambda s: s.policy.network.layers[-1].bias, state, tight)
    (step,) = sac.steps(config, ACTIONS)
    after, metrics = jax.jit(step)(state, batch(), jax.random.key(1))
    assert float(metrics["entropy"]) < -ACTIONS
    assert float(after.log_temperature) > float(state.log_temperature)


@pytest.mark.parametrize("name", list(METHODS))
def test_training_is_deterministic_finite_and_improves_the_critics(name: str):
    method = METHODS[name]
    config = method.Config(**SMALL)
    buffer = ReplayBuffer.empty(64, OBSERVATIONS, ACTIONS).insert(batch(64))
    chunk = compile_chunk(method.steps(config, ACTIONS), config.batch_size, 40)

    def run() -> tuple[Any, list[float]]:
        state, losses = fresh(name), []
        for first in range(0, 400, 40):
            state, metrics = chunk(state, buffer, jax.random.key(1), jnp.asarray(first))
            losses.append(float(metrics["critic_loss"]))
        return state, losses

    (state, losses), (again, _) = run(), run()
    assert eqx.tree_equal(state, again)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
