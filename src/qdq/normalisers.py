"""Normalisers: values with a forward and an inverse map, fitted once and saved with the model that was trained on them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from qdq.data.blocks import blocks_of


class Affine(eqx.Module):
    """x -> (x - shift) / scale, and back."""

    shift: Array
    scale: Array

    def forward(self, x: Array) -> Array:
        return (x - self.shift) / self.scale

    def inverse(self, y: Array) -> Array:
        return y * self.scale + self.shift


def identity(size: int) -> Affine:
    """The map that changes nothing."""
    return Affine(jnp.zeros(size), jnp.ones(size))


def standard(x: np.ndarray) -> Affine:
    """Zero mean and unit standard deviation per column; a constant column is only centred."""
    mean = sum(block.sum(axis=0, dtype=np.float64) for block in blocks_of(x)) / len(x)
    squares = sum(np.square(block - mean).sum(axis=0) for block in blocks_of(x))
    scale = np.sqrt(squares / len(x))
    scale = np.where(scale < 1e-6, 1.0, scale)
    return Affine(jnp.asarray(mean, jnp.float32), jnp.asarray(scale, jnp.float32))


def unit_interval(low: np.ndarray | float, high: np.ndarray | float) -> Affine:
    """[low, high] onto [-1, 1]."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    return Affine(jnp.asarray((low + high) / 2, jnp.float32), jnp.asarray((high - low) / 2, jnp.float32))
