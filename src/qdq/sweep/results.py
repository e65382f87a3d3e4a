"""The end of a sweep: one table of final scores, results.json, and the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdq import storage
from qdq.sweep.plan import Job


def collect(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Final scores by dataset, method and seed, with mean and spread; only finished seeds count."""
    from qdq.evaluation.statistics import summary

    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for job in jobs:
        if job.folder is None:
            continue
        row = rows.setdefault((job.dataset, job.method), {"run": job.folder.name, "scores": {}, "missing": []})
        outcome = job.folder / f"seed_{job.seed}" / "outcome.json"
        if outcome.exists():
            row["scores"][str(job.seed)] = storage.read_json(outcome)["final_score"]
        else:
            row["missing"].append(job.seed)
    table = []
    for (dataset, method), row in rows.items():
        scores = [score for score in row["scores"].values() if score is not None]
        over = summary(scores) if scores else None
        means = {"mean": over["mean"] if over else None, "std": over["std"] if over else None}
        table.append({"dataset": dataset, "method": method, **row, **means})
    return table


def save_results(out: Path, study: str, table: list[dict[str, Any]]) -> bool:
    """Write results.json, which holds nothing of where and when the runs were made; True if it says something new."""
    path, content = out / "results.json", {"study": study, "results": table}
    if path.exists() and storage.read_json(path) == content:
        return False
    storage.write_json(path, content)
    return True


def write_report(out: Path, jobs: Sequence[Job], anew: bool) -> Path | None:
    """The page of `qdq report` over every run folder of the study, unless it is there already; None while there is none."""
    page = out / "report" / "index.html"
    if page.exists() and not anew:
        return page
    folders = dict.fromkeys(job.folder for job in jobs if job.folder is not None)
    folders = [folder for folder in folders if (folder / "manifest.json").exists()]
    if not folders:
        return None
    from qdq.report.methods import gather
    from qdq.report.page import write_report as write_page
    from qdq.report.runs import find_runs

    return write_page(gather(find_runs(folders)), out / "report")[0]


def draw(table: Sequence[dict[str, Any]]) -> Any:
    """The table of final scores for a person."""
    from rich.table import Table

    drawn = Table(title="final scores")
    for column in ("dataset", "method", "mean", "std", "seeds"):
        drawn.add_column(column, justify="left" if column in ("dataset", "method") else "right")
    for row in table:
        done, total = len(row["scores"]), len(row["scores"]) + len(row["missing"])
        seeds = str(done) if done == total else f"{done} of {total}"
        drawn.add_row(
            row["dataset"], row["method"], _number(row["mean"]), _number(row["std"] if done > 1 else None), seeds
        )
    return drawn


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
