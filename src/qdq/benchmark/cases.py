"""What is measured: the training step of every stage and algorithm, on synthetic data of a given shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from qdq import algorithms, consistency, diffusion, presets, q_distribution, quantile, uncertainty
from qdq.algorithms.problem import Problem
from qdq.config import Config
from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.prepare import Prepared, prepare
from qdq.normalisers import unit_interval
from qdq.training.loop import Step, compile_chunk

EPISODE = 1000


@dataclass(frozen=True)
class Shape:
    """Sizes that decide the cost of a step."""

    observation_size: int = 11
    action_size: int = 3
    transitions: int = 100_000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256, 256)


SHAPES = {"hopper": (11, 3), "halfcheetah": (17, 6), "walker2d": (17, 6), "antmaze": (29, 8)}


@dataclass(frozen=True)
class Case:
    """A cycle of steps with everything it needs."""

    name: str
    cycle: Sequence[Step]
    state: Any
    data: Any
    batch_size: int

    def one_cycle(self, state: Any, data: Any, key: jax.Array) -> Any:
        """The steps of one cycle, as traced to count their matrix products."""
        for step in self.cycle:
            state, _ = step(state, data.sample(key, self.batch_size), key)
        return state

    def compile(self, length: int) -> Callable[..., Any]:
        """A chunk of `length` steps."""
        return compile_chunk(self.cycle, self.batch_size, length)


@cache
def synthetic_dataset(observation_size: int, action_size: int, transitions: int) -> Dataset:
    """Random episodes: the cost of a step does not depend on what the numbers mean."""
    random = np.random.default_rng(0)
    count = max(transitions, 2 * EPISODE)
    return from_arrays(
        random.standard_normal((count, observation_size), np.float32),
        random.uniform(-1.0, 1.0, (count, action_size)).astype(np.float32),
        random.standard_normal(count, np.float32),
        np.arange(count) % EPISODE == EPISODE - 1,
        metadata=Metadata("synthetic"),
    )


def _prepared(shape: Shape, config: Config) -> Prepared:
    return prepare(synthetic_dataset(shape.observation_size, shape.action_size, shape.transitions), config)


def stage_case(name: str, shape: Shape) -> Case:
    """The step of `diffusion`, `consistency` or `quantile`."""
    config, _ = presets.build("qdq", "paper/hopper-medium")
    prepared = _prepared(shape, config)
    network = q_distribution.build_network(
        q_distribution.Config(hidden=shape.hidden), shape.observation_size, shape.action_size, jax.random.key(0)
    )
    module = {"diffusion": diffusion, "consistency": consistency, "quantile": quantile}[name]
    settings = getattr(config, name)
    return Case(name, module.steps(settings), module.init(settings, network), prepared.window_data, shape.batch_size)


def algorithm_case(
    name: str, shape: Shape, *, rule: uncertainty.Config | None = None, label: str = "", **settings: Any
) -> Case:
    """The step of an algorithm with networks of the shape's size; QDQ with the given rule for H."""
    overrides = tuple(f"algorithm.{key}={value}" for key, value in settings.items())
    config, _ = presets.build(name, "paper/hopper-medium", None, overrides)
    prepared = _prepared(shape, config)
    distribution = None
    if name in algorithms.USES_Q_DISTRIBUTION and rule is not None:
        network = q_distribution.build_network(
            q_distribution.Config(hidden=shape.hidden), shape.observation_size, shape.action_size, jax.random.key(1)
        )
        distribution = q_distribution.QDistribution(network, unit_interval(-1.0, 1.0))
    problem = Problem(
        shape.observation_size,
        shape.action_size,
        config.training.steps,
        float(prepared.dataset.rewards.min()),
        float(prepared.windows.values.std()),
        distribution=distribution,
        uncertainty=rule or config.uncertainty,
    )
    module = algorithms.get(name)
    state = module.init(config.algorithm, problem, jax.random.key(2))
    cycle = module.steps(config.algorithm, problem)
    return Case(label or name, cycle, state, prepared.transitions, shape.batch_size)


def qdq_case(shape: Shape, nodes: int = 8, samples: int = 0, label: str = "") -> Case:
    """QDQ's step with quadrature, with Monte Carlo, or (nodes = samples = 0) without H."""
    hidden: dict[str, Any] = {"policy_hidden": list(shape.hidden), "critic_hidden": list(shape.hidden)}
    if samples:
        rule = uncertainty.Config("monte_carlo", samples=samples)
        return algorithm_case("qdq", shape, rule=rule, label=label or f"qdq, {samples} samples", **hidden)
    if nodes:
        rule = uncertainty.Config("gauss_hermite", nodes=nodes)
        return algorithm_case("qdq", shape, rule=rule, label=label or f"qdq, {nodes} nodes", penalty="signed", **hidden)
    return algorithm_case("qdq", shape, label=label or "qdq without H", penalty="none", **hidden)


def standard_cases(shape: Shape) -> list[Case]:
    """Every stage and algorithm at the paper's sizes; baselines at those of their own papers."""
    return [
        *(stage_case(name, shape) for name in ("diffusion", "consistency", "quantile")),
        qdq_case(shape, nodes=0),
        qdq_case(shape, nodes=8),
        qdq_case(shape, samples=50),
        *(algorithm_case(name, shape) for name in ("td3-bc", "iql", "bc")),
    ]
