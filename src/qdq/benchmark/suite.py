"""The whole benchmark: what is measured in which order, and how it is told."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from qdq.benchmark import others
from qdq.benchmark.cases import SHAPES, Shape, algorithm_case, qdq_case, standard_cases
from qdq.benchmark.measure import case_products, load, measure
from qdq.training.compilation import configure_jax
from qdq.training.versions import versions

Report = Callable[[str], None]

NODES = (2, 4, 8, 16, 64)
BATCHES = (64, 256, 1024)
WIDTHS = (64, 256, 1024)
DATASET_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def run(shape_name: str, repeats: int, full: bool, interpreter: Path | None, report: Report) -> dict[str, Any]:
    """Measure everything and return it as plain values."""
    began = time.monotonic()
    configure_jax()
    shape = Shape(*SHAPES[shape_name])
    before = load()
    content: dict[str, Any] = {"shape": {"name": shape_name, **dataclasses.asdict(shape)}, "repeats": repeats}
    content["steps"] = measure(standard_cases(shape), repeats, report)
    content["sampler_over_its_products"] = _sampler_over_its_products(shape, content["steps"])
    content["square_product_gigaflop_per_second"] = others.square_product_rate()
    report("evaluation")
    content["evaluation"] = others.evaluation()
    content["q_dataset"] = others.truncated_returns()
    report("two processes")
    content["processes"] = _processes(shape, (1, 2))
    if full:
        content["scaling"] = _scaling(shape, max(2, repeats - 2), report)
    if interpreter is not None:
        from qdq.benchmark.peer import against_d3rlpy

        report("d3rlpy")
        content["peer"] = against_d3rlpy(interpreter, shape, repeats)
    content |= {
        "load_before": before,
        "load_after": load(),
        "seconds": time.monotonic() - began,
        "versions": versions(),
    }
    return content


def _sampler_over_its_products(shape: Shape, steps: list[dict[str, Any]]) -> float:
    """What eight nodes of H add to a step, over the time of the matrix products that they add."""
    with_it, without = (qdq_case(shape, nodes=nodes) for nodes in (8, 0))
    seconds = others.seconds_of(case_products(with_it) - case_products(without)) / len(with_it.cycle)
    taken = {row["name"]: row["cpu_milliseconds_per_step"] for row in steps}
    return (taken[with_it.name] - taken[without.name]) / (1e3 * seconds)


def _processes(shape: Shape, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Throughput of TD3+BC with one seed per process."""
    build = partial(algorithm_case, "td3-bc", shape)
    return [{"processes": count, "steps_per_second": sum(others.processes(build, count))} for count in counts]


def _scaling(shape: Shape, repeats: int, report: Report) -> dict[str, list[dict[str, Any]]]:
    """The cost of a step against one size at a time."""

    def curve(values: tuple[int, ...], build: Callable[[int], Any]) -> list[dict[str, Any]]:
        rows = measure([build(value) for value in values], repeats, report)
        return [{"value": value} | row for value, row in zip(values, rows, strict=True)]

    change = partial(dataclasses.replace, shape)
    cores = os.cpu_count() or 1
    counts = tuple(count for count in (1, 2, 4, 8, 16, 32) if count <= 2 * cores)
    return {
        "quadrature nodes": curve(NODES, lambda nodes: qdq_case(shape, nodes=nodes)),
        "batch size": curve(BATCHES, lambda size: qdq_case(change(batch_size=size))),
        "width": curve(WIDTHS, lambda width: qdq_case(change(hidden=(width,) * len(shape.hidden)))),
        "dataset size": curve(DATASET_SIZES, lambda size: algorithm_case("td3-bc", change(transitions=size))),
        "processes": [
            {"value": row["processes"], "steps_per_second": row["steps_per_second"]}
            for row in _processes(shape, counts)
        ],
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """The steps as a table for the terminal."""
    shown = Table(title="One core; utilisation is the time of the step's own matrix products over the step's time")
    shown.add_column("step")
    for name in ("steps/s", "CPU ms", "GFLOP", "products GFLOP/s", "utilisation", "compile s"):
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(
            row["name"],
            f"{row['steps_per_second']:.1f}",
            f"{row['cpu_milliseconds_per_step']:.2f}",
            f"{row['gigaflop_per_step']:.3f}",
            f"{row['products_gigaflop_per_second']:.0f}",
            f"{row['utilisation']:.2f}",
            f"{row['compile_seconds']:.1f}",
        )
    return shown


def sentences(content: dict[str, Any]) -> Iterator[str]:
    """Everything else, one line each."""
    yield f"Eight nodes of H add {content['sampler_over_its_products']:.2f} times the time of their own matrix products."
    yield f"A 256 x 256 x 256 product runs at {content['square_product_gigaflop_per_second']:.0f} GFLOP per CPU-second."
    played = content["evaluation"]
    yield (
        f"Evaluation: {played['evaluation_steps_per_cpu_second']:,.0f} environment steps per CPU-second, "
        f"{played['share_of_bare_rate']:.0%} of the bare environment ({played['environment']}, {played['episodes']} episodes)."
    )
    one, two = (row["steps_per_second"] for row in content["processes"][:2])
    yield f"A second seed in a second process: {two / one:.2f} times the throughput."
    windows = content["q_dataset"]
    yield f"Q dataset of {windows['transitions']:,} transitions: {windows['cpu_seconds']:.2f} CPU-seconds."
    for row in content.get("peer", {}).get("algorithms", []):
        yield f"d3rlpy's {row['name']} needs {row['ratio']:.1f} times our CPU time per step."
    memory, busy = content["load_after"]["peak_memory_bytes"], content["load_before"]["load_average"][0]
    yield f"Peak memory {memory / 2**30:.2f} GiB; load before the start {busy:.1f}; took {content['seconds']:.0f} s."
