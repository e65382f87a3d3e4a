"""Learn a Q distribution whose truth is known, and plot the two on top of each other.

Run it with `python examples/known_distribution.py`; it writes known_distribution.png. Q has two peaks (success and
failure), and the chance of success depends on the action.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from qdq import quantile
from qdq.diffusion import QBatch
from qdq.networks import ConditionalScalar
from qdq.normalisers import unit_interval
from qdq.q_distribution import QDistribution
from qdq.training.loop import train


class Known(eqx.Module):
    """Draws (state, action, Q): Q is 0.5 with probability sigmoid(3 a), else -0.5, plus noise."""

    def sample(self, key: jax.Array, batch_size: int) -> QBatch:
        keys = jax.random.split(key, 4)
        states = jax.random.uniform(keys[0], (batch_size, 1), minval=-1.0)
        actions = jax.random.uniform(keys[1], (batch_size, 1), minval=-1.0)
        success = jax.random.uniform(keys[2], (batch_size,)) < jax.nn.sigmoid(3.0 * actions[:, 0])
        values = jnp.where(success, 0.5, -0.5) + 0.1 * jax.random.normal(keys[3], (batch_size,))
        return QBatch(states, actions, values)


def main() -> None:
    """Train for a minute and draw three conditional distributions."""
    config = quantile.Config(steps=4_000)
    network = ConditionalScalar(1, 1, (128, 128), jax.random.key(0))
    state = quantile.init(config, network)
    state = train(quantile.steps(config), state, Known(), key=jax.random.key(1), batch_size=256, stop=4_000, chunk=500)
    learned = QDistribution(state.network, unit_interval(-1.0, 1.0))

    figure = Figure(figsize=(10, 3), layout="constrained")
    grid = np.linspace(-1, 1, 200)
    for place, action in enumerate((-0.8, 0.0, 0.8)):
        samples = learned.sample(jnp.zeros((1, 1)), jnp.full((1, 1), action), jax.random.key(2), 20_000)
        share = 1.0 / (1.0 + np.exp(-3.0 * action))
        peaks = [np.exp(-0.5 * ((grid - centre) / 0.1) ** 2) / (0.1 * np.sqrt(2 * np.pi)) for centre in (0.5, -0.5)]
        axes = figure.add_subplot(1, 3, place + 1)
        axes.hist(np.asarray(samples).ravel(), 80, range=(-1, 1), density=True, color="#9db7f5", label="learned")
        axes.plot(grid, share * peaks[0] + (1 - share) * peaks[1], color="#dc6803", label="truth")
        axes.set_title(f"Q given action {action}")
        axes.legend(frameon=False)
    figure.savefig("known_distribution.png", dpi=150)
    print("known_distribution.png")


if __name__ == "__main__":
    main()
