"""IQL (Kostrikov et al. 2021): values of the best recorded actions by expectile regression, without asking for new ones.

value   : |expectile - 1[u < 0]| * u^2,            u = min target Q(s, a) - V(s)
critics : (Q(s, a) - y)^2,                         y = r + discount * (1 - terminal) * V(s')
policy  : -min(exp(temperature * u), 100) * log pi(a | s)
targets : moving average of the critics
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.algorithms.problem import Problem
from qdq.data.batches import LoggedTransitions
from qdq.networks import MLP, Critics, GaussianPolicy, copy, moving_average
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start

SOURCE = "IQL paper, Appendix B"


@dataclass(frozen=True)
class Config:
    """Settings of IQL."""

    expectile: float = setting(0.7, "expectile of the value regression (0.9 on AntMaze)", SOURCE)
    advantage_temperature: float = setting(
        3.0, "factor on the advantage inside the exponential (10 on AntMaze)", SOURCE
    )
    advantage_cap: float = setting(100.0, "largest weight", SOURCE)
    discount: float = setting(0.99, "discount per step", SOURCE)
    target_rate: float = setting(0.005, "moving-average rate of the target critics", SOURCE)
    learning_rate: float = setting(3e-4, "Adam's learning rate of all networks", SOURCE)
    policy_cosine_decay: bool = setting(True, "decay the policy's learning rate to zero over the run", SOURCE)
    policy_hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer of the policy", SOURCE)
    critic_hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer of critics and value", SOURCE)


class State(eqx.Module):
    """Everything that changes during training."""

    policy: GaussianPolicy
    critics: Critics
    target_critics: Critics
    value: MLP
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState


def _optimisers(config: Config, problem: Problem) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    schedule = learning_rate(config.learning_rate, config.policy_cosine_decay, problem.steps)
    return optax.adam(schedule), optax.adam(config.learning_rate)


def init(config: Config, problem: Problem, key: Array) -> State:
    """Fresh networks."""
    policy_key, critic_key, value_key = jax.random.split(key, 3)
    sizes = problem.observation_size, problem.action_size
    policy = GaussianPolicy(*sizes, config.policy_hidden, policy_key)
    critics = Critics(*sizes, config.critic_hidden, critic_key)
    value = MLP(problem.observation_size, 1, config.critic_hidden, value_key)
    policy_optimiser, other_optimiser = _optimisers(config, problem)
    return State(
        policy,
        critics,
        copy(critics),
        value,
        start(policy_optimiser, policy),
        start(other_optimiser, critics),
        start(other_optimiser, value),
    )


def advantage(value: MLP, state: State, batch: LoggedTransitions) -> Array:
    """min target Q(s, a) - V(s)."""
    q = jnp.min(state.target_critics(batch.observations, batch.actions), axis=0)
    return q - jnp.squeeze(value(batch.observations), -1)


def value_loss(value: MLP, state: State, config: Config, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """Expectile regression of V on the target critics."""
    gap = advantage(value, state, batch)
    loss = jnp.mean(jnp.where(gap > 0, config.expectile, 1.0 - config.expectile) * jnp.square(gap))
    return loss, {"value_loss": loss}


def critic_loss(critics: Critics, value: MLP, config: Config, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """Squared distance of both critics to r + discount * V(s')."""
    following = jnp.squeeze(value(batch.next_observations), -1)
    target = batch.rewards + config.discount * (1.0 - batch.terminals) * following
    predicted = critics(batch.observations, batch.actions)
    loss = jnp.mean(jnp.square(predicted - target))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted), "q_magnitude": jnp.max(jnp.abs(predicted))}


def policy_loss(policy: GaussianPolicy, gap: Array, config: Config, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """Advantage-weighted regression."""
    weight = jnp.minimum(jnp.exp(config.advantage_temperature * gap), config.advantage_cap)
    loss = -jnp.mean(weight * policy.log_density(batch.observations, batch.actions))
    return loss, {"policy_loss": loss, "advantage_weight": jnp.mean(weight)}


def steps(config: Config, problem: Problem) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    policy_optimiser, other_optimiser = _optimisers(config, problem)

    def step(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        del key
        grads, metrics = jax.grad(value_loss, has_aux=True)(state.value, state, config, batch)
        value, value_state = descend(other_optimiser, grads, state.value_optimiser, state.value)

        gap = advantage(value, state, batch)
        grads, more = jax.grad(policy_loss, has_aux=True)(state.policy, gap, config, batch)
        policy, policy_state = descend(policy_optimiser, grads, state.policy_optimiser, state.policy)

        grads, last = jax.grad(critic_loss, has_aux=True)(state.critics, value, config, batch)
        critics, critic_state = descend(other_optimiser, grads, state.critic_optimiser, state.critics)
        target_critics = moving_average(state.target_critics, critics, config.target_rate)
        state = State(policy, critics, target_critics, value, policy_state, critic_state, value_state)
        return state, metrics | more | last

    return (step,)


def policy(state: State) -> GaussianPolicy:
    """The policy to evaluate and deploy."""
    return state.policy
