"""`qdq bench`: how fast every stage and algorithm is here, as a share of what the processor can do."""

import os
from pathlib import Path
from typing import Literal


def bench(
    shape: Literal["hopper", "halfcheetah", "walker2d", "antmaze"] = "hopper",
    out: Path = Path("bench"),
    repeats: int = 5,
    full: bool = False,
    against: Literal["d3rlpy"] | None = None,
    interpreter: Path | None = None,
) -> None:
    """Time every training step, evaluation and data preparation on one core, beside the bare matrix products.

    Args:
        shape: Task whose observation and action sizes are used.
        out: Folder for bench.json and bench.png.
        repeats: Interleaved repeats; medians are reported.
        full: Also measure scaling over quadrature nodes, batch size, width, dataset size and processes (about 20 minutes).
        against: Also time this library on the same data and network sizes, in turns with ours.
        interpreter: Python that has the library named by --against.
    """
    from qdq.errors import UsageError

    if repeats < 1:
        raise UsageError(f"--repeats must be at least 1, but is {repeats}.")
    if (against is None) != (interpreter is None):
        raise UsageError("Give --against and --interpreter together, such as --against d3rlpy --interpreter PYTHON.")
    use_one_core()  # before JAX and NumPy start their threads

    from rich.console import Console

    from qdq.benchmark import picture, suite

    console = Console(highlight=False)
    content = suite.run(shape, repeats, full, interpreter, lambda line: console.print(f"[dim]{line}[/]"))
    paths = picture.save(content, out)
    console.print(suite.table(content["steps"]))
    for line in suite.sentences(content):
        console.print(line)
    console.print(f"Written: {', '.join(map(str, paths))}", soft_wrap=True)


def use_one_core() -> None:
    """Keep this process on one core: ratios to bare matrix products mean the same on every machine then."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
