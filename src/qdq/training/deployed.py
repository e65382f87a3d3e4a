"""A policy as it is used: with the normalisers it was trained with."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq.behaviour import LOG_STD_MAX, LOG_STD_MIN, HeldPolicy
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
        network = _host_network(self.network)
        if network is None:
            leaves, structure = jax.tree.flatten(self)
            return lambda observations: np.asarray(_act(structure, leaves, observations))
        # Plain arrays, because looking up an attribute of a module in every call takes as long as a layer.
        (shift, scale), (action_shift, action_scale) = (
            (np.asarray(affine.shift), np.asarray(affine.scale))
            for affine in (self.observation_normaliser, self.action_scaler)
        )
        return lambda observations: np.tanh(network((observations - shift) / scale)) * action_scale + action_shift


def _host_network(policy: Any) -> Callable[[np.ndarray], np.ndarray] | None:
    """What a policy acts by the tanh of, in NumPy; None where it acts otherwise."""
    if isinstance(policy, HeldPolicy):
        network, model = _host_dense(policy.network), _host_dense(policy.model.network)
        return None if network is None or model is None else _held(network, model, policy)
    if isinstance(policy, GaussianPolicy):
        return _host_dense(policy.mean_network)
    return _host_dense(policy.network) if isinstance(policy, DeterministicPolicy) else None


def _host_dense(network: MLP) -> NumpyMLP | None:
    return NumpyMLP(host_layers(network)) if network.activation == "relu" and not network.normalise else None


def _held(network: NumpyMLP, model: NumpyMLP, policy: HeldPolicy) -> Callable[[np.ndarray], np.ndarray]:
    """The same as `HeldPolicy`, before its last tanh."""
    count, size, largest = policy.model.components, policy.model.action_size, np.float32(policy.largest)

    def squashed(observations: np.ndarray) -> np.ndarray:
        outputs = model(observations)
        moments = outputs[..., count:].reshape(*outputs.shape[:-1], 2, count, size)
        means, log_stds = moments[..., 0, :, :], np.clip(moments[..., 1, :, :], LOG_STD_MIN, LOG_STD_MAX)
        weights = np.exp(outputs[..., :count] - outputs[..., :count].max(axis=-1, keepdims=True))[..., None]
        weights /= weights.sum(axis=-2, keepdims=True)
        mean = (weights * means).sum(axis=-2)
        variance = (weights * (np.exp(2.0 * log_stds) + np.square(means - mean[..., None, :]))).sum(axis=-2)
        return mean + np.sqrt(variance) * largest * np.tanh(network(observations) / largest)

    return squashed


def deploy(network: Any, prepared: Prepared) -> DeployedPolicy:
    """The policy `network`, trained on `prepared` data, ready for use."""
    return DeployedPolicy(network, prepared.observation_normaliser, prepared.action_scaler)


@partial(jax.jit, static_argnums=0)
def _act(structure: Any, leaves: list[jax.Array], observations: Any) -> jax.Array:
    """Compiled once for all weights of one structure; a flat list of arguments is passed on fastest."""
    policy: DeployedPolicy = jax.tree.unflatten(structure, leaves)
    normalised = policy.observation_normaliser.forward(observations)
    return policy.action_scaler.inverse(jnp.clip(policy.network(normalised), -1.0, 1.0))
