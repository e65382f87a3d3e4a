"""The paper's Tables 1, 2 and 5, with our numbers beside them where runs exist. A cell without a run says so."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qdq.report import published
from qdq.report.charts import cell, short_number
from qdq.report.methods import NAMES, Evidence, Row

NOT_RUN = "not run"
Style = Literal["text", "markdown", "csv"]


@dataclass(frozen=True)
class Entry:
    """One number of a table, or the words that stand for it."""

    value: float | None = None
    std: float | None = None
    words: str = NOT_RUN
    seeds: int | None = None
    steps: int | None = None
    is_score: bool = True

    def __str__(self) -> str:
        if self.value is None:
            return self.words
        if self.seeds is None:  # as printed in the paper, or a time
            shown = f"{self.value:.1f}" if self.is_score else f"{self.value:g}"
            return shown if self.std is None else f"{shown} ± {self.std:g}"
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        return f"{self.value:.1f}{spread} (n={self.seeds})"


@dataclass(frozen=True)
class Table:
    """Rows of entries under named columns."""

    title: str
    first: str
    columns: list[str]
    rows: list[tuple[str, list[Entry]]]
    notes: list[str] = field(default_factory=list)


def build(number: int, evidence: Evidence | None = None) -> Table:
    """One of the paper's tables."""
    return _speed(evidence) if number == 5 else _scores(str(number), evidence)


def _own_methods(evidence: Evidence | None, tasks: Sequence[str]) -> dict[str, str | None]:
    """Our columns: the methods that were run on these tasks, and each algorithm that was not."""
    columns: dict[str, str | None] = {}
    for name in (NAMES["bc"], NAMES["td3-bc"], NAMES["iql"], NAMES["qdq"]):
        rows = [] if evidence is None else [row for row in evidence.rows if row.first.task in tasks]
        found = dict.fromkeys(row.method for row in rows if NAMES.get(row.first.algorithm) == name)
        for method in found:
            columns[f"{method}, ours"] = method
        if not found:
            columns[f"{name}, ours"] = None
    return columns


def _scores(number: str, evidence: Evidence | None) -> Table:
    printed = published.content()["scores"][number]
    tasks = list(printed["rows"])
    ours = _own_methods(evidence, tasks)
    rows = []
    for task in tasks:
        entries = []
        for method, value in zip(printed["methods"], printed["rows"][task], strict=True):
            entries.append(Entry(value, printed["std"][task] if method == "QDQ" else None))
        rows.append((task, entries + [_own_score(evidence, task, method) for method in ours.values()]))
    width = len(printed["methods"])
    sums = [_total([entries[width + i] for _, entries in rows]) for i in range(len(ours))]
    rows.append(("total", [Entry(value) for value in printed["total"]] + sums))
    columns = [*printed["methods"], *ours]
    title = f"{printed['title']}, scores 0-100"
    return Table(title, "dataset", columns, rows, _score_notes(printed, evidence, tasks))


def _own_score(evidence: Evidence | None, task: str, method: str | None) -> Entry:
    rows = [row for row in evidence.rows if row.first.task == task and row.method == method] if evidence else []
    if not rows:
        return Entry()
    if len(rows) > 1:
        shown = [str(_entry(row)) for row in rows]
        return Entry(words=" / ".join(shown))  # the same task from two datasets: both, in the order of the notes
    return _entry(rows[0])


def _entry(row: Row) -> Entry:
    if row.unfinished:
        return Entry(words="unfinished")
    if row.summary is None:
        return Entry(words="no score")
    return Entry(row.summary["mean"], row.summary["std"], "", row.summary["seeds"], row.first.steps)


def _total(entries: Sequence[Entry]) -> Entry:
    values = [entry.value for entry in entries if entry.value is not None]
    if len(values) < len(entries):
        return Entry(words=NOT_RUN if all(entry.words == NOT_RUN for entry in entries) else "incomplete")
    return Entry(sum(values), None, "", min(entry.seeds or 0 for entry in entries))


def _score_notes(printed: dict[str, Any], evidence: Evidence | None, tasks: Sequence[str]) -> list[str]:
    notes = [
        f"Published: {published.content()['origin']}; {printed['data']}, {printed['seeds']} seeds, deviations for QDQ only."
    ]
    for i, method in enumerate(printed["methods"]):
        total = sum(values[i] for values in printed["rows"].values())
        if abs(total - printed["total"][i]) > 0.15:
            notes.append(
                f"The printed total of {method}, {printed['total'][i]:g}, is not the sum of its rows, {total:.1f}."
            )
    if evidence is None:
        return [*notes, "Ours: no runs were given; add --runs DIR."]
    notes.append(
        "Ours: mean ± standard deviation over n seeds of the last evaluations, in Gymnasium's environments and on the data "
        "listed here, so not on the same footing as the published numbers."
    )
    seen = dict.fromkeys(
        f"{row.first.task}: dataset {row.task}, sha256 {row.first.dataset_sha256[:12]}, {short_number(row.first.steps)} steps, "
        f"preset {row.first.preset}"
        for row in evidence.rows
        if row.first.task in tasks
    )
    return [*notes, *seen]


def _plain(value: float) -> Entry:
    return Entry(value, is_score=False)


def _speed(evidence: Evidence | None) -> Table:
    printed = published.content()["speed"]
    columns = [
        "seconds per epoch, published",
        "GPU memory in GB, published",
        "seconds per 1,000 steps, ours",
        "teacher, minutes",
        "student, minutes",
        "quantile learner, minutes",
    ]
    unknown, distillation = Entry(words="not published"), printed["distillation"]
    rows = []
    for method, values in printed["rows"].items():
        stages = [Entry(words="none")] * 3
        if method == "QDQ":
            stages = [
                _plain(distillation["teacher_minutes"]),
                _plain(distillation["student_minutes"]),
                Entry(words="none"),
            ]
        entries = [_plain(values["seconds_per_epoch"]), _plain(values["gpu_gigabytes"]), unknown, *stages]
        rows.append((method, entries))
    measured = [row for row in evidence.rows if row.finished] if evidence else []
    for row in measured:
        rows.append((f"{row.method}, ours, {row.task}", _own_speed(row)))
    if not any(row.first.algorithm == "qdq" for row in measured):
        rows.append(("QDQ, ours", [Entry(words="none"), Entry(words="not measured"), *[Entry()] * 4]))
    notes = [
        f"Published: {published.content()['origin']}; SAC, CQL and EDAC from Table 3 of EDAC's paper.",
        "The paper defines no epoch, so its 0.028 s cannot be compared with the other rows, nor with ours; ours are seconds per "
        "1,000 gradient steps without evaluation.",
        "The published time of QDQ leaves out its Q distribution: the text gives "
        f"{distillation['teacher_minutes']:g} minutes for the diffusion teacher and {distillation['student_minutes']:g} for the "
        f"consistency student on an {distillation['device']}, trained once per dataset.",
        "Ours: times of the machine that each run names in its manifest; a Q distribution that was found trained shows the time "
        "of its training. Memory is not measured.",
    ]
    return Table(printed["title"], "method", columns, rows, notes)


def _own_speed(row: Row) -> list[Entry]:
    seconds = [
        1000.0 * (seed.seconds - seed.evaluation_seconds) / row.first.steps for seed in row.finished if seed.seconds > 0
    ]
    stages = next((run.stages for run in row.runs if run.stages), {})
    minutes = [
        _plain(round(stages[stage] / 60.0, 2)) if stage in stages else Entry(words="none")
        for stage in ("diffusion", "consistency", "quantile")
    ]
    speed = _plain(float(f"{np.mean(seconds):.3g}")) if seconds else Entry(words="not measured")
    return [Entry(words="none"), Entry(words="not measured"), speed, *minutes]


def render(table: Table, style: Style) -> str:
    """The table as text for a terminal, as Markdown, or as CSV with one row per number."""
    if style == "csv":
        return _csv(table)
    cells = [[table.first, *table.columns], *([name, *map(str, entries)] for name, entries in table.rows)]
    if style == "markdown":
        safe = [[value.replace("|", "\\|").replace("<", "&lt;") for value in row] for row in cells]
        rule = ["---"] + ["---:"] * len(table.columns)
        body = "\n".join("| " + " | ".join(row) + " |" for row in [safe[0], rule, *safe[1:]])
        notes = "\n".join(f"- {note}".replace("<", "&lt;") for note in table.notes)
        return f"**{table.title}**\n\n{body}\n\n{notes}\n"
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(value.rjust(width) for value, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    notes = "\n".join(f"* {note}" for note in table.notes)
    return f"{table.title}\n\n{lines[0].rstrip()}\n{'-' * len(lines[0])}\n" + "\n".join(lines[1:]) + f"\n\n{notes}\n"


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([table.first, "column", "value", "std", "seeds", "steps", "state"])
    for name, entries in table.rows:
        for column, entry in zip(table.columns, entries, strict=True):
            numbers = [entry.value, entry.std, entry.seeds, entry.steps]
            shown = ["" if number is None else f"{number:.6g}" for number in numbers]
            writer.writerow([cell(name), cell(column), *shown, entry.words if entry.value is None else ""])
    return buffer.getvalue()
