"""Dense ReLU networks in plain NumPy: a policy of this size acts faster on the host than through a device.

Nothing here imports JAX, so that worker processes which only roll out policies start quickly and stay small.
"""

from typing import Any

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]


class NumpyMLP:
    """A ReLU network evaluated on the host."""

    def __init__(self, layers: Layers):
        self.layers = [(np.asarray(w, np.float32), np.asarray(b, np.float32)) for w, b in layers]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self.layers[:-1]:
            x = x @ weight
            x += bias
            np.maximum(x, 0.0, out=x)
        weight, bias = self.layers[-1]
        return x @ weight + bias


def host_layers(network: Any) -> Layers:
    """The weights of a dense network, copied to the host."""
    return [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.layers]
