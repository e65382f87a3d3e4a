"""TD3 (Fujimoto et al. 2018): deterministic actor-critic with two critics, smoothed targets and a delayed policy.

    a'         = clip(target pi(s') + clip(noise, -c, c), -1, 1),  noise ~ N(0, target_noise^2)
    y          = r + discount * (1 - terminal) * min target Q(s', a')
    critics    : (Q(s, a) - y)^2
    policy     : -Q_1(s, pi(s)), every second step
    targets    : moving average of policy and critics, every second step

Exploration adds N(0, 0.1^2) to the action (`acting.NoisyBehaviour`). Deviations from the paper: LayerNorm in the
critics, and the sizes and learning rates of our SAC, so that the two files differ only by their mathematics.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from qdq.data.batches import Transitions
from qdq.networks import Critics, DeterministicPolicy, copy, moving_average
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, start


@dataclass(frozen=True)
class Config:
    """Settings of TD3."""

    discount: float = 0.99
    target_rate: float = 0.005
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 1e-3
    policy_hidden: tuple[int, ...] = (128, 128)
    critic_hidden: tuple[int, ...] = (256, 256)
    critic_layer_norm: bool = True
    batch_size: int = 128
    target_noise: float = 0.2
    target_noise_clip: float = 0.5


class State(eqx.Module):
    """Everything that changes during training."""

    policy: DeterministicPolicy
    critics: Critics
    target_policy: DeterministicPolicy
    target_critics: Critics
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState


def _optimisers(config: Config) -> tuple[optax.GradientTransformation, ...]:
    return optax.adam(config.policy_learning_rate), optax.adam(config.critic_learning_rate)


def init(config: Config, observation_size: int, action_size: int, key: Array) -> State:
    """Fresh networks."""
    policy_key, critic_key = jax.random.split(key)
    policy = DeterministicPolicy(observation_size, action_size, config.policy_hidden, policy_key)
    critics = Critics(
        observation_size, action_size, config.critic_hidden, critic_key, normalise=config.critic_layer_norm
    )
    policy_optimiser, critic_optimiser = _optimisers(config)
    return State(
        policy,
        critics,
        copy(policy),
        copy(critics),
        start(policy_optimiser, policy),
        start(critic_optimiser, critics),
    )


def bellman_target(state: State, config: Config, batch: Transitions, noise: Array) -> Array:
    """y for each transition, with the target action smoothed by `noise` (standard normal)."""
    smoothing = jnp.clip(config.target_noise * noise, -config.target_noise_clip, config.target_noise_clip)
    action = jnp.clip(state.target_policy(batch.next_observations) + smoothing, -1.0, 1.0)
    value = jnp.min(state.target_critics(batch.next_observations, action), axis=0)
    return batch.rewards + config.discount * (1.0 - batch.terminals) * value


def critic_loss(
    critics: Critics, state: State, config: Config, batch: Transitions, key: Array
) -> tuple[Array, Metrics]:
    """Bellman residual of both critics."""
    target = bellman_target(state, config, batch, jax.random.normal(key, batch.actions.shape))
    predicted = critics(batch.observations, batch.actions)
    loss = jnp.mean(jnp.square(predicted - target))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted)}


def policy_loss(policy: DeterministicPolicy, state: State, batch: Transitions) -> tuple[Array, Metrics]:
    """Policy improvement on the first critic."""
    loss = -jnp.mean(state.critics.first(batch.observations, policy(batch.observations)))
    return loss, {"policy_loss": loss}


def steps(config: Config, action_size: int) -> tuple[Step, ...]:
    """The cycle of pure training steps: critics alone, then critics, policy and targets."""
    del action_size  # the signature is shared with SAC, whose entropy target needs it
    policy_optimiser, critic_optimiser = _optimisers(config)

    def critic_step(state: State, batch: Transitions, key: Array) -> tuple[State, Metrics]:
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.critics, state, config, batch, key)
        critics, critic_state = descend(critic_optimiser, grads, state.critic_optimiser, state.critics)
        return eqx.tree_at(lambda s: (s.critics, s.critic_optimiser), state, (critics, critic_state)), metrics

    def full_step(state: State, batch: Transitions, key: Array) -> tuple[State, Metrics]:
        state, metrics = critic_step(state, batch, key)
        grads, more = jax.grad(policy_loss, has_aux=True)(state.policy, state, batch)
        policy, policy_state = descend(policy_optimiser, grads, state.policy_optimiser, state.policy)
        state = State(
            policy,
            state.critics,
            moving_average(state.target_policy, policy, config.target_rate),
            moving_average(state.target_critics, state.critics, config.target_rate),
            policy_state,
            state.critic_optimiser,
        )
        return state, metrics | more

    return critic_step, full_step
