"""QDQ (Zhang et al. 2024): Q-learning whose targets are penalised where the Q distribution is uncertain.

    H(s', a')  = standard deviation of the learned Q distribution                                       Eq. 6
    U          = actions whose H exceeds the beta-quantile of H over the batch
    Q_L        = Q - kappa * (1 - w) * |Q|,   w = beta * H_beta / H on U, beta elsewhere                Eq. 8
    y          = r + discount * (1 - terminal) * (alpha * Q + (1 - alpha) * Q_L)                        Eq. 7
    critics    : (Q(s, a) - y)^2
    policy     : -q * Q(s, pi(s)) - entropy_weight * log pi(a | s)                                      Eq. 9
                 or -exp(temperature * advantage) * log pi(a | s)                                       AWR

Our default asks the same three questions of signals that can answer them (docs/default.md has the evidence):

    U          = actions whose surprise -log p(a | s), under a model of the recorded actions, exceeds a border that 95 %
                 of recorded actions of unseen episodes stay below                                      uncertainty=behaviour
    V          : |expectile - 1[u < 0]| * u^2,   u = Q(s, a) - V(s), penalised as above where penalty is not none
    y          = r + discount * (1 - terminal) * V(s')                                                  bootstrap=recorded
    policy     : -Q(s, pi(s)) / std of Q(s, a) - Q(s, pi(s)) + risk_weight * d * (1 + stiffness * d / action size)
                 d = distance(s, pi(s)) to the recorded actions                                         objective=support
                 pi(s) = mean of the recorded actions at s + at most `largest_deviation` of their standard deviations

so that the targets ask about recorded actions alone, and the policy raises Q as far as the data vouches for it.

Before that, for `extraction_share` of the run, critics and V are fitted to the truncated returns of the data: a start from
the Q dataset instead of from nothing. The policy meanwhile imitates (support), or is extracted by AWR on recorded
advantages; the log density in Eq. 9 keeps those weights.
"""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from qdq.algorithms.problem import Problem
from qdq.behaviour import HeldPolicy
from qdq.controls import Signal, stand_in
from qdq.data.batches import LoggedTransitions
from qdq.networks import MLP, Critics, GaussianPolicy, copy, moving_average
from qdq.settings import PAPER_TABLE_4, setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend, learning_rate, start
from qdq.uncertainty import mean_and_std, threshold

LARGEST_SURPRISE = 80.0  # far beyond any border, and its exponential is still a number
Goal = tuple[Array, Array, MLP, optax.OptState]  # of the critics, its weight, and V with its optimiser
Penalty = Literal["signed", "paper", "release_antmaze", "release_umaze_diverse", "discount", "none"]


@dataclass(frozen=True)
class Config:
    """Settings of QDQ."""

    alpha: float = setting(0.99, "weight of the optimistic target; 1 - alpha goes to the penalised one", PAPER_TABLE_4)
    beta: float = setting(0.9, "quantile of H that borders the risk set, and weight off the risk set", PAPER_TABLE_4)
    entropy_weight: float = setting(1.0, "weight of log pi(a_data) in the policy loss (gamma in Eq. 9)", PAPER_TABLE_4)
    penalty: Penalty = setting(
        "signed",
        "form of Q_L: signed is pessimistic for Q of either sign; paper is Eq. 8 as printed; discount multiplies any Q by "
        "alpha + (1 - alpha) * beta",
    )
    uncertainty: Signal = setting(
        "q_distribution",
        "what tells risky actions: H, or the surprise under a model of recorded actions; the others are controls",
        "paper, Eq. 6",
    )
    shuffle_risk: bool = setting(False, "control: judge every action at the state of another row of the batch")
    objective: Literal["eq9", "awr", "support"] = setting("eq9", "policy objective", PAPER_TABLE_4)
    risk_weight: float = setting(
        0.2, "support: weight of the policy's distance to the recorded actions; one unit of Q is the advantage's std"
    )
    risk_stiffness: float = setting(
        0.0, "support: how much more each unit of distance counts where it is large, at a distance of the action's size"
    )
    largest_deviation: float = setting(
        0.0,
        "support: how far the policy may leave the mean of the recorded actions at any state, in their standard deviations "
        "and before the squashing; 0 leaves it to risk_weight",
    )
    q_weight: float = setting(0.0, "Eq. 9: weight of Q divided by the batch mean of |Q|; 0 uses Q as it is")
    advantage_temperature: float = setting(6.0, "AWR: factor on the advantage inside the exponential", "release")
    advantage_cap: float = setting(100.0, "AWR: largest weight", "release")
    advantage_unit: Literal["reward", "return_std"] = setting(
        "reward", "AWR: what one unit of advantage is; return_std is the spread of truncated returns", "release"
    )
    bootstrap: Literal["policy", "recorded"] = setting(
        "policy",
        "what follows in the target: the policy's next action, or an expectile of recorded ones",
        "paper, Eq. 7",
    )
    expectile: float = setting(0.7, "expectile of V for bootstrap=recorded", "IQL paper")
    value_samples: int = setting(
        30, "AWR: target-policy actions averaged into V(s); 0 uses the policy's own action", "release"
    )
    extraction_share: float = setting(
        0.0, "first share of the run: critics fitted to recorded returns, policy extracted from them"
    )
    discount: float = setting(0.99, "discount per step", PAPER_TABLE_4)
    target_rate: float = setting(0.005, "moving-average rate of the target networks", PAPER_TABLE_4)
    target_noise: float = setting(0.2, "standard deviation of the noise on target actions", PAPER_TABLE_4)
    target_noise_clip: float = setting(0.5, "largest noise on target actions", PAPER_TABLE_4)
    sample_target_action: bool = setting(
        False, "draw the target action from the target policy before the noise", "release: true"
    )
    policy_learning_rate: float = setting(3e-4, "Adam's learning rate of the policy", PAPER_TABLE_4)
    critic_learning_rate: float = setting(3e-4, "Adam's learning rate of the critics", PAPER_TABLE_4)
    policy_cosine_decay: bool = setting(False, "decay the policy's learning rate to zero over the run", "release: true")
    gradient_clip: float = setting(0.0, "largest global norm of a gradient; 0 is no limit", "release: 10")
    policy_hidden: tuple[int, ...] = setting((256, 256, 256), "units of each hidden layer of the policy", PAPER_TABLE_4)
    critic_hidden: tuple[int, ...] = setting(
        (256, 256, 256), "units of each hidden layer of the critics", PAPER_TABLE_4
    )
    critic_activation: Literal["mish", "relu"] = setting("mish", "activation of critics and V", "release")
    critic_layer_norm: bool = setting(False, "LayerNorm in the critics", "release: large antmaze only")
    standardise_values: bool = setting(
        False, "critics and V start at the mean of the truncated returns and learn in units of their spread"
    )


class State(eqx.Module):
    """Everything that changes during training."""

    number: Array
    policy: Any  # a Gaussian one, or one that the model of the recorded actions holds
    target_policy: Any
    critics: Critics
    target_critics: Critics
    value: MLP
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    value_optimiser: optax.OptState


def _optimiser(config: Config, rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    clip = optax.clip_by_global_norm(config.gradient_clip) if config.gradient_clip > 0 else optax.identity()
    return optax.chain(clip, optax.adam(rate))


def _optimisers(config: Config, problem: Problem) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    schedule = learning_rate(config.policy_learning_rate, config.policy_cosine_decay, problem.steps // 2)
    return _optimiser(config, schedule), _optimiser(config, config.critic_learning_rate)


def _fresh_policy(config: Config, problem: Problem, key: Array) -> GaussianPolicy | HeldPolicy:
    """A policy of its own or, where the signal is a model of the recorded actions that may hold it, one held by that."""
    policy = GaussianPolicy(problem.observation_size, problem.action_size, config.policy_hidden, key)
    told = config.uncertainty == "behaviour" and not config.shuffle_risk
    if config.objective != "support" or config.largest_deviation == 0 or not told:
        return policy
    assert problem.behaviour is not None, "a held policy needs a model of the recorded actions"
    return HeldPolicy(copy(problem.behaviour), policy.mean_network, config.largest_deviation)


def init(config: Config, problem: Problem, key: Array) -> State:
    """Fresh networks."""
    policy_key, critic_key, value_key = jax.random.split(key, 3)
    sizes = problem.observation_size, problem.action_size
    policy = _fresh_policy(config, problem, policy_key)
    standard = {"shift": problem.return_mean, "scale": problem.return_std} if config.standardise_values else {}
    shape: dict[str, Any] = {"activation": config.critic_activation, "normalise": config.critic_layer_norm} | standard
    critics = Critics(*sizes, config.critic_hidden, critic_key, **shape)
    value = MLP(problem.observation_size, 1, config.critic_hidden, value_key, **shape)
    policy_optimiser, critic_optimiser = _optimisers(config, problem)
    return State(
        jnp.zeros((), jnp.int32),
        policy,
        copy(policy),
        critics,
        copy(critics),
        value,
        start(policy_optimiser, policy),
        start(critic_optimiser, critics),
        start(critic_optimiser, value),
    )


def extraction_steps(config: Config, problem: Problem) -> int:
    """The number of steps before Q-learning begins."""
    return round(config.extraction_share * problem.steps)


def optimism_limit(alpha: float, discount: float) -> float:
    """kappa for negative Q: the largest value up to 1 that keeps discount * (alpha + (1-alpha) * (1+kappa)) <= (1+discount)/2."""
    if alpha >= 1.0:
        return 1.0
    return min(1.0, max(0.0, ((1.0 + discount) / (2.0 * discount) - alpha) / (1.0 - alpha) - 1.0))


def pessimistic_value(
    q: Array, uncertainty: Array, border: Array, config: Config, penalty: Penalty | None = None
) -> tuple[Array, Array]:
    """Q_L of Eq. 8, and the risk set U as 0 or 1."""
    penalty = penalty or config.penalty
    risky = uncertainty > border
    safe = jnp.where(jnp.isfinite(uncertainty) & (uncertainty > 0), uncertainty, jnp.inf)  # never divides by zero
    if penalty == "signed":
        weight = jnp.where(risky, config.beta * jnp.minimum(border / safe, 1.0), config.beta)
        kappa = jnp.where(q >= 0, 1.0, optimism_limit(config.alpha, config.discount))
        lower = q - kappa * (1.0 - weight) * jnp.abs(q)
    elif penalty == "paper":
        lower = q * jnp.where(risky, 1.0 / safe, config.beta)
    elif penalty == "release_antmaze":
        lower = q * jnp.where(risky, 1.0 + 0.1 * (1.0 - 1.0 / safe), 1.0)
    elif penalty == "release_umaze_diverse":
        lower = q * jnp.where(risky, 1.0 / safe, 1.0)
    else:
        lower = q
    return lower, risky.astype(jnp.float32)


def judge(both: Array, observations: Array, actions: Array, config: Config, problem: Problem, key: Array) -> Array:
    """H of each action, or what is taken for it; `both` holds the critics' values of these actions, a row for each critic.

    For uncertainty=behaviour it is 1 / sqrt(p(a | s)), as a standard error grows where there is less data.
    """
    if config.shuffle_risk:
        observations = jax.random.permutation(key, observations)
    if config.uncertainty == "behaviour":
        assert problem.behaviour is not None, "the surprise needs a model of the recorded actions"
        return jnp.exp(0.5 * jnp.minimum(problem.behaviour.surprise(observations, actions), LARGEST_SURPRISE))
    if config.uncertainty == "q_distribution":
        assert problem.distribution is not None, "QDQ needs a Q distribution"
        return mean_and_std(problem.distribution, observations, actions, problem.uncertainty, key)[1]
    return stand_in(config.uncertainty, both, observations, actions, problem.recorded, key)


def border_of(uncertainty: Array, config: Config, problem: Problem) -> Array:
    """The border of the risk set: set once from held-out actions, or the beta-quantile of the batch."""
    if config.uncertainty == "behaviour":
        return jnp.exp(0.5 * jnp.asarray(problem.surprise_border))
    return threshold(uncertainty, config.beta)


def uncertainty_aware(
    critics: Critics, observations: Array, actions: Array, config: Config, problem: Problem, key: Array
) -> tuple[Array, Metrics]:
    """alpha * Q + (1 - alpha) * Q_L: the two terms of Eq. 7 as one value (Appendix D)."""
    both = critics(observations, actions)
    q = jnp.min(both, axis=0)
    if config.penalty == "none":
        return q, {}
    if config.penalty == "discount":
        return (config.alpha + (1.0 - config.alpha) * config.beta) * q, {}
    uncertainty = judge(both, observations, actions, config, problem, key)
    border = border_of(uncertainty, config, problem)
    lower, risky = pessimistic_value(q, uncertainty, border, config)
    value = config.alpha * q + (1.0 - config.alpha) * lower
    if config.uncertainty == "behaviour":
        return value, {"surprise": jnp.mean(2.0 * jnp.log(uncertainty))}
    violated = jnp.sum(risky * (1.0 / jnp.maximum(uncertainty, 1e-8) >= config.beta)) / jnp.maximum(jnp.sum(risky), 1.0)
    metrics = {"uncertainty": jnp.mean(uncertainty), "uncertainty_border": border}
    return value, metrics | {"risk_share": jnp.mean(risky), "risk_violation_share": violated}


def one_step(following: Array, config: Config, problem: Problem, batch: LoggedTransitions) -> Array:
    """r + discount * what follows, nothing after a terminal."""
    target = batch.rewards + config.discount * (1.0 - batch.terminals) * following
    if config.penalty == "signed":
        target = jnp.maximum(target, min(0.0, problem.reward_minimum) / (1.0 - config.discount))
    return target


def bellman_target(
    state: State, config: Config, problem: Problem, batch: LoggedTransitions, key: Array
) -> tuple[Array, Metrics]:
    """y of Eq. 7: what follows is the uncertainty-aware Q of the target policy's action."""
    sample_key, noise_key, uncertainty_key = jax.random.split(key, 3)
    if config.sample_target_action:
        action = state.target_policy.sample(batch.next_observations, sample_key)
    else:
        action = state.target_policy(batch.next_observations)
    noise = config.target_noise * jax.random.normal(noise_key, action.shape)
    action = jnp.clip(action + jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip), -1.0, 1.0)
    following, metrics = uncertainty_aware(
        state.target_critics, batch.next_observations, action, config, problem, uncertainty_key
    )
    return one_step(following, config, problem, batch), metrics


def recorded_value(
    state: State, config: Config, problem: Problem, batch: LoggedTransitions, key: Array
) -> tuple[Array, Metrics]:
    """The uncertainty-aware Q of the recorded actions."""
    return uncertainty_aware(state.target_critics, batch.observations, batch.actions, config, problem, key)


def critic_loss(critics: Critics, batch: LoggedTransitions, target: Array, weight: Array) -> tuple[Array, Metrics]:
    """Weighted squared distance of both critics to the target."""
    predicted = critics(batch.observations, batch.actions)
    loss = jnp.mean(weight * jnp.square(predicted - target))
    return loss, {"critic_loss": loss, "q_mean": jnp.mean(predicted), "q_magnitude": jnp.max(jnp.abs(predicted))}


def value_loss(value: MLP, batch: LoggedTransitions, goal: Array, weight: Array, expectile: ArrayLike = 0.5) -> Array:
    """V(s): an expectile of the goal at a state; 0.5 is its mean."""
    gap = goal - jnp.squeeze(value(batch.observations), -1)
    return jnp.mean(weight * jnp.where(gap > 0, expectile, 1.0 - expectile) / 0.5 * jnp.square(gap))


def recorded_advantage(state: State, batch: LoggedTransitions) -> Array:
    """How much more was really obtained after the recorded action than on average at its state."""
    return batch.exact * (batch.returns - jnp.squeeze(state.value(batch.observations), -1))


def learned_advantage(state: State, config: Config, problem: Problem, batch: LoggedTransitions, key: Array) -> Array:
    """How much better the critics judge the recorded action than V or, without one, than what the policy does."""
    if config.bootstrap == "recorded":
        aware, _ = recorded_value(state, config, problem, batch, key)
        return aware - jnp.squeeze(state.value(batch.observations), -1)
    q = jnp.min(state.critics(batch.observations, batch.actions), axis=0)
    if config.value_samples > 0:
        observations = jnp.broadcast_to(batch.observations, (config.value_samples, *batch.observations.shape))
        actions = state.target_policy.sample(observations, key)
        return q - jnp.mean(jnp.min(state.critics(observations, actions), axis=0), axis=0)
    return q - jnp.min(state.critics(batch.observations, state.policy(batch.observations)), axis=0)


def regression_weight(state: State, config: Config, problem: Problem, batch: LoggedTransitions, key: Array) -> Array:
    """Weight of every recorded action in the policy's log likelihood: exp(temperature * advantage), capped.

    Extraction knows the recorded advantage only; `awr` goes on with the critics' own, `eq9` keeps the recorded one.
    """
    if config.extraction_share == 0:
        if config.objective == "eq9":
            return jnp.ones_like(batch.rewards)
        gap = learned_advantage(state, config, problem, batch, key)
    elif config.objective == "eq9":
        gap = recorded_advantage(state, batch)
    else:
        gap = jnp.where(
            state.number <= extraction_steps(config, problem),
            recorded_advantage(state, batch),
            learned_advantage(state, config, problem, batch, key),
        )
    unit = problem.return_std if config.advantage_unit == "return_std" else 1.0
    return jnp.minimum(jnp.exp(config.advantage_temperature * gap / unit), config.advantage_cap)


def distance_to_data(
    state: State, observations: Array, actions: Array, recorded: Array, config: Config, problem: Problem, key: Array
) -> tuple[Array, Array]:
    """How far the data is from vouching for each action, differentiable, and the share of them in the risk set.

    With a model of the recorded actions it is the distance to them. Whatever else is taken for H counts in units of its
    own spread over recorded and asked actions.
    """
    uncertainty = judge(state.critics(observations, actions), observations, actions, config, problem, key)
    if config.uncertainty == "behaviour":
        assert problem.behaviour is not None
        asked = jax.random.permutation(key, observations) if config.shuffle_risk else observations
        risky = jnp.mean(uncertainty > border_of(uncertainty, config, problem))
        return problem.behaviour.distance(asked, actions), risky
    usual = judge(state.critics(observations, recorded), observations, recorded, config, problem, key)
    unit = jnp.std(jax.lax.stop_gradient(jnp.concatenate([usual, uncertainty]))) + 1e-8
    return uncertainty / unit, jnp.mean(uncertainty > border_of(usual, config, problem))


def support_loss(
    policy: GaussianPolicy | HeldPolicy,
    state: State,
    config: Config,
    problem: Problem,
    batch: LoggedTransitions,
    key: Array,
) -> tuple[Array, Metrics]:
    """Q of the policy's action, in units of the advantage's spread, against its distance to the recorded actions."""
    action = policy(batch.observations)
    q = state.critics.first(batch.observations, action)
    advantage = jax.lax.stop_gradient(state.critics.first(batch.observations, batch.actions) - q)
    gain = jnp.where(
        state.number <= extraction_steps(config, problem), 0.0, 1.0 / (jnp.std(advantage) + 1e-6 * problem.return_std)
    )
    distance, risky = distance_to_data(state, batch.observations, action, batch.actions, config, problem, key)
    hold = distance * (1.0 + config.risk_stiffness * jnp.maximum(distance, 0.0) / problem.action_size)
    loss = jnp.mean(config.risk_weight * hold - gain * q)
    metrics = {"policy_loss": loss, "policy_q": jnp.mean(q), "policy_distance": jnp.mean(distance)}
    return loss, metrics | {"advantage_std": jnp.std(advantage), "risk_share": risky}


def policy_loss(
    policy: GaussianPolicy, state: State, config: Config, problem: Problem, batch: LoggedTransitions, key: Array
) -> tuple[Array, Metrics]:
    """Weighted log likelihood of the recorded actions and, for Eq. 9 after the extraction, the policy's own Q."""
    weight = jax.lax.stop_gradient(regression_weight(state, config, problem, batch, key))
    log_density = policy.log_density(batch.observations, batch.actions)
    if config.objective == "awr":
        loss = -jnp.mean(weight * log_density)
        return loss, {"policy_loss": loss, "advantage_weight": jnp.mean(weight)}
    q = jnp.min(state.critics(batch.observations, policy(batch.observations)), axis=0)
    scale = config.q_weight / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)) + 1e-8) if config.q_weight > 0 else 1.0
    if config.extraction_share > 0:
        scale = jnp.where(state.number <= extraction_steps(config, problem), 0.0, scale)
    likelihood = jnp.mean(weight * log_density) / jnp.mean(weight)
    loss = -jnp.mean(scale * q) - config.entropy_weight * likelihood
    return loss, {"policy_loss": loss, "log_density": jnp.mean(log_density)}


def steps(config: Config, problem: Problem) -> tuple[Step, ...]:
    """The cycle of pure training steps: critics, then critics, policy and targets."""
    policy_optimiser, critic_optimiser = _optimisers(config, problem)

    def fit_value(state: State, batch: LoggedTransitions, *aim: Any) -> tuple[MLP, optax.OptState]:
        grads = jax.grad(value_loss)(state.value, batch, *aim)
        return descend(critic_optimiser, grads, state.value_optimiser, state.value)

    def policy_goal(state: State, batch: LoggedTransitions, key: Array) -> tuple[Goal, Metrics]:
        """Critics and V follow the recorded returns first; then the policy's own next action is asked for."""

        def bellman() -> tuple[Goal, Metrics]:
            target, metrics = bellman_target(state, config, problem, batch, key)
            return (target, jnp.ones_like(target), state.value, state.value_optimiser), metrics

        def recorded() -> tuple[Goal, Metrics]:
            nothing = {name: jnp.zeros(()) for name in jax.eval_shape(bellman)[1]}
            return (batch.returns, batch.exact, *fit_value(state, batch, batch.returns, batch.exact)), nothing

        if config.extraction_share == 0:
            return bellman()
        return jax.lax.cond(state.number < extraction_steps(config, problem), recorded, bellman)

    def recorded_goal(state: State, batch: LoggedTransitions, key: Array) -> tuple[Goal, Metrics]:
        """V follows the recorded returns first, then the recorded actions' Q; the critics follow V."""
        aware, metrics = recorded_value(state, config, problem, batch, key)
        extracting = state.number < extraction_steps(config, problem)
        weight = jnp.where(extracting, batch.exact, 1.0)
        expectile = jnp.where(extracting, 0.5, config.expectile)
        value, value_state = fit_value(state, batch, jnp.where(extracting, batch.returns, aware), weight, expectile)
        following = one_step(jnp.squeeze(value(batch.next_observations), -1), config, problem, batch)
        return (jnp.where(extracting, batch.returns, following), weight, value, value_state), metrics

    aim = recorded_goal if config.bootstrap == "recorded" else policy_goal

    def update_critics(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        (target, weight, value, value_state), metrics = aim(state, batch, key)
        grads, more = jax.grad(critic_loss, has_aux=True)(state.critics, batch, target, weight)
        critics, critic_state = descend(critic_optimiser, grads, state.critic_optimiser, state.critics)
        new = (state.number + 1, critics, critic_state, value, value_state)
        state = eqx.tree_at(lambda s: (s.number, s.critics, s.critic_optimiser, s.value, s.value_optimiser), state, new)
        return state, metrics | more

    def update_all(state: State, batch: LoggedTransitions, key: Array) -> tuple[State, Metrics]:
        critic_key, policy_key = jax.random.split(key)
        state, metrics = update_critics(state, batch, critic_key)
        aim_of_policy: Any = support_loss if config.objective == "support" else policy_loss
        grads, more = jax.grad(aim_of_policy, has_aux=True)(state.policy, state, config, problem, batch, policy_key)
        policy, policy_state = descend(policy_optimiser, grads, state.policy_optimiser, state.policy)
        new = (
            policy,
            policy_state,
            moving_average(state.target_policy, policy, config.target_rate),
            moving_average(state.target_critics, state.critics, config.target_rate),
        )
        state = eqx.tree_at(lambda s: (s.policy, s.policy_optimiser, s.target_policy, s.target_critics), state, new)
        return state, metrics | more

    return update_critics, update_all


def policy(state: State) -> GaussianPolicy | HeldPolicy:
    """The policy to evaluate and deploy."""
    return state.policy
