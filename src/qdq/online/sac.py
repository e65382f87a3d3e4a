"""SAC (Haarnoja et al. 2018): maximum-entropy actor-critic with a learned temperature.

    y          = r + discount * (1 - terminal) * (min target Q(s', a') - temperature * log pi(a'|s')),  a' ~ pi(s')
    critics    : (Q(s, a) - y)^2
    policy     : temperature * log pi(a|s) - min Q(s, a),  a ~ pi(s)
    temperature: keeps the entropy at `entropy_per_dimension` times the action dimensions (-1 in the paper)
    targets    : moving average of the critics

Deviation from the paper: LayerNorm in the critics, which learns faster per step.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.data.batches import Transitions
from qdq.networks import Critics, TanhGaussianPolicy, copy, moving_average
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, start


@dataclass(frozen=True)
class Config:
    """Settings of SAC."""

    discount: float = 0.99
    target_rate: float = 0.005
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    policy_hidden: tuple[int, ...] = (128, 128)
    critic_hidden: tuple[int, ...] = (256, 256)
    critic_layer_norm: bool = True
    batch_size: int = 128
    entropy_per_dimension: float = -1.0  # the temperature keeps the entropy at this times the action dimensions


class State(eqx.Module):
    """Everything that changes during training."""

    policy: TanhGaussianPolicy
    critics: Critics
    target_critics: Critics
    log_temperature: Array
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState


def _optimisers(config: Config) -> tuple[optax.GradientTransformation, ...]:
    return optax.adam(config.policy_learning_rate), optax.adam(config.critic_learning_rate)


def init(config: Config, observation_size: int, action_size: int, key: Array) -> State:
    """Fresh networks."""
    policy_key, critic_key = jax.random.split(key)
    policy = TanhGaussianPolicy(observation_size, action_size, config.policy_hidden, policy_key)
    critics = Critics(
        observation_size, action_size, config.critic_hidden, critic_key, normalise=config.critic_layer_norm
    )
    policy_optimiser, critic_optimiser = _optimisers(config)
    log_temperature = jnp.zeros(())
    return State(
        policy,
        critics,
        copy(critics),
        log_temperature,
        start(policy_optimiser, policy),
        start(critic_optimiser, critics),
        start(critic_optimiser, log_temperature),
    )


def critic_loss(
    critics: Critics, state: State, config: Config, batch: Transitions, key: Array
) -> tuple[Array, Metrics]:
    """Soft Bellman residual."""
    action, log_density = state.policy.sample_with_log_density(batch.next_observations, key)
    value = jnp.min(state.target_critics(batch.next_observations, action), axis=0)
    value = value - jnp.exp(state.log_temperature) * log_density
    target = batch.rewards + config.discount * (1.0 - batch.terminals) * value
    predicted = critics(batch.observations, batch.actions)
    loss = jnp.mean(jnp.square(predicted - target))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted)}


def policy_loss(policy: TanhGaussianPolicy, state: State, batch: Transitions, key: Array) -> tuple[Array, Metrics]:
    """Soft policy improvement; the metrics carry the entropy estimate."""
    action, log_density = policy.sample_with_log_density(batch.observations, key)
    value = jnp.min(state.critics(batch.observations, action), axis=0)
    loss = jnp.mean(jnp.exp(state.log_temperature) * log_density - value)
    return loss, {"policy_loss": loss, "entropy": -jnp.mean(log_density)}


def steps(config: Config, action_size: int) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    policy_optimiser, critic_optimiser = _optimisers(config)

    def step(state: State, batch: Transitions, key: Array) -> tuple[State, Metrics]:
        critic_key, policy_key = jax.random.split(key)
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.critics, state, config, batch, critic_key)
        critics, critic_state = descend(critic_optimiser, grads, state.critic_optimiser, state.critics)
        state = eqx.tree_at(lambda s: (s.critics, s.critic_optimiser), state, (critics, critic_state))

        grads, more = jax.grad(policy_loss, has_aux=True)(state.policy, state, batch, policy_key)
        policy, policy_state = descend(policy_optimiser, grads, state.policy_optimiser, state.policy)

        gradient = jnp.exp(state.log_temperature) * (more["entropy"] - config.entropy_per_dimension * action_size)
        log_temperature, temperature_state = descend(
            critic_optimiser, gradient, state.temperature_optimiser, state.log_temperature
        )
        state = State(
            policy,
            state.critics,
            moving_average(state.target_critics, state.critics, config.target_rate),
            log_temperature,
            policy_state,
            state.critic_optimiser,
            temperature_state,
        )
        return state, metrics | more | {"temperature": jnp.exp(state.log_temperature)}

    return (step,)
