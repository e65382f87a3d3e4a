"""Small decision processes whose optimal Q is known, and the two Bellman operators of the paper on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from qdq.algorithms import qdq
from qdq.uncertainty import threshold

STATES, ACTIONS = 6, 4
SLACK = 1e-4  # the product computes in float32; values here are of order 10

Operator = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Process:
    """Rewards and transition probabilities of a decision process, with H of every state and action."""

    rewards: np.ndarray  # (states, actions)
    transitions: np.ndarray  # (states, actions, next states)
    uncertainty: np.ndarray  # H, (states, actions)
    border: float  # H_beta: the risk set U is where H exceeds it
    config: qdq.Config

    @property
    def factor(self) -> float:
        """c = alpha + (1 - alpha) beta of Theorem 3."""
        return self.config.alpha + (1 - self.config.alpha) * self.config.beta

    @property
    def risky(self) -> np.ndarray:
        """U."""
        return self.uncertainty > self.border

    def bellman(self, q: np.ndarray) -> np.ndarray:
        """B Q, the optimal Bellman operator."""
        return self.rewards + self.config.discount * self.transitions @ q.max(axis=1)

    def penalised(self, q: np.ndarray) -> np.ndarray:
        """F Q, the operator of Theorem 3, with the Q_L that QDQ trains with."""
        mixed = self.config.alpha * q + (1 - self.config.alpha) * self.lower(q)
        return self.rewards + self.config.discount * self.transitions @ mixed.max(axis=1)

    def lower(self, q: np.ndarray) -> np.ndarray:
        """Q_L of Eq. 8."""
        lower, _ = qdq.pessimistic_value(
            jnp.asarray(q, jnp.float32),
            jnp.asarray(self.uncertainty, jnp.float32),
            jnp.asarray(self.border, jnp.float32),
            self.config,
        )
        return np.asarray(lower, np.float64)

    def greedy_is_safe(self, q: np.ndarray) -> bool:
        """The event of probability 1 - eta: no action that is best at its state lies in U."""
        return not self.risky[np.arange(len(q)), q.argmax(axis=1)].any()

    def penalty_share(self, q: np.ndarray) -> float:
        """1 - beta in that event, otherwise 1 - 1 / (largest H)."""
        return 1 - self.config.beta if self.greedy_is_safe(q) else 1 - 1 / float(self.uncertainty.max())


def fixed_point(operator: Operator, discount: float) -> np.ndarray:
    """Where an operator ends that contracts by `discount`."""
    q = np.zeros((STATES, ACTIONS))
    for _ in range(int(np.log(1e-6) / np.log(discount))):
        q = operator(q)
    return q


def norm(q: np.ndarray) -> float:
    """The largest absolute value."""
    return float(np.abs(q).max())


def random_process(
    seed: int,
    *,
    lowest_reward: float = 0.0,
    highest_reward: float = 1.0,
    safe: bool = True,
    small_enough: bool = True,
    penalty: qdq.Penalty = "paper",
) -> Process:
    """A process that meets the assumptions of Theorem 4, or not.

    `safe` keeps the best actions out of U, `small_enough` scales H so that 1/H < beta on U, and rewards from zero on make
    the optimal Q positive.
    """
    random = np.random.default_rng(seed)
    alpha, beta, discount = random.uniform(0.05, 0.95), random.uniform(0.3, 0.95), random.uniform(0.5, 0.9)
    process = Process(
        random.uniform(lowest_reward, highest_reward, (STATES, ACTIONS)),
        random.dirichlet(np.full(STATES, 0.5), (STATES, ACTIONS)),
        np.exp(random.normal(size=(STATES, ACTIONS))),
        0.0,
        qdq.Config(alpha=alpha, beta=beta, discount=discount, penalty=penalty),
    )
    uncertainty = process.uncertainty
    if safe:
        best = fixed_point(process.bellman, discount).argmax(axis=1)
        uncertainty[np.arange(STATES), best] = uncertainty.min()
    border = float(threshold(jnp.asarray(uncertainty), beta))
    if small_enough:
        scale = 1.01 / (beta * float(uncertainty[uncertainty > border].min(initial=np.inf)))
        uncertainty, border = uncertainty * scale, border * scale
    return replace(process, uncertainty=uncertainty, border=border)


def single_state(
    q: list[float],
    uncertainty: list[float],
    border: float,
    *,
    alpha: float,
    beta: float,
    penalty: qdq.Penalty = "paper",
) -> tuple[Process, np.ndarray]:
    """A state that leads to itself and whose optimal Q is the given one (discount 0.9)."""
    optimal = np.array([q])
    rewards = optimal - 0.9 * optimal.max()
    config = qdq.Config(alpha=alpha, beta=beta, discount=0.9, penalty=penalty)
    process = Process(rewards, np.ones((1, len(q), 1)), np.array([uncertainty]), border, config)
    np.testing.assert_allclose(process.bellman(optimal), optimal, atol=1e-9)
    return process, optimal
