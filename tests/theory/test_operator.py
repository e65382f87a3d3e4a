"""Theorems 3 and 4, Lemmas 1 and 2, Corollary 1 and Proposition F.1 on processes whose optimal Q is known.

Each statement is tested where its assumptions hold, and shown to fail on a case by hand where one of them does not.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdq.algorithms import qdq
from tests.theory.tabular import ACTIONS, SLACK, STATES, Process, fixed_point, norm, random_process, single_state

seeds = st.integers(0, 2**31)
few = settings(max_examples=20, deadline=None)


def two_values(seed: int, scale: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    """Two arbitrary Q functions, of either sign."""
    random = np.random.default_rng(seed)
    first = random.normal(size=(STATES, ACTIONS)) * scale
    return first, first + random.normal(size=(STATES, ACTIONS)) * random.choice([0.01, 1.0, 30.0])


class TestTheorem3:
    """F contracts by c * discount, c = alpha + (1 - alpha) beta, if 1/H < beta on U."""

    @given(seeds)
    @few
    def test_contraction_as_printed(self, seed: int) -> None:
        process = random_process(seed, safe=False)
        first, second = two_values(seed)
        moved = norm(process.penalised(first) - process.penalised(second))
        assert moved <= process.factor * process.config.discount * norm(first - second) + SLACK

    def test_the_constant_is_reached(self) -> None:
        """No smaller constant would do: a shift of every Q by one moves F by c * discount."""
        process = replace(random_process(0), border=np.inf)  # nothing is risky
        shift = process.penalised(np.full((STATES, ACTIONS), 5.0)) - process.penalised(np.full((STATES, ACTIONS), 4.0))
        assert norm(shift) == pytest.approx(process.factor * process.config.discount, rel=1e-5)

    def test_without_the_assumption_on_h_the_printed_operator_diverges(self) -> None:
        """H = 0.05 in another unit of reward: 1/H = 20, and values grow without end. The signed rule has no unit."""
        process, _ = single_state([1.0, 0.5], [0.05, 0.01], 0.02, alpha=0.5, beta=0.9)
        q = np.ones((1, 2))
        for _ in range(50):
            q = process.penalised(q)
        assert norm(q) > 1e12
        signed = replace(process, config=replace(process.config, penalty="signed"))
        q = np.ones((1, 2))
        for _ in range(100):
            q = signed.penalised(q)
        assert norm(q) <= 10.0

    @given(seeds)
    @few
    def test_signed_rule_contracts_for_any_sign_and_unit(self, seed: int) -> None:
        """The product's default: modulus (1 + discount) / 2 instead of c * discount, and no assumption on H."""
        process = random_process(seed, safe=False, small_enough=False, penalty="signed")
        first, second = two_values(seed)
        moved = norm(process.penalised(first) - process.penalised(second))
        assert moved <= (1 + process.config.discount) / 2 * norm(first - second) + SLACK

    def test_signed_rule_is_no_contraction_by_the_printed_constant(self) -> None:
        """The price of pessimism below zero: there it moves more than c * discount."""
        process = replace(random_process(0, penalty="signed"), border=np.inf)
        shift = process.penalised(np.full((STATES, ACTIONS), -5.0)) - process.penalised(
            np.full((STATES, ACTIONS), -4.0)
        )
        assert norm(shift) > process.factor * process.config.discount + 0.01

    def test_two_losses_are_one_regression_only_for_one_action(self) -> None:
        """Appendix D takes one maximum over alpha Q + (1 - alpha) Q_L, the two losses take one each: these differ.

        QDQ evaluates both at the same action of the target policy, where the step is exact.
        """
        process, q = single_state([10.0, 9.9], [10.0, 1.0], 5.0, alpha=0.5, beta=0.9)
        together = (0.5 * q + 0.5 * process.lower(q)).max()
        apart = 0.5 * q.max() + 0.5 * process.lower(q).max()
        assert together == pytest.approx(9.405, abs=1e-4)
        assert apart == pytest.approx(9.455, abs=1e-4)


def error_bound(process: Process, optimal: np.ndarray, share: float) -> float:
    """discount (1 - alpha) * share / (1 - c discount) * |Q*|."""
    config = process.config
    return config.discount * (1 - config.alpha) * share / (1 - process.factor * config.discount) * norm(optimal)


class TestTheorem4AndLemma1:
    """|B Q* - F Q*| <= discount (1 - alpha) (1 - beta) |Q*|, and so the distance of the two fixed points."""

    @given(seeds)
    @few
    def test_in_the_likely_event(self, seed: int) -> None:
        process = random_process(seed)
        config = process.config
        optimal = fixed_point(process.bellman, config.discount)
        learned = fixed_point(process.penalised, config.discount)
        assert process.greedy_is_safe(optimal)
        step = norm(process.bellman(optimal) - process.penalised(optimal))
        assert step <= config.discount * (1 - config.alpha) * (1 - config.beta) * norm(optimal) + SLACK
        assert norm(learned - optimal) <= error_bound(process, optimal, 1 - config.beta) + SLACK
        assert (learned <= optimal + SLACK).all()  # and pessimistic everywhere

    @given(seeds)
    @few
    def test_in_the_other_event(self, seed: int) -> None:
        """For any sign and any U the share is 1 - 1/H_max, as long as 1/H < beta on U and H_max > 1/beta."""
        process = random_process(seed, lowest_reward=-1.0, safe=False)
        config = process.config
        share = max(1 - config.beta, 1 - 1 / float(process.uncertainty.max()))
        optimal = fixed_point(process.bellman, config.discount)
        step = norm(process.bellman(optimal) - process.penalised(optimal))
        assert step <= config.discount * (1 - config.alpha) * share * norm(optimal) + SLACK
        learned = fixed_point(process.penalised, config.discount)
        assert norm(learned - optimal) <= error_bound(process, optimal, share) + SLACK

    @given(seeds)
    @few
    def test_signed_rule_in_any_unit_of_reward(self, seed: int) -> None:
        """With Q* >= 0 and safe best actions the product's default needs no assumption on the size of H."""
        process = random_process(seed, small_enough=False, penalty="signed")
        optimal = fixed_point(process.bellman, process.config.discount)
        learned = fixed_point(process.penalised, process.config.discount)
        assert norm(learned - optimal) <= error_bound(process, optimal, 1 - process.config.beta) + SLACK

    @pytest.mark.parametrize(
        ("q", "uncertainty"),
        [
            ([10.0, 1.0], [100.0, 1.0]),  # the best action is in U
            ([-10.0, -10.5], [1.0, 100.0]),  # Q* < 0: the penalty lifts a risky action above the best
            ([10.0, 9.0], [0.02, 0.03]),  # 1/H = 33 on U: the "penalty" raises Q
        ],
        ids=["risky best action", "negative Q", "1/H above beta"],
    )
    def test_each_assumption_is_needed(self, q: list[float], uncertainty: list[float]) -> None:
        border = sum(uncertainty) / 2
        process, optimal = single_state(q, uncertainty, border, alpha=0.5, beta=0.9)
        step = norm(process.bellman(optimal) - process.penalised(optimal))
        assert step > 4 * 0.9 * 0.5 * 0.1 * norm(optimal)

    def test_beta_one_has_no_error_only_in_the_likely_event(self) -> None:
        """The paper's remark that beta = 1 gives error 0 does not survive a risky best action."""
        safe, optimal = single_state([10.0, 1.0], [1.0, 100.0], 5.0, alpha=0.5, beta=1.0)
        assert norm(safe.penalised(optimal) - optimal) < SLACK
        risky, optimal = single_state([10.0, 1.0], [100.0, 1.0], 5.0, alpha=0.5, beta=1.0)
        assert norm(risky.penalised(optimal) - optimal) > 4.0


class TestLemma2:
    """|Q - F Q| <= |Q - B Q| + discount (1 - alpha) (1 - beta) |Q|, at every state and action and for every Q >= 0."""

    @given(seeds)
    @few
    def test_residuals(self, seed: int) -> None:
        process = random_process(seed, safe=False)
        config = process.config
        q = np.abs(two_values(seed)[0])
        penalised, plain = np.abs(q - process.penalised(q)), np.abs(q - process.bellman(q))
        extra = config.discount * (1 - config.alpha) * process.penalty_share(q) * norm(q)
        assert (penalised <= plain + extra + SLACK).all()


class TestCorollary1:
    """|Q_k - Q*| <= (error of the step) + xi + discount E max |Q_{k-1} - Q*|, xi from Lemma 1 for Q_{k-1}."""

    @given(seeds, st.sampled_from([0.0, 0.3]))
    @few
    def test_every_step_of_value_iteration(self, seed: int, mistake: float) -> None:
        process = random_process(seed, safe=False)
        config, random = process.config, np.random.default_rng(seed)
        optimal = fixed_point(process.bellman, config.discount)
        before = random.uniform(0, 10, (STATES, ACTIONS))
        for _ in range(20):
            after = np.maximum(process.penalised(before) + mistake * random.normal(size=before.shape), 0)
            own = np.abs(after - process.penalised(before))
            xi = config.discount * (1 - config.alpha) * process.penalty_share(before) * norm(before)
            carried = config.discount * process.transitions @ np.abs(before - optimal).max(axis=1)
            assert (np.abs(after - optimal) <= own + xi + carried + SLACK).all()
            before = after

    def test_with_the_printed_residual_it_needs_exact_steps(self) -> None:
        """The paper defines the first term as |Q_k - B Q_k| but proves it for |Q_k - F Q_{k-1}|; an inexact step tells them apart."""
        process, optimal = single_state([10.0, 5.0], [1.0, 1.0], 5.0, alpha=0.99, beta=0.9)
        after = optimal + 3.0  # Q_{k-1} = Q*, and a step that errs by 3
        xi = 0.9 * 0.01 * 0.1 * norm(optimal)
        assert norm(after - optimal) > norm(after - process.bellman(after)) + xi + 2.0
        assert norm(after - optimal) <= norm(after - process.penalised(optimal)) + xi + SLACK


class TestPropositionF1:
    """Off U a positive Q keeps more of itself than on U (the gap grows), and less than all of it."""

    @given(st.floats(0.1, 100.0), st.floats(1.01, 50.0), st.floats(0.05, 0.95), st.floats(0.3, 0.95))
    @few
    def test_gap(self, q: float, ratio: float, alpha: float, beta: float) -> None:
        h = ratio / beta  # 1/H < beta
        for penalty in ("paper", "signed"):
            process, value = single_state([q, q], [h, h / 2], 0.75 * h, alpha=alpha, beta=beta, penalty=penalty)
            risky, safe = (alpha * value + (1 - alpha) * process.lower(value))[0]
            assert risky < safe < q

    def test_below_zero_the_printed_gap_closes_and_the_signed_one_grows(self) -> None:
        process, value = single_state([-10.0, -10.0], [4.0, 1.0], 2.0, alpha=0.5, beta=0.9)
        risky, safe = process.lower(value)[0]
        assert risky > safe > -10.0  # prefers the risky action
        config = qdq.Config(alpha=0.99, beta=0.9, discount=0.9, penalty="signed")
        risky, safe = replace(process, config=config).lower(value)[0]
        assert risky < safe < -10.0
