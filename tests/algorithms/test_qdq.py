"""QDQ's mathematics on numbers: the penalty, its sign rule, the targets, the losses."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdq.algorithms import qdq
from qdq.algorithms.problem import Problem
from qdq.behaviour import BehaviourModel, HeldPolicy
from qdq.behaviour import Config as BehaviourConfig
from qdq.data.batches import LoggedTransitions
from qdq.networks import GaussianPolicy

finite = st.floats(-1e3, 1e3, allow_nan=False, allow_subnormal=False, width=32)  # XLA flushes subnormal numbers to zero
unit = st.floats(0.05, 0.999)


class Constant(eqx.Module):
    """Stands where critics stand and always answers the same."""

    value: jax.Array

    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return jnp.broadcast_to(self.value, (2, observations.shape[0]))

    def first(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return self.value[0]


class Spread(eqx.Module):
    """A Q distribution whose standard deviation is a given number for each row."""

    std: jax.Array

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        return z * self.std


def batch(rewards: list[float], terminals: list[float]) -> LoggedTransitions:
    count = len(rewards)
    s, a = jnp.zeros((count, 2)), jnp.zeros((count, 1))
    return LoggedTransitions(s, a, jnp.array(rewards), s, jnp.array(terminals), jnp.zeros(count), jnp.ones(count))


def state_with(q: Any, config: qdq.Config, problem: Problem) -> Any:
    state = qdq.init(config, problem, jax.random.key(0))
    return eqx.tree_at(lambda s: s.target_critics, state, Constant(jnp.asarray(q)))


@given(finite, st.floats(0.0, 1e3), st.floats(0.0, 1e3), unit, unit)
@settings(max_examples=200, deadline=None)
def test_pessimistic_value_never_exceeds_q(q: float, h: float, border: float, alpha: float, beta: float) -> None:
    config = qdq.Config(alpha=alpha, beta=beta)
    lower, _ = qdq.pessimistic_value(jnp.array([q]), jnp.array([h]), jnp.asarray(border), config)
    assert np.isfinite(lower[0])
    assert float(lower[0]) <= np.float32(q) + 1e-4 * abs(q)


@given(finite, finite, st.floats(0.01, 1e3), unit, unit, st.floats(0.5, 0.999))
@settings(max_examples=200, deadline=None)
def test_penalised_backup_contracts(q1: float, q2: float, h: float, alpha: float, beta: float, discount: float) -> None:
    config = qdq.Config(alpha=alpha, beta=beta, discount=discount)
    border = jnp.asarray(1.0)
    backups = []
    for q in (q1, q2):
        lower, _ = qdq.pessimistic_value(jnp.array([q]), jnp.array([h]), border, config)
        backups.append(discount * (alpha * q + (1 - alpha) * float(lower[0])))
    factor = max(discount, (1 + discount) / 2)
    assert abs(backups[0] - backups[1]) <= factor * abs(q1 - q2) + 1e-3 + 1e-5 * max(abs(q1), abs(q2))


def test_signed_penalty_by_hand() -> None:
    config = qdq.Config(alpha=0.99, beta=0.8)
    q, h, border = jnp.array([10.0, 10.0, -10.0, -10.0]), jnp.array([1.0, 4.0, 1.0, 4.0]), jnp.asarray(2.0)
    lower, risky = qdq.pessimistic_value(q, h, border, config)
    kappa = ((1 + 0.99) / (2 * 0.99) - 0.99) / 0.01 - 1
    weight = 0.8 * 2.0 / 4.0
    np.testing.assert_allclose(lower, [8.0, 4.0, -10 - kappa * 0.2 * 10, -10 - kappa * (1 - weight) * 10], rtol=1e-4)
    np.testing.assert_array_equal(risky, [0, 1, 0, 1])


def test_printed_and_released_penalties_by_hand() -> None:
    config = qdq.Config(beta=0.8)
    q, h, border = jnp.array([10.0, 10.0]), jnp.array([1.0, 4.0]), jnp.asarray(2.0)
    for penalty, expected in {
        "paper": [8.0, 2.5],
        "release_antmaze": [10.0, 10.0 * (1 + 0.1 * 0.75)],
        "release_umaze_diverse": [10.0, 2.5],
        "none": [10.0, 10.0],
    }.items():
        lower, _ = qdq.pessimistic_value(q, h, border, config, penalty)  # type: ignore[arg-type]
        np.testing.assert_allclose(lower, expected, rtol=1e-6, err_msg=penalty)


@pytest.mark.parametrize("h", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("penalty", ["signed", "paper", "release_antmaze", "release_umaze_diverse"])
def test_degenerate_uncertainty_never_divides(h: float, penalty: str) -> None:
    lower, _ = qdq.pessimistic_value(jnp.array([5.0, -5.0]), jnp.array([h, h]), jnp.asarray(0.5), qdq.Config(), penalty)  # type: ignore[arg-type]
    assert np.isfinite(lower).all()


def test_targets_by_hand_with_terminals() -> None:
    config = qdq.Config(alpha=0.9, beta=0.5, discount=0.9, target_noise=0.0)
    spread = jnp.array([1.0, 1.0, 1.0, 5.0])
    problem = Problem(2, 1, 10, -1.0, 1.0, distribution=Spread(spread))  # type: ignore[arg-type]
    state = state_with(jnp.array([[10.0], [20.0]]), config, problem)
    target, metrics = qdq.bellman_target(
        state, config, problem, batch([1.0, 1.0, 2.0, 1.0], [0.0, 1.0, 0.0, 0.0]), jax.random.key(0)
    )
    safe = 0.9 * 10 + 0.1 * 0.5 * 10  # the smaller critic, off the risk set
    risky = 0.9 * 10 + 0.1 * 0.5 * (1.0 / 5.0) * 10  # threshold 1, H = 5
    np.testing.assert_allclose(target, [1 + 0.9 * safe, 1.0, 2 + 0.9 * safe, 1 + 0.9 * risky], rtol=1e-5)
    assert float(metrics["risk_share"]) == pytest.approx(0.25)


def test_antmaze_like_targets_stay_above_their_floor() -> None:
    config = qdq.Config(alpha=0.99, beta=0.9)
    problem = Problem(2, 1, 10, -1.0, 1.0, distribution=Spread(jnp.array([1.0, 50.0])))  # type: ignore[arg-type]
    state = state_with(jnp.array([[-99.0], [-99.9]]), config, problem)
    target, _ = qdq.bellman_target(state, config, problem, batch([-1.0, -1.0], [0.0, 0.0]), jax.random.key(0))
    assert (target >= -100.0 - 1e-3).all()


def test_two_term_loss_has_the_gradient_of_one_regression() -> None:
    """Eq. 7 as printed, alpha * L_H + (1 - alpha) * L_L, beside our loss on our one target (Appendix D)."""
    config = qdq.Config(alpha=0.7, beta=0.5, discount=0.9, critic_hidden=(8,))
    problem = Problem(2, 1, 10, 0.0, 1.0, distribution=Spread(jnp.array([1.0, 1.0, 1.0, 5.0])))  # type: ignore[arg-type]
    state = state_with(jnp.array([[10.0, 4.0, 3.0, 2.0], [20.0, 3.0, 8.0, 9.0]]), config, problem)
    rows = batch([1.0, 0.5, 2.0, 1.0], [0.0, 0.0, 1.0, 0.0])
    rows = rows._replace(observations=jax.random.normal(jax.random.key(1), (4, 2)))
    q = np.array([10.0, 3.0, 3.0, 2.0])  # the smaller critic
    lower = q * np.array([0.5, 0.5, 0.5, 0.5 * 1.0 / 5.0])  # Q_L: beta, and beta * H_beta / H where H = 5
    goes_on = 0.9 * np.array([1.0, 1.0, 0.0, 1.0])
    high, low = np.asarray(rows.rewards) + goes_on * q, np.asarray(rows.rewards) + goes_on * lower

    def two_terms(critics: Any) -> jax.Array:
        predicted = critics(rows.observations, rows.actions)
        return 0.7 * jnp.mean(jnp.square(predicted - high)) + (1 - 0.7) * jnp.mean(jnp.square(predicted - low))

    def one_regression(critics: Any) -> jax.Array:
        aware, _ = qdq.uncertainty_aware(
            state.target_critics, rows.next_observations, rows.actions, config, problem, jax.random.key(0)
        )
        return qdq.critic_loss(critics, rows, qdq.one_step(aware, config, problem, rows), jnp.ones(4))[0]

    ours, printed = (jax.tree.leaves(jax.grad(loss)(state.critics)) for loss in (one_regression, two_terms))
    assert any(np.any(leaf != 0.0) for leaf in ours)
    for one, two in zip(ours, printed, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_extraction_weights_recorded_actions_by_their_advantage() -> None:
    config = qdq.Config(
        objective="awr", extraction_share=1.0, advantage_temperature=2.0, advantage_cap=50.0, value_samples=0
    )
    problem = Problem(2, 1, 10, 0.0, 1.0)
    state = qdq.init(config, problem, jax.random.key(0))
    state = eqx.tree_at(lambda s: s.value, state, lambda observations: jnp.full((*observations.shape[:-1], 1), 1.0))
    rows = batch([0.0, 0.0], [0.0, 0.0])._replace(returns=jnp.array([2.0, 4.0]))
    policy: GaussianPolicy = state.policy
    loss, _ = qdq.policy_loss(policy, state, config, problem, rows, jax.random.key(0))
    log_density = policy.log_density(rows.observations, rows.actions)
    expected = -np.mean(np.minimum(np.exp(2.0 * np.array([1.0, 3.0])), 50.0) * np.asarray(log_density))
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_equation_9_after_extraction_keeps_the_weights_and_adds_q() -> None:
    config = qdq.Config(extraction_share=0.5, advantage_temperature=2.0, advantage_cap=50.0, q_weight=3.0)
    problem = Problem(2, 1, 10, 0.0, 1.0)
    state = qdq.init(config, problem, jax.random.key(0))
    state = eqx.tree_at(lambda s: s.value, state, lambda observations: jnp.full((*observations.shape[:-1], 1), 1.0))
    rows = batch([0.0, 0.0], [0.0, 0.0])._replace(returns=jnp.array([2.0, 4.0]))
    weights = np.minimum(np.exp(2.0 * np.array([1.0, 3.0])), 50.0)
    likelihood = np.sum(weights * np.asarray(state.policy.log_density(rows.observations, rows.actions))) / weights.sum()
    q = np.asarray(state.critics(rows.observations, state.policy(rows.observations))).min(axis=0)
    for number, q_term in ((5, 0.0), (6, 3.0 * np.mean(q) / np.mean(np.abs(q)))):  # extraction lasts five steps
        now = eqx.tree_at(lambda s: s.number, state, jnp.asarray(number))
        loss, _ = qdq.policy_loss(now.policy, now, config, problem, rows, jax.random.key(0))
        assert float(loss) == pytest.approx(-q_term - likelihood, rel=1e-4)


def test_optimism_limit_is_the_largest_allowed() -> None:
    for alpha, discount in ((0.99, 0.99), (0.95, 0.99), (0.5, 0.9), (0.999, 0.99)):
        kappa = qdq.optimism_limit(alpha, discount)
        assert 0.0 <= kappa <= 1.0
        reached = discount * (alpha + (1 - alpha) * (1 + kappa))
        assert reached <= (1 + discount) / 2 + 1e-9
        assert kappa == 1.0 or reached == pytest.approx((1 + discount) / 2)


class Level(eqx.Module):
    """Stands where V stands and answers one number, which can be learned."""

    value: jax.Array

    def __call__(self, observations: jax.Array) -> jax.Array:
        return jnp.broadcast_to(self.value, (*observations.shape[:-1], 1))


RECORDED = qdq.Config(
    alpha=0.9, beta=0.5, discount=0.9, bootstrap="recorded", objective="awr", advantage_unit="return_std",
    advantage_temperature=2.0, advantage_cap=3.0,
)  # fmt: skip


def test_advantages_of_recorded_actions_are_penalised_where_they_are_uncertain() -> None:
    problem = Problem(2, 1, 10, -1.0, 1.0, distribution=Spread(jnp.array([1.0, 1.0, 1.0, 5.0])))  # type: ignore[arg-type]
    state = state_with(jnp.array([[10.0], [20.0]]), RECORDED, problem)
    state = eqx.tree_at(lambda s: s.value, state, Level(jnp.asarray(9.3)))
    safe, risky = 0.9 * 10 + 0.1 * 0.5 * 10, 0.9 * 10 + 0.1 * 0.5 * (1.0 / 5.0) * 10
    gap = np.array([safe, safe, safe, risky]) - 9.3
    weight = qdq.regression_weight(state, RECORDED, problem, batch([0.0] * 4, [0.0] * 4), jax.random.key(0))
    np.testing.assert_allclose(weight, np.minimum(np.exp(2.0 * gap), 3.0), rtol=1e-4)
    assert weight[0] > 1.0 > weight[3]


def test_the_value_is_an_expectile_of_recorded_actions() -> None:
    """Recorded actions worth 0, 0 and 10: V rests where it is their expectile."""
    value, rows = Level(jnp.asarray(0.0)), batch([0.0] * 3, [0.0] * 3)
    goal, weight = jnp.array([0.0, 0.0, 10.0]), jnp.array([1.0, 1.0, 1.0])
    for expectile in (0.5, 0.7, 0.9):
        best = 10.0 * expectile / (expectile + 2.0 * (1.0 - expectile))  # where the weighted gaps cancel
        gradient = jax.grad(qdq.value_loss)(Level(jnp.asarray(best)), rows, goal, weight, expectile)
        assert float(gradient.value) == pytest.approx(0.0, abs=1e-5)
    assert float(qdq.value_loss(value, rows, goal, weight)) == pytest.approx(100.0 / 3.0)  # type: ignore[arg-type]


def test_a_step_with_recorded_values_by_hand() -> None:
    """The critics' target is r + discount * V(s'), nothing after a terminal, and the returns during the extraction."""
    problem = Problem(2, 1, 10, -1.0, 1.0)
    rows = batch([1.0, 2.0], [0.0, 1.0])._replace(returns=jnp.array([7.0, 8.0]), exact=jnp.array([1.0, 0.0]))
    for share, expected in ((0.0, None), (1.0, 49.0 / 2)):
        config = qdq.Config(discount=0.9, bootstrap="recorded", penalty="none", extraction_share=share)
        state = qdq.init(config, problem, jax.random.key(0))
        zero = jax.tree.map(jnp.zeros_like, eqx.filter(state.critics, eqx.is_array))
        state = eqx.tree_at(lambda s: s.critics, state, eqx.combine(zero, state.critics))
        after, metrics = qdq.steps(config, problem)[0](state, rows, jax.random.key(0))
        if expected is None:
            following = 0.9 * float(after.value(rows.next_observations)[0, 0])
            expected = ((1.0 + following) ** 2 + 2.0**2) / 2
        assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-5)


class Vouching(eqx.Module):
    """Stands where the model of recorded actions stands: the recorded action is 0.5 s, with standard deviation `std`."""

    std: float = 0.1

    def surprise(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return self.distance(observations, actions) + jnp.log(self.std)

    def distance(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return 0.5 * jnp.square((actions[:, 0] - 0.5 * observations[:, 0]) / self.std)


SUPPORT = qdq.Config(
    alpha=0.25, discount=0.9, uncertainty="behaviour", penalty="none", bootstrap="recorded", objective="support",
    risk_weight=0.5,
)  # fmt: skip


def test_surprising_recorded_actions_are_penalised_where_that_is_asked() -> None:
    """penalty=signed with the border of held-out actions instead of a quantile of the batch."""
    config = dataclasses.replace(SUPPORT, penalty="signed", beta=0.9)
    rows = batch([0.0] * 2, [0.0] * 2)._replace(actions=jnp.array([[0.0], [0.3]]))
    border = float(np.log(0.1)) + 1.0
    models: Any = {"behaviour": Vouching(), "surprise_border": border}
    problem = Problem(2, 1, 10, 0.0, 1.0, **models)
    state = state_with(jnp.array([[10.0], [20.0]]), config, problem)
    value, metrics = qdq.recorded_value(state, config, problem, rows, jax.random.key(0))
    weight = 0.9 * np.exp(-0.5 * (4.5 - 1.0))  # at the second row the distance is 4.5, the border at 1
    np.testing.assert_allclose(value, [0.25 * 10 + 0.75 * 9, 0.25 * 10 + 0.75 * weight * 10], rtol=1e-4)
    assert float(metrics["surprise"]) == pytest.approx(np.log(0.1) + 2.25, rel=1e-4)


class Line(eqx.Module):
    """Critics whose value is the slope times the action."""

    slope: jax.Array

    def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return self.slope * jnp.stack([actions[:, 0], 3.0 * actions[:, 0] + 1.0])

    def first(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return self.slope * actions[:, 0]


def test_the_policy_weighs_its_gain_against_its_distance_by_hand() -> None:
    rows = batch([0.0] * 2, [0.0] * 2)._replace(
        observations=jnp.array([[0.4, 0.0], [-0.2, 0.0]]), actions=jnp.array([[0.3], [-0.3]])
    )
    problem = Problem(2, 1, 10, 0.0, 1.0, behaviour=Vouching(), surprise_border=0.0)  # type: ignore[arg-type]
    state = eqx.tree_at(lambda s: s.critics, qdq.init(SUPPORT, problem, jax.random.key(0)), Line(jnp.asarray(7.0)))
    action = np.asarray(state.policy(rows.observations))[:, 0]
    advantage = 7.0 * (np.array([0.3, -0.3]) - action)
    distance = 0.5 * np.square((action - np.array([0.2, -0.1])) / 0.1)
    for number, gain in ((0, 0.0), (1, 1.0 / advantage.std())):  # the extraction imitates
        config = eqx.tree_at(lambda s: s.number, state, jnp.asarray(number))
        loss, metrics = qdq.support_loss(config.policy, config, SUPPORT, problem, rows, jax.random.key(0))
        assert float(loss) == pytest.approx(np.mean(0.5 * distance - gain * 7.0 * action), rel=1e-4)
        stiff = dataclasses.replace(SUPPORT, risk_stiffness=2.0)
        loss, _ = qdq.support_loss(config.policy, config, stiff, problem, rows, jax.random.key(0))
        hold = 0.5 * distance * (1.0 + 2.0 * distance)  # one action dimension
        assert float(loss) == pytest.approx(np.mean(hold - gain * 7.0 * action), rel=1e-4)
        flagged = np.mean(distance + np.log(0.1) > 0.0)
        assert float(metrics["risk_share"]) == pytest.approx(flagged)


def test_a_held_policy_learns_and_leaves_the_model_alone() -> None:
    """Only where the signal is the model of the recorded actions, asked where the policy acts."""
    model = BehaviourModel(2, 1, BehaviourConfig(components=2, hidden=(8,)), jax.random.key(1))
    models: Any = {"behaviour": model, "surprise_border": 0.0}
    problem = Problem(2, 1, 10, 0.0, 1.0, **models)
    config = dataclasses.replace(SUPPORT, largest_deviation=1.0)
    before = qdq.init(config, problem, jax.random.key(0))
    assert isinstance(before.policy, HeldPolicy)
    _, update_all = qdq.steps(config, problem)
    after, metrics = update_all(before, batch([0.0, 1.0], [0.0, 0.0]), jax.random.key(2))
    assert eqx.tree_equal(after.policy.model, model)
    assert not eqx.tree_equal(after.policy.network, before.policy.network)
    assert np.isfinite(float(metrics["policy_distance"]))
    for change in ({"shuffle_risk": True}, {"uncertainty": "random"}, {"largest_deviation": 0.0}):
        other = dataclasses.replace(config, **change)
        assert isinstance(qdq.init(other, problem, jax.random.key(0)).policy, GaussianPolicy)


@pytest.mark.parametrize("signal", ["q_distribution", "random", "constant", "ensemble"])
def test_any_signal_may_hold_the_policy_in_units_of_its_own_spread(signal: str) -> None:
    """Ten times the signal changes nothing; a signal without a gradient holds nothing. All while the policy imitates."""
    rows = batch([0.0] * 3, [0.0] * 3)._replace(actions=jnp.array([[0.3], [-0.3], [0.1]]))
    gradients = []
    for scale in (1.0, 10.0):
        config = dataclasses.replace(SUPPORT, uncertainty=signal, penalty="none")  # type: ignore[arg-type]
        problem = Problem(2, 1, 10, 0.0, 1.0, distribution=Bowl(jnp.asarray(scale)))  # type: ignore[arg-type]
        state = qdq.init(config, problem, jax.random.key(0))
        if signal == "ensemble":
            state = eqx.tree_at(lambda s: s.critics, state, Line(jnp.asarray(scale)))
        gradient = jax.grad(
            lambda policy, s=state, c=config, p=problem: qdq.support_loss(policy, s, c, p, rows, jax.random.key(0))[0]
        )
        gradients.append(np.asarray(gradient(state.policy).mean_network.layers[-1].bias))
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)
    assert np.any(gradients[0] != 0.0) == (signal in ("q_distribution", "ensemble"))


class Bowl(eqx.Module):
    """A Q distribution whose spread grows with the distance of the action from zero."""

    scale: jax.Array

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        return z * self.scale * (0.1 + jnp.square(actions[:, 0]))
