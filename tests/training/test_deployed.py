"""A deployed policy acts the same on the host and through JAX."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq import normalisers
from qdq.behaviour import BehaviourModel, HeldPolicy
from qdq.behaviour import Config as BehaviourConfig
from qdq.networks import MLP, DeterministicPolicy, GaussianPolicy
from qdq.training.deployed import DeployedPolicy


class Halved(eqx.Module):
    """A policy of another kind than the project's own: half the observation's first two numbers."""

    def __call__(self, observations: Any) -> Any:
        return 0.5 * observations[..., :2]


def deployed(network: Any) -> DeployedPolicy:
    scaler = normalisers.unit_interval(np.array([-2.0, 0.0]), np.array([2.0, 3.0]))
    observations = np.random.default_rng(1).normal(3.0, 2.0, (50, 4))
    return DeployedPolicy(network, normalisers.standard(observations), scaler)


def held(observation_size: int, action_size: int, hidden: tuple[int, ...], key: jax.Array) -> HeldPolicy:
    model = BehaviourModel(observation_size, action_size, BehaviourConfig(hidden=hidden), key)
    policy = HeldPolicy(model, MLP(observation_size, action_size, hidden, key), 1.5)
    return eqx.tree_at(lambda p: p.network.layers[-1].weight, policy, jax.random.normal(key, (hidden[-1], action_size)))


@pytest.mark.parametrize("policy", [GaussianPolicy, DeterministicPolicy, held])
def test_the_host_acts_as_jax_does(policy: Any) -> None:
    whole = deployed(policy(4, 2, (64, 64), jax.random.key(0)))
    act = whole.actor()
    observations = np.random.default_rng(0).normal(3.0, 2.0, (10, 4)).astype(np.float32)
    before = observations.copy()
    actions = act(observations)
    assert type(actions) is np.ndarray
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, whole(jnp.asarray(observations)), atol=2e-6)
    np.testing.assert_array_equal(observations, before)


def test_a_policy_of_another_kind_acts_too() -> None:
    whole = deployed(Halved())
    observations = np.random.default_rng(0).normal(3.0, 2.0, (10, 4)).astype(np.float32)
    np.testing.assert_array_equal(whole.actor()(observations), whole(jnp.asarray(observations)))
