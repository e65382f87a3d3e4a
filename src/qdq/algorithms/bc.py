"""BC: behaviour cloning, the policy that imitates the data.

policy: (pi(s) - a)^2
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.algorithms.problem import Problem
from qdq.data.batches import LoggedTransitions
from qdq.networks import DeterministicPolicy
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, start

SOURCE = "TD3+BC paper (Fujimoto & Gu 2021), its BC baseline"


@dataclass(frozen=True)
class Config:
    """Settings of behaviour cloning."""

    learning_rate: float = setting(3e-4, "Adam's learning rate", SOURCE)
    policy_hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer", SOURCE)


class State(eqx.Module):
    """Everything that changes during training."""

    policy: DeterministicPolicy
    policy_optimiser: optax.OptState


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam."""
    return optax.adam(config.learning_rate)


def init(config: Config, problem: Problem, key: Array) -> State:
    """A fresh network."""
    network = DeterministicPolicy(problem.observation_size, problem.action_size, config.policy_hidden, key)
    return State(network, start(optimiser(config), network))


def policy_loss(policy: DeterministicPolicy, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """Mean squared distance to the recorded action."""
    loss = jnp.mean(jnp.square(policy(batch.observations) - batch.actions))
    return loss, {"policy_loss": loss}


def steps(config: Config, problem: Problem) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    del problem
    adam = optimiser(config)

    def step(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        del key
        grads, metrics = jax.grad(policy_loss, has_aux=True)(state.policy, batch)
        return State(*descend(adam, grads, state.policy_optimiser, state.policy)), metrics

    return (step,)


def policy(state: State) -> DeterministicPolicy:
    """The policy to evaluate and deploy."""
    return state.policy
