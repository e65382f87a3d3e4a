"""A policy as it is used: with the normalisers it was trained with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.data.prepare import Prepared
from qdq.networks import MLP, DeterministicPolicy, GaussianPolicy
from qdq.normalisers import Affine
from qdq.numpy_networks import NumpyMLP, host_layers


class DeployedPolicy(eqx.Module):
    """A policy with the normalisers it was trained with: raw observations in, actions in their own units out."""

    network: Any
    observation_normaliser: Affine
    action_scaler: Affine

    def __call__(self, observations: Any) -> jax.Array:
        return _act(jax.tree.structure(self), jax.tree.leaves(self), observations)

    def actor(self) -> Callable[[np.ndarray], np.ndarray]:
        """The policy as a function on NumPy arrays, for loops in which every microsecond counts."""
        dense = _squashed_network(self.network)
        if dense is None:
            leaves, structure = jax.tree.flatten(self)
            return lambda observations: np.asarray(_act(structure, leaves, observations))
        network = NumpyMLP(host_layers(dense))
        # Plain arrays, because looking up an attribute of a module in every call takes as long as a layer.
        (shift, scale), (action_shift, action_scale) = (
            (np.asarray(affine.shift), np.asarray(affine.scale))
            for affine in (self.observation_normaliser, self.action_scaler)
        )
        return lambda observations: np.tanh(network((observations - shift) / scale)) * action_scale + action_shift


def _squashed_network(policy: Any) -> MLP | None:
    """The ReLU network whose tanh a policy acts by, or None where it acts otherwise."""
    if isinstance(policy, GaussianPolicy):
        dense = policy.mean_network
    elif isinstance(policy, DeterministicPolicy):
        dense = policy.network
    else:
        return None
    return dense if dense.activation == "relu" and not dense.normalise else None


def deploy(network: Any, prepared: Prepared) -> DeployedPolicy:
    """The policy `network`, trained on `prepared` data, ready for use."""
    return DeployedPolicy(network, prepared.observation_normaliser, prepared.action_scaler)


@partial(jax.jit, static_argnums=0)
def _act(structure: Any, leaves: list[jax.Array], observations: Any) -> jax.Array:
    """Compiled once for all weights of one structure; a flat list of arguments is passed on fastest."""
    policy: DeployedPolicy = jax.tree.unflatten(structure, leaves)
    normalised = policy.observation_normaliser.forward(observations)
    return policy.action_scaler.inverse(jnp.clip(policy.network(normalised), -1.0, 1.0))
