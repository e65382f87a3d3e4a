"""Timing on noisy machines: everything interleaved in one process, processor time rather than wall time, medians."""

import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from qdq.benchmark.cases import Case
from qdq.benchmark.products import Bare, Products, gigaflop, products_of

CHUNK = 40  # steps per call while timing
SECONDS_PER_REPEAT = 0.5


@dataclass
class Running:
    """A compiled case with its state between repeats."""

    case: Case
    chunk: Callable[..., Any]
    products: Products  # of one cycle
    bare: Bare
    compile_seconds: float
    state: Any
    position: int = 0

    def advance(self) -> float:
        """One chunk of steps; returns the processor seconds it took."""
        began = time.process_time()
        self.state, metrics = self.chunk(self.state, self.case.data, jax.random.key(0), jnp.asarray(self.position))
        jax.block_until_ready(metrics)
        self.position += CHUNK
        return time.process_time() - began


def case_products(case: Case) -> Products:
    """The matrix products of one cycle of steps."""
    return products_of(case.one_cycle, case.state, case.data, jax.random.key(0))


def start_case(case: Case) -> Running:
    """Compile a case and run its first chunk."""
    products = case_products(case)
    chunk = case.compile(CHUNK)
    # The chunk donates its state, so the case keeps its own copy.
    state = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True) if isinstance(leaf, jax.Array) else leaf, case.state)
    began = time.monotonic()
    running = Running(case, chunk, products, Bare(products), 0.0, state)
    running.advance()
    running.compile_seconds = time.monotonic() - began
    return running


def measure(cases: Sequence[Case], repeats: int = 5, report: Callable[[str], None] = lambda line: None) -> list[dict]:
    """One row per case: medians over interleaved repeats, and the utilisation from the same repeats."""
    running = []
    for case in cases:
        running.append(start_case(case))
        report(f"{case.name}: compiled in {running[-1].compile_seconds:.1f} s")
    samples: list[list[tuple[float, float, float, float]]] = [[] for _ in running]
    for repeat in range(repeats):
        for item, collected in zip(running, samples, strict=True):
            collected.append(_sample(item))
        report(f"repeat {repeat + 1} of {repeats}")
    return [_row(item, collected) for item, collected in zip(running, samples, strict=True)]


def _sample(item: Running) -> tuple[float, float, float, float]:
    """Wall and processor seconds per step, and those of its bare products by NumPy and JAX."""
    steps, wall, processor = 0, 0.0, 0.0
    while wall < SECONDS_PER_REPEAT:
        began = time.monotonic()
        processor += item.advance()
        wall, steps = wall + time.monotonic() - began, steps + CHUNK
    passes, numpy_seconds, jax_seconds = 0, 0.0, 0.0
    while numpy_seconds + jax_seconds < SECONDS_PER_REPEAT:
        by_numpy, by_jax = item.bare.seconds()
        numpy_seconds, jax_seconds, passes = numpy_seconds + by_numpy, jax_seconds + by_jax, passes + 1
    cycle = passes * len(item.case.cycle)
    return wall / steps, processor / steps, numpy_seconds / cycle, jax_seconds / cycle


def _row(item: Running, samples: list[tuple[float, float, float, float]]) -> dict[str, Any]:
    wall, processor, by_numpy, by_jax = (statistics.median(column) for column in zip(*samples, strict=True))
    operations = gigaflop(item.products) / len(item.case.cycle)
    ratios = [min(numpy_, jax_) / used for _, used, numpy_, jax_ in samples]
    return {
        "name": item.case.name,
        "steps_per_second": 1.0 / wall,
        "cpu_milliseconds_per_step": 1e3 * processor,
        "gigaflop_per_step": operations,
        "products_milliseconds": 1e3 * min(by_numpy, by_jax),
        "products_gigaflop_per_second": operations / min(by_numpy, by_jax),
        "products_by": "numpy" if by_numpy < by_jax else "jax",
        "utilisation": statistics.median(ratios),
        "utilisation_range": [min(ratios), max(ratios)],
        "compile_seconds": item.compile_seconds,
    }


def load() -> dict[str, Any]:
    """How busy the machine is, and how much memory this process has needed at most."""
    return {
        "load_average": list(os.getloadavg()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
