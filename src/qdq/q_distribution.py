"""The learned distribution of Q given state and action: one interface over its learners.

`distilled` is the paper's way (diffusion teacher, then consistency student); `quantile` trains the same function
directly; `teacher` asks the teacher itself, in many steps (Appendix A.2). All end as a `QDistribution`: a map from
standard-normal z to a value of Q.
"""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from qdq.consistency import consistency_function
from qdq.diffusion import TIME_MAX, denoise, sample, time_grid
from qdq.networks import ConditionalScalar
from qdq.normalisers import Affine
from qdq.settings import PAPER_TABLE_3, setting

LARGEST_Z = 4.5  # beyond it nothing is trained
TEACHER_STEPS = 18  # of the probability-flow equation, as in EDM; a Gaussian comes out 6 % too wide


@dataclass(frozen=True)
class Config:
    """Settings of the network behind the Q distribution, and which learner trains it."""

    learner: Literal["distilled", "quantile", "teacher"] = setting(
        "distilled", "teacher and student as in the paper, quantiles directly, or the teacher without a student"
    )
    hidden: tuple[int, ...] = setting((256, 256, 256), "units of each hidden layer", PAPER_TABLE_3)
    frequencies: int = setting(8, "Fourier frequencies of the noise level (two features each)", PAPER_TABLE_3)
    fourier_scale: float = setting(16.0, "standard deviation of the Fourier frequencies", PAPER_TABLE_3)
    groups: int = setting(32, "groups of the group normalisation")


class LevelMap(eqx.Module):
    """A monotone map of z, piecewise linear between knots and of slope 1 beyond them: what calibration found."""

    z: Array
    mapped: Array

    def __call__(self, z: Array) -> Array:
        beyond = z - jnp.clip(z, self.z[0], self.z[-1])
        inside = jnp.interp(z, self.z, self.mapped)
        return jnp.where(beyond == 0.0, inside, jnp.clip(inside + beyond, -LARGEST_Z, LARGEST_Z))


class QDistribution(eqx.Module):
    """f(TIME_MAX z | s, a) in reward units; observations and actions are normalised."""

    network: ConditionalScalar
    scaler: Affine  # reward units <-> [-1, 1]
    levels: LevelMap | None = None  # z of a calibrated distribution -> z of the network

    def values(self, observations: Array, actions: Array, z: Array) -> Array:
        """One-step samples of Q for standard-normal z, whose leading axes count the samples."""
        time = jnp.asarray(TIME_MAX)
        if self.levels is not None:
            z = self.levels(z)
        return self.scaler.inverse(consistency_function(self.network, time * z, time, observations, actions))

    @eqx.filter_jit
    def sample(self, observations: Array, actions: Array, key: Array, count: int) -> Array:
        """`count` samples of Q for each row: shape (count, rows)."""
        z = jax.random.normal(key, (count, *observations.shape[:-1]))
        return self.values(observations, actions, z)


class TeacherDistribution(QDistribution):
    """The teacher's own samples: the same map from z to Q, solved in many steps instead of learned as one."""

    def values(self, observations: Array, actions: Array, z: Array) -> Array:
        """Samples of Q for standard-normal z, whose leading axes count the samples."""
        shape = jnp.broadcast_shapes(z.shape, observations.shape[:-1])

        def denoiser(x: Array, t: Array) -> Array:
            return denoise(self.network, x, t, observations, actions)

        return self.scaler.inverse(sample(denoiser, jnp.broadcast_to(TIME_MAX * z, shape), time_grid(TEACHER_STEPS)))


def build_network(config: Config, observation_size: int, action_size: int, key: Array) -> ConditionalScalar:
    """A fresh network for teacher, student or quantile learner."""
    return ConditionalScalar(
        observation_size,
        action_size,
        config.hidden,
        key,
        frequencies=config.frequencies,
        fourier_scale=config.fourier_scale,
        groups=config.groups,
    )
