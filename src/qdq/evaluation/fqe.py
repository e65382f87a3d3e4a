"""Fitted Q evaluation (Le et al. 2019): what a fixed policy is worth, from recorded episodes alone.

y       = r + discount * (1 - terminal) * target Q(s', pi(s'))
critics : (Q(s, a) - y)^2, each with a target of its own
targets : moving averages
value   = mean of Q(s0, pi(s0)) over the first states of episodes that were held out

Values are discounted, in the dataset's own rewards: neither the shift nor the scaling that a run may train with is in
them. All policies are fitted in one program on the same batches, from the same start, so that they differ by what they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from scipy.stats import rankdata

from qdq import normalisers
from qdq.data.batches import LoggedTransitions, TransitionData
from qdq.data.episodes import Dataset
from qdq.errors import DataError, UsageError
from qdq.evaluation.statistics import RESAMPLES, Interval, resample
from qdq.networks import Critics, copy, moving_average
from qdq.normalisers import Affine
from qdq.q_dataset import truncated_returns
from qdq.settings import setting
from qdq.training.deployed import DeployedPolicy
from qdq.training.loop import Hook, Metrics, Step, train
from qdq.training.optimiser import descend, learning_rate, start

LARGEST_CHUNK = 200


@dataclass(frozen=True)
class Config:
    """Settings of fitted Q evaluation."""

    steps: int = setting(20_000, "gradient steps")
    discount: float = setting(0.99, "discount per step")
    batch_size: int = setting(256, "transitions per step")
    learning_rate: float = setting(3e-4, "Adam's first learning rate; it falls to zero along a cosine")
    target_rate: float = setting(
        0.1, "moving-average rate of the targets; they forget in 1 / rate / (1 - discount) steps"
    )
    hidden: tuple[int, ...] = setting((128, 128), "units of each hidden layer of the critics")
    fits: int = setting(2, "critics with different starts, each evaluated for itself")
    held_out: float = setting(0.2, "share of the episodes that are not trained on")
    seed: int = setting(0, "seed of the split, the critics' starts and the batches")


@dataclass(frozen=True)
class Estimate:
    """What a policy is worth: a discounted value, with a 95 % interval over held-out episodes and fits."""

    value: float
    interval_95: Interval | None
    fits: list[float]  # of each critic alone


@dataclass(frozen=True)
class Evaluation:
    """The estimates of some policies, beside what was recorded."""

    estimates: list[Estimate]
    recorded: float  # mean discounted return of the held-out episodes
    held_out_episodes: int
    trained_episodes: int


class State(eqx.Module):
    """Everything of all policies, stacked; the policies stay as they are."""

    policies: DeployedPolicy
    critics: Critics
    target_critics: Critics
    optimiser: optax.OptState


class Scales(eqx.Module):
    """How the critics see the data, and the range in which every value lies."""

    observations: Affine
    values: Affine  # critics learn (Q - shift) / scale, and so begin at the mean of what was recorded
    lowest: Array
    highest: Array

    def q(self, critics: Critics, observations: Array, actions: Array) -> Array:
        """Q in reward units, one row per critic; actions lie in [-1, 1]."""
        return self.values.inverse(critics(self.observations.forward(observations), actions))


def split(dataset: Dataset, config: Config) -> tuple[Dataset, Dataset]:
    """The episodes to train on and those to hold out."""
    if dataset.episodes < 2:
        raise DataError(
            f"Dataset {dataset.name!r} has a single episode, so none can be held out; give a dataset with more episodes."
        )
    order = np.random.default_rng(config.seed).permutation(dataset.episodes)
    held = min(max(1, round(config.held_out * dataset.episodes)), dataset.episodes - 1)
    return dataset.select(np.sort(order[held:])), dataset.select(np.sort(order[:held]))


def action(policy: DeployedPolicy, observations: Array) -> Array:
    """What the policy does at raw observations, in [-1, 1] as it was trained."""
    return jnp.clip(policy.network(policy.observation_normaliser.forward(observations)), -1.0, 1.0)


def bellman_target(
    critics: Critics, policy: DeployedPolicy, scales: Scales, config: Config, batch: LoggedTransitions
) -> Array:
    """r + discount * (1 - terminal) * Q(s', pi(s')), one row per critic; a time limit is no terminal."""
    following = scales.q(critics, batch.next_observations, action(policy, batch.next_observations))
    following = jnp.clip(following, scales.lowest, scales.highest)
    return batch.rewards + config.discount * (1.0 - batch.terminals) * following


def critic_loss(critics: Critics, scales: Scales, batch: LoggedTransitions, target: Array) -> tuple[Array, Metrics]:
    """Squared distance to the target, in units of the recorded returns' spread."""
    predicted = scales.q(critics, batch.observations, batch.actions)
    loss = jnp.mean(jnp.square((predicted - target) / scales.values.scale))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted)}


def _optimiser(config: Config) -> optax.GradientTransformation:
    """The rate falls to zero, so that the estimate does not depend on the last few batches."""
    return optax.adam(learning_rate(config.learning_rate, True, config.steps))


def init(config: Config, policies: Sequence[DeployedPolicy], sizes: tuple[int, int], key: Array) -> State:
    """The same fresh critics for every policy."""
    critics = Critics(*sizes, config.hidden, key, normalise=True, count=config.fits)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * len(policies)), critics)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    optimiser = _optimiser(config)
    return State(together, stacked, copy(stacked), jax.vmap(lambda critics: start(optimiser, critics))(stacked))


def steps(config: Config, scales: Scales) -> tuple[Step, ...]:
    """The one training step, for all policies."""
    optimiser = _optimiser(config)

    def member(state: State, batch: LoggedTransitions) -> tuple[State, Metrics]:
        target = bellman_target(state.target_critics, state.policies, scales, config, batch)
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.critics, scales, batch, target)
        critics, optimiser_state = descend(optimiser, grads, state.optimiser, state.critics)
        targets = moving_average(state.target_critics, critics, config.target_rate)
        return State(state.policies, critics, targets, optimiser_state), metrics

    def step(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        del key
        return jax.vmap(member, in_axes=(0, None))(state, batch)

    return (step,)


def evaluate(
    dataset: Dataset, policies: Sequence[DeployedPolicy], config: Config, hooks: Sequence[Hook] = ()
) -> Evaluation:
    """Estimate what each of some policies of one run is worth on `dataset`."""
    _check(config)
    train_part, held_part = split(dataset, config)
    whole = int(dataset.lengths.max())  # a window that no episode fills
    returns, exact = truncated_returns(train_part, whole + 1, config.discount)
    scaler = policies[0].action_scaler
    data = TransitionData(
        jnp.asarray(train_part.observations),
        jnp.asarray(train_part.rows, jnp.int32),
        jnp.clip(scaler.forward(jnp.asarray(train_part.actions)), -1.0, 1.0),
        jnp.asarray(train_part.rewards),
        jnp.asarray(train_part.terminals, jnp.float32),
        jnp.asarray(returns),
        jnp.asarray(exact, jnp.float32),
    )
    scales = _scales(train_part, returns, config)
    start_key, train_key = jax.random.split(jax.random.key(config.seed))
    state = train(
        steps(config, scales),
        init(config, policies, (dataset.observation_size, dataset.action_size), start_key),
        data,
        key=train_key,
        batch_size=config.batch_size,
        stop=config.steps,
        chunk=min(config.steps, LARGEST_CHUNK),
        hooks=hooks,
    )
    first = jnp.asarray(held_part.observations[held_part.rows[held_part.starts]])
    values = np.asarray(_values_at(state, scales, first))
    recorded, _ = truncated_returns(held_part, whole + 1, config.discount)
    return Evaluation(
        [_estimate(rows, config.seed) for rows in values],
        float(recorded[held_part.starts].mean()),
        held_part.episodes,
        train_part.episodes,
    )


@eqx.filter_jit
def _values_at(state: State, scales: Scales, observations: Array) -> Array:
    """Q(s, pi(s)): shape (policies, fits, observations)."""
    member = lambda state: scales.q(state.critics, observations, action(state.policies, observations))  # noqa: E731
    return jax.vmap(member)(state)


def _scales(dataset: Dataset, returns: np.ndarray, config: Config) -> Scales:
    spread = float(returns.std())
    values = Affine(jnp.asarray(float(returns.mean())), jnp.asarray(spread if spread > 1e-6 else 1.0))
    low, high = float(dataset.rewards.min()), float(dataset.rewards.max())
    endless = 1.0 / (1.0 - config.discount)
    bounds = jnp.asarray(min(low, low * endless)), jnp.asarray(max(high, high * endless))
    return Scales(normalisers.standard(dataset.observations), values, *bounds)


def _check(config: Config) -> None:
    if not 0.0 < config.discount < 1.0:
        raise UsageError(f"--discount must lie between 0 and 1, but is {config.discount}.")
    chunk = min(config.steps, LARGEST_CHUNK)
    if config.steps < 1 or config.steps % chunk:
        raise UsageError(f"--steps must be a multiple of {LARGEST_CHUNK}, or fewer, but is {config.steps}.")


def _estimate(values: np.ndarray, seed: int) -> Estimate:
    """The mean over fits and first states, and its interval: episodes drawn anew, with one fit at a time."""
    fits, episodes = values.shape
    interval = None
    if episodes > 1:
        random = np.random.default_rng(seed)
        chosen = resample([np.arange(episodes)], random)[0]
        draws = values[random.integers(0, fits, (len(chosen), 1)), chosen].mean(axis=1)
        low, high = np.percentile(draws, [2.5, 97.5])
        interval = float(low), float(high)
    return Estimate(float(values.mean()), interval, [float(value) for value in values.mean(axis=1)])


def rank_agreement(values: Any, returns: Any, seed: int = 0) -> dict[str, Any]:
    """How well estimates order policies: Spearman's rank correlation with true returns, and the regret of trusting them.

    The interval draws policies anew. Regret@1 is the best true return minus that of the policy with the best estimate.
    """
    values, returns = np.asarray(values, np.float64), np.asarray(returns, np.float64)
    correlation, interval = _spearman(values, returns), None
    if correlation is not None and len(values) > 2:
        random = np.random.default_rng(seed)
        chosen = random.integers(0, len(values), (RESAMPLES, len(values)))
        draws = [draw for index in chosen if (draw := _spearman(values[index], returns[index])) is not None]
        low, high = np.percentile(draws, [2.5, 97.5])
        interval = [float(low), float(high)]
    return {
        "policies": len(values),
        "spearman": correlation,
        "interval_95": interval,
        "regret_at_1": float(returns.max() - returns[values.argmax()]),
        "range_of_returns": float(returns.max() - returns.min()),
    }


def _spearman(first: np.ndarray, second: np.ndarray) -> float | None:
    """The correlation of ranks; none where all are the same."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])
