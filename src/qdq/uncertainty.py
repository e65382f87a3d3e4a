"""Stage 4, uncertainty (Eq. 6): H(s, a) is the standard deviation of the learned Q distribution at (s, a).

The paper estimates it from 50 samples. The prior is one-dimensional and f is smooth, so the same integral is a
Gaussian quadrature: 8 nodes are exact to a fraction of a per cent. Where f is a steep step (success or failure) they
are not; `choose_rule` finds out once per model and falls back to 64 equal-probability nodes.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import ndtri

from qdq.q_distribution import QDistribution
from qdq.settings import PAPER_TABLE_3, setting

LARGEST_QUADRATURE = 8
FALLBACK_NODES = 64


@dataclass(frozen=True)
class Config:
    """How the moments of the Q distribution are computed."""

    rule: Literal["gauss_hermite", "equal_probability", "monte_carlo"] = setting(
        "gauss_hermite", "quadrature, equal-probability nodes, or random samples as in the paper"
    )
    nodes: int = setting(8, "evaluations per state and action of the two deterministic rules")
    samples: int = setting(50, "samples per state and action of monte_carlo", PAPER_TABLE_3)
    agreement: float = setting(0.02, "largest change of H by twice the quadrature nodes; beyond it more nodes are used")


def nodes_and_weights(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """Standard-normal nodes z and weights that sum to one."""
    if config.rule == "gauss_hermite":
        z, weights = np.polynomial.hermite_e.hermegauss(config.nodes)
    elif config.rule == "equal_probability":
        z = ndtri((np.arange(config.nodes) + 0.5) / config.nodes)
        weights = np.ones(config.nodes)
    else:
        raise ValueError("monte_carlo draws its nodes anew in every step")
    return z.astype(np.float32), (weights / weights.sum()).astype(np.float32)


@eqx.filter_jit
def mean_and_std(
    distribution: QDistribution, observations: Array, actions: Array, config: Config, key: Array | None = None
) -> tuple[Array, Array]:
    """Mean and standard deviation (H) of Q at each (s, a), in reward units."""
    if config.rule == "monte_carlo":
        assert key is not None, "monte_carlo needs a random key"
        values = distribution.sample(observations, actions, key, config.samples)
        return jnp.mean(values, axis=0), jnp.std(values, axis=0, ddof=1)
    z, weights = nodes_and_weights(config)
    z, weights = (jnp.asarray(v).reshape(-1, *[1] * (observations.ndim - 1)) for v in (z, weights))
    values = distribution.values(observations, actions, z)
    mean = jnp.sum(weights * values, axis=0)
    variance = jnp.sum(weights * jnp.square(values - mean), axis=0)
    return mean, jnp.sqrt(variance)


def choose_rule(
    distribution: QDistribution, observations: Array, actions: Array, config: Config
) -> tuple[Config, float]:
    """The rule to use for this model, and how far it is from the next finer one (relative RMS of H).

    The number of quadrature nodes is doubled, up to LARGEST_QUADRATURE, until doubling it again changes H by at most
    `agreement`; a distribution too steep for that gets equal-probability nodes.
    """
    if config.rule != "gauss_hermite":
        return config, 0.0

    def spread(rule: Config) -> Array:
        return mean_and_std(distribution, observations, actions, rule)[1]

    coarse = spread(config)
    while True:
        fine = spread(dataclasses.replace(config, nodes=2 * config.nodes))
        gap = float(jnp.sqrt(jnp.mean(jnp.square(coarse - fine)) / jnp.mean(jnp.square(fine))))
        if gap <= config.agreement:
            return config, gap
        if config.nodes >= LARGEST_QUADRATURE:
            return dataclasses.replace(config, rule="equal_probability", nodes=FALLBACK_NODES), gap
        config, coarse = dataclasses.replace(config, nodes=2 * config.nodes), fine


def threshold(uncertainty: Array, beta: float) -> Array:
    """The beta-quantile of H over a batch of actions: the border of the risk set."""
    return jax.lax.stop_gradient(jnp.quantile(uncertainty, beta))
