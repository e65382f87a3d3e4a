"""What the data vouches for: a model of the recorded actions at a state, and how surprising any action is there.

    p(a | s)        a mixture of Gaussians squashed by tanh into the action range
    surprise(s, a)  -log p(a | s): an action that nobody took at such states is surprising
    U               the actions whose surprise exceeds a border that at least 95 % of recorded actions of unseen episodes
                    stay below

The spread of the Q distribution says how much returns vary from a state; it hardly sees the action, because one action
barely moves a return of 200 steps. This model sees the action and nothing else, so the two answer different questions:
what may follow, and whether anybody has tried. It is **not** computed from the Q distribution.
"""

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from qdq.data.batches import LoggedTransitions
from qdq.networks import MLP
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start

LARGEST_ACTION = 1.0 - 1e-6  # tanh in float32 reaches 1, whose inverse is infinite
LOG_STD_MIN, LOG_STD_MAX = -4.0, 2.0  # before the squashing
FEWEST_EPISODES = 20  # with fewer none is held out
MARGIN = 1.645  # standard errors: a confidence of 95 % with many episodes, less with few


@dataclass(frozen=True)
class Config:
    """Settings of the model of recorded actions, and of the border of the risk set."""

    steps: int = setting(8_000, "training steps")
    batch_size: int = setting(256, "transitions per step")
    components: int = setting(5, "Gaussians in the mixture: data of several policies has several modes")
    hidden: tuple[int, ...] = setting((256, 256), "units of each hidden layer")
    learning_rate: float = setting(1e-3, "Adam's learning rate, which decays to zero")
    held_out: float = setting(
        0.05, "share of the episodes that set the border of the risk set and are not learned from"
    )
    false_alarms: float = setting(0.05, "share of recorded actions of unseen episodes that may be flagged")


class BehaviourModel(eqx.Module):
    """A mixture of squashed Gaussians over actions in [-1, 1], given a normalised state."""

    network: MLP
    components: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)

    def __init__(self, observation_size: int, action_size: int, config: Config, key: Array):
        self.components, self.action_size = config.components, action_size
        outputs = config.components * (1 + 2 * action_size)
        self.network = MLP(observation_size, outputs, config.hidden, key)

    def _moments(self, observations: Array) -> tuple[Array, Array, Array]:
        """Log weights, and means and log standard deviations before the squashing."""
        outputs, count = self.network(observations), self.components
        weights, moments = outputs[..., :count], outputs[..., count:]
        moments = moments.reshape(*outputs.shape[:-1], 2, count, self.action_size)
        means, log_stds = moments[..., 0, :, :], jnp.clip(moments[..., 1, :, :], LOG_STD_MIN, LOG_STD_MAX)
        return jax.nn.log_softmax(weights, axis=-1), means, log_stds

    def centre(self, observations: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the recorded actions before the squashing, over all components."""
        log_weights, means, log_stds = self._moments(observations)
        weights = jnp.exp(log_weights)[..., None]
        mean = jnp.sum(weights * means, axis=-2)
        variance = jnp.exp(2.0 * log_stds) + jnp.square(means - mean[..., None, :])
        return mean, jnp.sqrt(jnp.sum(weights * variance, axis=-2))

    def surprise(self, observations: Array, actions: Array) -> Array:
        """-log p(a | s)."""
        log_weights, means, log_stds = self._moments(observations)
        inside = jnp.clip(actions, -LARGEST_ACTION, LARGEST_ACTION)
        z = (jnp.arctanh(inside)[..., None, :] - means) * jnp.exp(-log_stds)
        log_densities = jnp.sum(-0.5 * jnp.square(z) - log_stds - 0.5 * math.log(2.0 * math.pi), axis=-1)
        squashing = jnp.sum(jnp.log1p(-jnp.square(inside)), axis=-1)  # log of the slope of tanh
        return squashing - jax.nn.logsumexp(log_weights + log_densities, axis=-1)

    def distance(self, observations: Array, actions: Array) -> Array:
        """Half the squared distance to the recorded actions in their own standard deviations, before the squashing.

        The surprise without its volume terms: least at the middle of a mode, where an action is most ordinary, rather
        than where squashing crowds actions together. It is what holds a policy near the data.
        """
        log_weights, means, log_stds = self._moments(observations)
        inside = jnp.clip(actions, -LARGEST_ACTION, LARGEST_ACTION)
        z = (jnp.arctanh(inside)[..., None, :] - means) * jnp.exp(-log_stds)
        return -jax.nn.logsumexp(log_weights - 0.5 * jnp.sum(jnp.square(z), axis=-1), axis=-1)


class HeldPolicy(eqx.Module):
    """A policy that cannot leave the recorded actions: their mean, and a bounded deviation in their own standard deviations.

        pi(s) = tanh(mean(s) + std(s) * d),    d = largest * tanh(network(s) / largest)

    What a network of its own learns is right on average; at rare states, such as the first of an episode, it may be far
    from anything recorded, and whatever follows is then unknown, too. Here that cannot happen at any state.
    """

    model: BehaviourModel  # stays as it was learned
    network: MLP
    largest: float = eqx.field(static=True)

    def __init__(self, model: BehaviourModel, network: MLP, largest: float):
        nothing = jax.tree.map(jnp.zeros_like, network.layers[-1])  # it starts as the recorded actions' mean
        self.network = eqx.tree_at(lambda dense: dense.layers[-1], network, nothing)
        self.model, self.largest = model, largest

    def __call__(self, observations: Array) -> Array:
        mean, std = jax.lax.stop_gradient(self.model.centre(observations))
        return jnp.tanh(mean + std * self.largest * jnp.tanh(self.network(observations) / self.largest))


class State(eqx.Module):
    """Everything that changes during training."""

    network: BehaviourModel
    optimiser: optax.OptState


def loss(network: BehaviourModel, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """The mean surprise of recorded actions."""
    value = jnp.mean(network.surprise(batch.observations, batch.actions))
    return value, {"loss": value}


def _optimiser(config: Config) -> optax.GradientTransformation:
    return optax.adam(learning_rate(config.learning_rate, True, config.steps))


def init(config: Config, network: BehaviourModel) -> State:
    """The state around a fresh network."""
    return State(network, start(_optimiser(config), network))


def steps(config: Config) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    optimiser = _optimiser(config)

    def step(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        del key
        grads, metrics = jax.grad(loss, has_aux=True)(state.network, batch)
        return State(*descend(optimiser, grads, state.optimiser, state.network)), metrics

    return (step,)


def held_out_episodes(episodes: int, config: Config) -> np.ndarray:
    """Which episodes set the border, as flags; none where there are too few to spare any."""
    flags = np.zeros(episodes, bool)
    if episodes >= FEWEST_EPISODES:
        count = max(1, round(config.held_out * episodes))
        flags[np.random.default_rng(0).permutation(episodes)[:count]] = True
    return flags


def conformal_border(surprises: np.ndarray, episodes: np.ndarray, false_alarms: float) -> float:
    """The smallest recorded surprise that new episodes exceed with at most the given share (split conformal, with a margin).

    Split conformal would promise it on average, for exchangeable draws. Actions of one episode resemble each other, so the
    share flagged here may be lower than among new episodes by chance: the border is raised until that share, and
    `MARGIN` of its standard errors between episodes on top, stay below what was promised.
    """
    ordered = np.sort(np.asarray(surprises, np.float64))
    _, member, sizes = np.unique(episodes, return_inverse=True, return_counts=True)

    def too_many(rank: int) -> bool:
        flagged = np.bincount(member, surprises > ordered[rank], len(sizes))
        share = flagged.sum() / len(ordered)
        return share + MARGIN * float(np.sqrt(np.sum(np.square(flagged - share * sizes)))) / len(ordered) > false_alarms

    low = min(math.ceil((len(ordered) + 1) * (1.0 - false_alarms)), len(ordered)) - 1
    high = len(ordered) - 1  # nothing recorded exceeds the largest
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if too_many(middle) else (low, middle)
    return float(ordered[low])
