"""How far off H is where the truth is known: random conditional distributions of Q, learned like any dataset.

Mean, logarithm of the standard deviation and weight of the mixture are random networks of one hidden tanh layer with a
tanh at the end. Samples are the steps of an episode each two, with Q as the reward and windows of one step, so that what
is measured is the whole stage as it runs on a log: normalisation, learner, calibration and quadrature. H is compared
with the true standard deviation at fresh inputs:

    relative error = RMS of (H - std) / RMS of std        rank = Spearman's correlation of H and std
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdq import calibration
from qdq.config import Config, replace
from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.prepare import prepare
from qdq.errors import UsageError
from qdq.evaluation.measures import COVERAGES, spearman
from qdq.training import stages
from qdq.training.display import Display
from qdq.uncertainty import mean_and_std

SHAPES = ("unimodal", "bimodal")
LARGEST_ERROR, SMALLEST_RANK = 0.2, 0.97  # what we want
LOWEST_STD, STD_RANGE = 0.2, 5.0  # of each peak
MEAN_RANGE = 0.5  # the mean lies within plus and minus this
SEPARATION = 1.5  # of a peak from the centre, in standard deviations of the peak
FEWEST_SAMPLES = 100
FRESH = 8192  # inputs at which H is compared
BLOCK = 1024


@dataclass(frozen=True)
class Network:
    """A random function of the inputs with values in (-1, 1)."""

    inner: np.ndarray
    outer: np.ndarray

    @classmethod
    def draw(cls, random: np.random.Generator, inputs: int, units: int) -> "Network":
        """Preactivations of variance near 1 in the hidden layer, and near 2 at the end."""
        inner = random.normal(size=(inputs, units)) / np.sqrt(inputs)
        return cls(inner, 2.0 * random.normal(size=units) / np.sqrt(units))

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(np.tanh(x @ self.inner) @ self.outer)


@dataclass(frozen=True)
class Truth:
    """Q given the inputs: normal, or two normal peaks beside each other."""

    mean: Network
    log_std: Network
    weight: Network
    observation_size: int
    action_size: int
    bimodal: bool

    @classmethod
    def draw(cls, random: np.random.Generator, dimensions: int, units: int, bimodal: bool) -> "Truth":
        """Random networks of so many inputs, of which about a quarter are actions (3 of 14, 6 of 23)."""
        actions = max(1, round(0.24 * dimensions))
        networks = [Network.draw(random, dimensions, units) for _ in range(3)]
        return cls(networks[0], networks[1], networks[2], dimensions - actions, actions, bimodal)

    def inputs(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Normal observations and uniform actions."""
        actions = random.uniform(-1.0, 1.0, (count, self.action_size))
        return np.concatenate([random.normal(size=(count, self.observation_size)), actions], axis=1)

    def _parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Centre, standard deviation of a peak, distance of the peaks from the centre, and weight of the upper one."""
        spread = LOWEST_STD * STD_RANGE ** (0.5 + 0.5 * self.log_std(x))
        distance = SEPARATION * spread if self.bimodal else np.zeros_like(spread)
        return MEAN_RANGE * self.mean(x), spread, distance, 0.5 + 0.4 * self.weight(x)

    def sample(self, random: np.random.Generator, x: np.ndarray) -> np.ndarray:
        """One value of Q for each input."""
        centre, spread, distance, weight = self._parts(x)
        side = np.where(random.uniform(size=len(x)) < weight, 1.0, -1.0)
        return centre + side * distance + spread * random.normal(size=len(x))

    def std(self, x: np.ndarray) -> np.ndarray:
        """The true standard deviation: that of a peak, and what the side adds, of variance 4 p (1 - p)."""
        _, spread, distance, weight = self._parts(x)
        return np.sqrt(spread**2 + 4.0 * weight * (1.0 - weight) * distance**2)


def as_dataset(truth: Truth, x: np.ndarray, values: np.ndarray, name: str) -> Dataset:
    """Episodes of two independent steps whose rewards are the values."""
    size = truth.observation_size
    return from_arrays(
        x[:, :size].astype(np.float32),
        x[:, size:].astype(np.float32),
        values.astype(np.float32),
        np.arange(len(x)) % 2 == 1,
        action_low=-np.ones(truth.action_size, np.float32),
        action_high=np.ones(truth.action_size, np.float32),
        metadata=Metadata(name),
    )


def measure(
    seed: int, dimensions: int, bimodal: bool, samples: int, units: int, config: Config, display: Display
) -> dict[str, Any]:
    """Learn one known distribution and compare; what was learned before is found in the cache."""
    for key in ("q_dataset.width", "q_dataset.stride"):
        config = replace(config, key, 1)
    random = np.random.default_rng([seed, dimensions, int(bimodal)])
    truth = Truth.draw(random, dimensions, units, bimodal)
    x = truth.inputs(random, samples)
    shape = SHAPES[bimodal]
    data = as_dataset(truth, x, truth.sample(random, x), f"known-{shape}-{dimensions}-{seed}")
    prepared = prepare(data, config)
    artefact = stages.learn_distribution(prepared, data.sha256, config, display)
    sizes = truth.observation_size, truth.action_size
    distribution = stages.load_distribution(artefact.path / "model.safetensors", config, *sizes, artefact.manifest)
    rule, _ = stages.choose_uncertainty_rule(distribution, prepared, config)

    fresh = truth.inputs(random, FRESH)
    observed, std = truth.sample(random, fresh), truth.std(fresh)
    observations = prepared.observation_normaliser.forward(jnp.asarray(fresh[:, : sizes[0]], jnp.float32))
    actions = jnp.asarray(fresh[:, sizes[0] :], jnp.float32)
    parts = [slice(i, i + BLOCK) for i in range(0, FRESH, BLOCK)]
    learned = np.concatenate(
        [
            np.asarray(mean_and_std(distribution, observations[rows], actions[rows], rule, jax.random.key(0))[1])
            for rows in parts
        ]
    ).astype(np.float64)
    error = float(np.sqrt(np.mean(np.square(learned - std)) / np.mean(np.square(std))))
    rank = spearman(learned, std)
    positions = calibration.positions(distribution, observations, actions, observed)
    return {
        "shape": shape,
        "dimensions": dimensions,
        "seed": seed,
        "relative_error": error,
        "rank": rank,
        "ratio": float(np.mean(learned) / np.mean(std)),
        "coverage": {f"{share:.0%}": calibration.inside(positions, share) for share in COVERAGES},
        "seconds": sum(stage["seconds"] for stage in artefact.manifest["stages"].values()),
        "within": bool(error <= LARGEST_ERROR and rank >= SMALLEST_RANK),
    }


def measure_all(
    seeds: int,
    dimensions: tuple[int, ...],
    samples: int,
    units: int,
    config: Config,
    display: Display,
) -> Iterator[dict[str, Any]]:
    """Every case in turn, each as soon as it is learned."""
    if samples < FEWEST_SAMPLES:
        raise UsageError(f"--samples must be at least {FEWEST_SAMPLES}, but is {samples}.")
    if samples % 2:
        raise UsageError(f"--samples must be even, two for an episode, but is {samples}.")
    if units < 1:
        raise UsageError(f"--units must be at least 1, but is {units}.")
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, but is {seeds}.")
    if not dimensions or min(dimensions) < 2:
        raise UsageError("--dimensions must be at least 2: one of the state and one of the action.")
    for bimodal in (False, True):
        for size in dimensions:
            for seed in range(seeds):
                yield measure(seed, size, bimodal, samples, units, config, display)
