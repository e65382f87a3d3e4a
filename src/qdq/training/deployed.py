"""A policy as it is used: with the normalisers it was trained with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.data.prepare import Prepared
from qdq.normalisers import Affine


class DeployedPolicy(eqx.Module):
    """A policy with the normalisers it was trained with: raw observations in, actions in their own units out."""

    network: Any
    observation_normaliser: Affine
    action_scaler: Affine

    def __call__(self, observations: Any) -> jax.Array:
        return _act(jax.tree.structure(self), jax.tree.leaves(self), observations)

    def actor(self) -> Callable[[np.ndarray], np.ndarray]:
        """The policy as a function on NumPy arrays, for loops in which every microsecond counts."""
        leaves, structure = jax.tree.flatten(self)
        return lambda observations: np.asarray(_act(structure, leaves, observations))


def deploy(network: Any, prepared: Prepared) -> DeployedPolicy:
    """The policy `network`, trained on `prepared` data, ready for use."""
    return DeployedPolicy(network, prepared.observation_normaliser, prepared.action_scaler)


@partial(jax.jit, static_argnums=0)
def _act(structure: Any, leaves: list[jax.Array], observations: Any) -> jax.Array:
    """Compiled once for all weights of one structure; a flat list of arguments is passed on fastest."""
    policy: DeployedPolicy = jax.tree.unflatten(structure, leaves)
    normalised = policy.observation_normaliser.forward(observations)
    return policy.action_scaler.inverse(jnp.clip(policy.network(normalised), -1.0, 1.0))
