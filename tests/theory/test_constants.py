"""The constants of docs/theory.md: measured on 50 random processes against what the paper promises.

python -m pytest tests/theory/test_constants.py -s
"""

import jax.numpy as jnp
import numpy as np

from qdq.q_dataset import truncated_returns
from tests.theory.tabular import ACTIONS, STATES, fixed_point, norm, random_process
from tests.theory.test_prior import COUNTS, at
from tests.theory.test_truncation import recorded, true_returns

PROCESSES = 50


def report(name: str, shares: list[float]) -> None:
    """Measured divided by bound: at most one, and not far below everywhere, or the bound says nothing."""
    worst, typical = max(shares), float(np.median(shares))
    print(f"\n{name}: measured / bound at most {worst:.3f}, median {typical:.3f}", end="")
    assert worst <= 1.0 + 1e-3
    assert worst > 0.2


def test_theorem_1() -> None:
    shares = []
    for width in (50, 100, 200):
        rewards = np.random.default_rng(0).uniform(0.0, 1.0, 4000).astype(np.float32)
        truncated = truncated_returns(recorded(rewards), width, 0.99)[0][:1000]
        error, bound = norm(truncated - true_returns(rewards, 0.99)[:1000]), 0.99**width / 0.01
        print(f"\nTheorem 1, T = {width}: largest error {error:.2f}, bound {bound:.2f}", end="")
        shares.append(error / bound)
    report("Theorem 1", shares)


def test_theorem_2() -> None:
    for count in COUNTS:
        prior, by_prior, by_time, by_action, slope = at(count)
        largest = float(jnp.max(jnp.abs(by_prior)))
        bound = 2 * float(slope) ** 2 / (count - 1) * float(jnp.max(prior) - jnp.min(prior))
        time, action = abs(float(by_time)), float(jnp.max(jnp.abs(by_action)))
        numbers = f"one prior sample {largest:.3g} (bound {bound:.3g}), T {time:.3g}, action {action:.3g}"
        print(f"\nTheorem 2, n = {count}: {numbers}", end="")
        assert largest <= 1.01 * bound


def test_theorems_3_and_4_and_lemmas() -> None:
    names = ("Theorem 3", "Lemma 1", "Theorem 4", "Lemma 2", "Corollary 1")
    shares: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(PROCESSES):
        process = random_process(seed)
        config, random = process.config, np.random.default_rng(seed)
        first, second = random.normal(size=(2, STATES, ACTIONS))
        moved = norm(process.penalised(first) - process.penalised(second))
        shares["Theorem 3"].append(moved / (process.factor * config.discount * norm(first - second)))

        optimal = fixed_point(process.bellman, config.discount)
        learned = fixed_point(process.penalised, config.discount)
        step = config.discount * (1 - config.alpha) * (1 - config.beta) * norm(optimal)
        shares["Lemma 1"].append(norm(process.penalised(optimal) - optimal) / step)
        bound = step / (1 - process.factor * config.discount)
        shares["Theorem 4"].append(norm(learned - optimal) / bound)

        q = random.uniform(0, 10, (STATES, ACTIONS))
        extra = config.discount * (1 - config.alpha) * process.penalty_share(q) * norm(q)
        more = np.abs(q - process.penalised(q)) - np.abs(q - process.bellman(q))
        shares["Lemma 2"].append(float(more.max()) / extra)
        carried = config.discount * process.transitions @ np.abs(q - optimal).max(axis=1)
        shares["Corollary 1"].append(float((np.abs(process.penalised(q) - optimal) / (extra + carried)).max()))
    for name, values in shares.items():
        report(name, values)


def test_how_rare_the_unlikely_event_is() -> None:
    """eta is not small by itself: with risky actions drawn at random, a best action lies in U in most processes."""
    risky = [seed for seed in range(PROCESSES) if not _safe(seed)]
    share = len(risky) / PROCESSES
    print(f"\nbest action of some state in U, where H is drawn at random: {share:.0%} of processes", end="")
    assert 0.5 < share < 1.0


def _safe(seed: int) -> bool:
    process = random_process(seed, safe=False)
    return process.greedy_is_safe(fixed_point(process.bellman, process.config.discount))
