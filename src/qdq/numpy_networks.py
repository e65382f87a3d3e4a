"""Dense ReLU networks in plain NumPy: a policy of this size acts faster on the host than through a device.

Nothing here imports JAX, so that worker processes which only roll out policies start quickly and stay small.
"""

from typing import Any

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]


class NumpyMLP:
    """A ReLU network evaluated on the host, for one observation or for the rows of a few."""

    def __init__(self, layers: Layers):
        self.layers = [(np.asarray(w, np.float32), np.asarray(b, np.float32)) for w, b in layers]
        self._columns: dict[int, list[tuple[np.ndarray, ...]]] = {}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        if x.ndim > 1:
            return self._rows(x)
        for weight, bias in self.layers[:-1]:
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        weight, bias = self.layers[-1]
        return x @ weight + bias

    def _rows(self, x: np.ndarray) -> np.ndarray:
        """Ten rows take two thirds of the time if they are columns and nothing has to be broadcast."""
        count = len(x)
        if count not in self._columns:
            biases = (np.repeat(bias[:, None], count, axis=1) for _, bias in self.layers)
            weights = (np.ascontiguousarray(weight.T) for weight, _ in self.layers)
            self._columns = {count: [(w, b, np.zeros_like(b)) for w, b in zip(weights, biases, strict=True)]}
        x = x.T
        for weight, bias, zero in self._columns[count][:-1]:
            x = weight @ x
            x += bias
            np.maximum(x, zero, out=x)
        weight, bias, _ = self._columns[count][-1]
        return (weight @ x + bias).T


def host_layers(network: Any) -> Layers:
    """The weights of a dense network, copied to the host."""
    return [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]
