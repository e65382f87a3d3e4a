"""TD3+BC (Fujimoto & Gu 2021): TD3 whose policy also imitates the data.

a'      = clip(target policy(s') + clipped noise)
y       = r + discount * (1 - terminal) * min target Q(s', a')
critics : (Q(s, a) - y)^2
policy  : -lambda * Q(s, pi(s)) + (pi(s) - a)^2,   lambda = q_weight / mean |Q|;  every second step
targets : moving averages
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.algorithms.problem import Problem
from qdq.data.batches import LoggedTransitions
from qdq.networks import Critics, DeterministicPolicy, copy, moving_average
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, start

SOURCE = "TD3+BC paper, Table 3"


@dataclass(frozen=True)
class Config:
    """Settings of TD3+BC."""

    q_weight: float = setting(2.5, "weight of Q relative to imitation (alpha in its paper)", SOURCE)
    discount: float = setting(0.99, "discount per step", SOURCE)
    target_rate: float = setting(0.005, "moving-average rate of the target networks", SOURCE)
    target_noise: float = setting(0.2, "standard deviation of the noise on target actions", SOURCE)
    target_noise_clip: float = setting(0.5, "largest noise on target actions", SOURCE)
    policy_learning_rate: float = setting(3e-4, "Adam's learning rate of the policy", SOURCE)
    critic_learning_rate: float = setting(3e-4, "Adam's learning rate of the critics", SOURCE)
    policy_hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer of the policy", SOURCE)
    critic_hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer of the critics", SOURCE)


class State(eqx.Module):
    """Everything that changes during training."""

    policy: DeterministicPolicy
    target_policy: DeterministicPolicy
    critics: Critics
    target_critics: Critics
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState


def _optimisers(config: Config) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    return optax.adam(config.policy_learning_rate), optax.adam(config.critic_learning_rate)


def init(config: Config, problem: Problem, key: Array) -> State:
    """Fresh networks."""
    policy_key, critic_key = jax.random.split(key)
    sizes = problem.observation_size, problem.action_size
    policy = DeterministicPolicy(*sizes, config.policy_hidden, policy_key)
    critics = Critics(*sizes, config.critic_hidden, critic_key)
    policy_optimiser, critic_optimiser = _optimisers(config)
    return State(
        policy,
        copy(policy),
        critics,
        copy(critics),
        start(policy_optimiser, policy),
        start(critic_optimiser, critics),
    )


def bellman_target(state: State, config: Config, batch: LoggedTransitions, key: Array) -> Array:
    """r + discount * (1 - terminal) * min Q at the smoothed target action."""
    action = state.target_policy(batch.next_observations)
    noise = config.target_noise * jax.random.normal(key, action.shape)
    action = jnp.clip(action + jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip), -1.0, 1.0)
    q = jnp.min(state.target_critics(batch.next_observations, action), axis=0)
    return batch.rewards + config.discount * (1.0 - batch.terminals) * q


def critic_loss(critics: Critics, batch: LoggedTransitions, target: Array) -> tuple[Array, Metrics]:
    """Squared distance of both critics to the target."""
    predicted = critics(batch.observations, batch.actions)
    loss = jnp.mean(jnp.square(predicted - target))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted), "q_magnitude": jnp.max(jnp.abs(predicted))}


def policy_loss(
    policy: DeterministicPolicy, critics: Critics, config: Config, batch: LoggedTransitions
) -> tuple[Array, Metrics]:
    """Improvement by the first critic, held near the data by imitation."""
    action = policy(batch.observations)
    q = critics.first(batch.observations, action)
    scale = config.q_weight / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)) + 1e-8)
    imitation = jnp.mean(jnp.square(action - batch.actions))
    loss = -scale * jnp.mean(q) + imitation
    return loss, {"policy_loss": loss, "imitation_error": imitation}


def steps(config: Config, problem: Problem) -> tuple[Step, ...]:
    """The cycle of pure training steps: critics, then critics, policy and targets."""
    del problem
    policy_optimiser, critic_optimiser = _optimisers(config)

    def update_critics(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        target = bellman_target(state, config, batch, key)
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.critics, batch, target)
        critics, critic_state = descend(critic_optimiser, grads, state.critic_optimiser, state.critics)
        return eqx.tree_at(lambda s: (s.critics, s.critic_optimiser), state, (critics, critic_state)), metrics

    def update_all(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        state, metrics = update_critics(state, batch, key)
        grads, more = jax.grad(policy_loss, has_aux=True)(state.policy, state.critics, config, batch)
        policy, policy_state = descend(policy_optimiser, grads, state.policy_optimiser, state.policy)
        new = (
            policy,
            policy_state,
            moving_average(state.target_policy, policy, config.target_rate),
            moving_average(state.target_critics, state.critics, config.target_rate),
        )
        where = lambda s: (s.policy, s.policy_optimiser, s.target_policy, s.target_critics)  # noqa: E731
        return eqx.tree_at(where, state, new), metrics | more

    return update_critics, update_all


def policy(state: State) -> DeterministicPolicy:
    """The policy to evaluate and deploy."""
    return state.policy
