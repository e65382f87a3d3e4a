"""What is measured besides training steps: evaluation, the Q dataset, data collection, and a second process."""

import contextlib
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdq import normalisers, q_dataset
from qdq.benchmark.cases import Case, synthetic_dataset
from qdq.benchmark.products import Bare, Product, Products, gigaflop
from qdq.data.episodes import Metadata
from qdq.evaluation.rollout import Evaluator
from qdq.networks import GaussianPolicy
from qdq.online.acting import make_environment
from qdq.training.deployed import DeployedPolicy

ENVIRONMENT = "HalfCheetah-v4"  # its episodes always last 1000 steps, so both loops below do the same work
STEPS = 400


def square_product_rate(repeats: int = 9) -> float:
    """GFLOP per CPU-second of a 256 x 256 x 256 product, by the faster of NumPy and JAX: the yardstick for other machines."""
    products = Counter({Product(256, 256, 256): 100})
    return gigaflop(products) / seconds_of(products, repeats)


def seconds_of(products: Products, repeats: int = 9) -> float:
    """Processor seconds of a list of products, by the faster of NumPy and JAX."""
    bare = Bare(products)
    return statistics.median(min(bare.seconds()) for _ in range(repeats))


def evaluation(episodes: int = 10, repeats: int = 5) -> dict[str, Any]:
    """The step rate of an evaluation beside that of the bare environments with the same actions, interleaved."""
    evaluator = Evaluator(Metadata("bench", environment_id=ENVIRONMENT), episodes, 17, 6)
    network = GaussianPolicy(17, 6, (256, 256), jax.random.key(0))
    act = DeployedPolicy(network, normalisers.identity(17), normalisers.identity(6)).actor()
    environments = [make_environment(ENVIRONMENT) for _ in range(episodes)]
    recorded: list[np.ndarray] = []

    def record(observations: np.ndarray) -> np.ndarray:
        recorded.append(act(observations))
        return recorded[-1]

    def bare() -> float:
        began = time.process_time()
        for i, environment in enumerate(environments):
            environment.reset(seed=i)
        for actions in recorded:
            for environment, action in zip(environments, actions, strict=True):
                environment.step(action)
        return time.process_time() - began

    def real() -> float:
        began = time.process_time()
        evaluator.play(act, seed=0)
        return time.process_time() - began

    evaluator.play(record, seed=0)  # compiles, and keeps the actions: the cost of a step depends on them
    pairs = [(bare(), real()) for _ in range(repeats)]
    for closable in (evaluator, *environments):
        closable.close()
    steps = 1000 * episodes
    return {
        "environment": ENVIRONMENT,
        "episodes": episodes,
        "bare_steps_per_cpu_second": steps / statistics.median(b for b, _ in pairs),
        "evaluation_steps_per_cpu_second": steps / statistics.median(r for _, r in pairs),
        "share_of_bare_rate": statistics.median(b / r for b, r in pairs),
    }


def truncated_returns(transitions: int = 1_000_000) -> dict[str, Any]:
    """The time of the Q dataset (Eq. 5)."""
    dataset = synthetic_dataset(11, 3, transitions)
    began = time.process_time()
    windows = q_dataset.build(dataset, q_dataset.Config())
    return {"transitions": transitions, "windows": len(windows.index), "cpu_seconds": time.process_time() - began}


def _work(index: int, build: Callable[[], Case], ready: Any, go: Any, results: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):  # where it is allowed and known: a core of its own
        os.sched_setaffinity(0, {index % (os.cpu_count() or 1)})
    case = build()
    chunk = case.compile(STEPS)
    state, _ = chunk(case.state, case.data, jax.random.key(0), jnp.asarray(0))
    jax.block_until_ready(state)
    ready.release()
    go.wait()
    began = time.monotonic()
    state, _ = chunk(state, case.data, jax.random.key(0), jnp.asarray(STEPS))
    jax.block_until_ready(state)
    results.put(STEPS / (time.monotonic() - began))


def processes(build: Callable[[], Case], count: int) -> list[float]:
    """Steps per second of `count` processes that train at the same time, one seed each."""
    context = multiprocessing.get_context("spawn")
    ready, go, results = context.Semaphore(0), context.Event(), context.Queue()
    workers = [context.Process(target=_work, args=(i, build, ready, go, results), daemon=True) for i in range(count)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    go.set()
    rates = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    return rates
