"""`qdq sweep`: every run of a study, on this machine or a cluster; `qdq ablate`: studies that are known beforehand."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction

if TYPE_CHECKING:
    from qdq.sweep.plan import Job
    from qdq.sweep.records import Records
    from qdq.sweep.study import Study


def sweep(
    study: Annotated[Positional[Path], tyro.conf.arg(metavar="STUDY.toml")],
    /,
    dry_run: bool = False,
    retry: bool = False,
    engine: str | None = None,
    jobs: int | None = None,
    out: Path | None = None,
    address: str | None = None,
) -> None:
    """Run every dataset, algorithm, variant and seed of a study; what is finished is skipped, and a report is the end.

    Args:
        study: TOML file that describes the study; see docs/scale.md.
        dry_run: Print what would be run, and stop.
        retry: Run again what failed before.
        engine: local, ray or slurm (default: the study's).
        jobs: Jobs at the same time (default: the study's, else one per core).
        out: Folder of the study (default: the study's).
        address: Address of a Ray cluster (default: the study's, else auto).
    """
    from qdq.sweep.study import read_study

    carry_out(read_study(study).changed(out, name=engine, jobs=jobs, address=address), dry_run, retry)


def ablate(
    datasets: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATASET...")] = (),
    /,
    *,
    over: Literal["alpha", "beta", "entropy", "uncertainty", "quadrature"],
    preset: str = "fast",
    seeds: int = 3,
    steps: int | None = None,
    only: UseAppendAction[tuple[str, ...]] = (),
    out: Path | None = None,
    jobs: int | None = None,
    engine: str = "local",
    dry_run: bool = False,
    retry: bool = False,
    set: UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Train QDQ in several variants that differ in one thing alone, and compare them; a study like those of `qdq sweep`.

    Args:
        datasets: Names or paths (default: the paper's four tasks, with a PointMaze for its AntMaze).
        over: What is varied: alpha, beta or the entropy weight, in this order the paper's way to tune them; what is
            taken for H, and whether it is needed at all; how H is computed.
        preset: Named set of values; see `qdq presets`.
        seeds: Number of seeds of each variant.
        steps: Training steps (default: the preset's).
        only: Run this variant only; may be repeated.
        out: Folder of the study (default: studies/ablation-OVER).
        jobs: Jobs at the same time (default: one per core).
        engine: local, ray or slurm.
        dry_run: Print what would be run, and stop.
        retry: Run again what failed before.
        set: Change one setting in every variant, such as training.batch_size=128; may be repeated.
    """
    from qdq.errors import UsageError, suggest
    from qdq.sweep import ablations
    from qdq.sweep.study import EngineSettings, Study

    if seeds < 1:
        raise UsageError(f"An ablation needs at least 1 seed, but seeds is {seeds}.")
    variants = ablations.variants(over, preset, steps, set)
    names = [variant.name for variant in variants]
    if unknown := next((name for name in only if name not in names), None):
        raise UsageError(f"The ablation over {over} has no variant {unknown!r}; {suggest(unknown, names)}")
    chosen = tuple(variant for variant in variants if not only or variant.name in only)
    folder = out or Path("studies") / f"ablation-{over}"
    sources = datasets or ablations.DATASETS
    study = Study(f"ablation-{over}", folder, sources, chosen, tuple(range(seeds)), EngineSettings())
    carry_out(study.changed(None, name=engine, jobs=jobs), dry_run, retry)


def carry_out(described: "Study", dry_run: bool, retry: bool) -> None:
    """Plan a study and run what is open of it."""
    from qdq import storage
    from qdq.sweep.plan import load_sources, make_plan
    from qdq.sweep.records import restore

    plan = make_plan(described, load_sources(described))
    if dry_run:
        _print_plan(described, plan, restore(described.out, plan, retry))
        return
    with storage.claim(described.out / "sweep.lock", f"{described.out}"):
        records = restore(described.out, plan, retry)
        worked = _run(described, plan, records)
        _finish(described, plan, records, worked)


def _run(study: "Study", plan: "list[Job]", records: "Records") -> bool:
    """Run what is open; False if that is nothing."""
    from qdq.sweep.engines import open_engine
    from qdq.sweep.records import save
    from qdq.sweep.scheduler import Scheduler
    from qdq.sweep.table import choose

    if not any(record.open for record in records.values()):
        save(study.out, study.name, records)
        print("Nothing is left to run.")
        return False
    Scheduler(study, plan, records, open_engine(study.engine, study.out), choose()).run()
    return True


def _finish(study: "Study", plan: "list[Job]", records: "Records", worked: bool) -> None:
    """The table, results.json, the report, and the sentence about what failed."""
    from rich.console import Console

    from qdq.errors import QDQError
    from qdq.sweep import results
    from qdq.sweep.records import FAILED

    console = Console(highlight=False)
    table = results.collect(plan)
    changed = results.save_results(study.out, study.name, table)
    page = results.write_report(study.out, plan, anew=worked or changed)
    console.print(results.draw(table))
    shown = f"Everything is in {study.out}: results.json" + (f", {page.relative_to(study.out)}" if page else "")
    console.print(shown, soft_wrap=True, markup=False)
    failed = [job for job in plan if records[job.name].state == FAILED]
    if not failed:
        return
    for job in failed:
        record = records[job.name]
        console.print(f"failed: {job.label}: {record.sentence} ({record.log})", soft_wrap=True, markup=False)
    unfinished = sum(len(row["missing"]) for row in table)
    error = QDQError(
        f"{len(failed)} of {len(plan)} jobs failed and {unfinished} of {sum(job.folder is not None for job in plan)} runs "
        "are not finished; correct the cause and add --retry to run them again."
    )
    error.exit_code = worst([records[job.name].exit_code for job in failed])
    raise error


def worst(codes: list[Any]) -> int:
    """The exit code that says most: diverged before data before usage, and 1 for anything else."""
    return max((code for code in codes if code in (2, 3, 4)), default=1)


def _print_plan(study: "Study", plan: "list[Job]", records: "Records") -> None:
    from rich.console import Console

    from qdq.sweep.records import DONE
    from qdq.sweep.scheduler import command

    console = Console(highlight=False)
    for job in plan:
        state = records[job.name].state
        note = f" after {job.needs}" if job.needs and records[job.needs].state != DONE else ""
        console.print(f"# {job.name}: {state}{note}", soft_wrap=True, markup=False)
        console.print(command(job), soft_wrap=True, markup=False)
    training = [job for job in plan if job.folder is not None]
    done = sum(records[job.name].state == DONE for job in training)
    shared = len(plan) - len(training)
    using = sum(job.needs is not None for job in training)
    console.print(
        f"{len(training)} runs, {done} of them finished; {shared} Q distributions serve {using} of them; "
        f"engine {study.engine.name}, into {study.out}",
        soft_wrap=True,
        markup=False,
    )
