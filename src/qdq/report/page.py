"""`qdq report`: one page from run folders alone, with every figure also as a file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from qdq import storage
from qdq.report import charts, comparisons, html, plots, published, quality, reproduce
from qdq.report.charts import Chart
from qdq.report.data_card import card_body, card_charts, origin
from qdq.report.methods import NAMES, Evidence, Row, differences

FOLDER = "figures"
WIDE = (4.9, 3.2)


@dataclass
class Page:
    """Sections as they are added, and the charts that they show."""

    sections: list[tuple[str, str, str]] = field(default_factory=list)  # (identifier, title, content)
    charts: list[Chart] = field(default_factory=list)

    def add(self, title: str, content: str) -> None:
        """Append a section."""
        self.sections.append((storage.slug(title.lower().replace(" ", "-")), title, content))

    def figures(self, made: Sequence[Chart | None], layout: str = "plots") -> str:
        """Charts side by side; each gets a file name of its own."""
        shown = []
        for chart in filter(None, made):
            chart = self._named(chart)
            self.charts.append(chart)
            shown.append(html.figure(chart, FOLDER))
        return f'<div class="{layout}">{"".join(shown)}</div>' if shown else ""

    def _named(self, chart: Chart) -> Chart:
        taken, name, number = {other.name for other in self.charts}, storage.slug(chart.name), 2
        while name in taken:
            name, number = f"{storage.slug(chart.name)}-{number}", number + 1
        return Chart(name, chart.title, chart.caption, chart.panels, chart.columns, chart.size)


def write_report(evidence: Evidence, out: Path) -> tuple[Path, int]:
    """Write index.html and the figures' files into `out`; returns the page and the number of figures."""
    page, text = build(evidence)
    for chart in page.charts:
        charts.save(chart, out / FOLDER)
    storage.write_text(out / "index.html", text)
    return out / "index.html", len(page.charts)


def build(evidence: Evidence) -> tuple[Page, str]:
    """The page's content and its HTML."""
    page = Page()
    page.add("Results", _results(evidence))
    page.add("Learning curves", _learning_curves(page, evidence))
    page.add("Comparison", _comparison(page, evidence))
    page.add("Q distribution", _q_distributions(page, evidence))
    page.add("Uncertainty", _uncertainty(page, evidence))
    page.add("Quality of the uncertainty", _quality(page, evidence))
    page.add("Time", _time(page, evidence))
    page.add("Settings", _settings(evidence))
    page.add("Data", _data(page, evidence))
    page.add("Reproduce", _reproduce(evidence))
    page.add("How to read this", _definitions())
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in page.sections)
    body = "".join(
        f'<section id="{name}"><h2>{escape(title)}</h2>{text}</section>' for name, title, text in page.sections
    )
    title = _title(evidence)
    nav = f'<nav aria-label="Sections"><div>{links}<button type="button" class="theme" hidden>Dark</button></div></nav>'
    head = f'<h1>{escape(title)}</h1><p class="lead">{escape(_lead(evidence))}</p>{_headline(evidence)}'
    foot = f"<footer>Written by <code>qdq report</code> from {_count(len(evidence.runs), 'run folder')} and nothing else.</footer>"
    return page, html.document(title, f"{nav}<main>{head}{body}{foot}</main>", script=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _title(evidence: Evidence) -> str:
    where = evidence.tasks[0] if len(evidence.tasks) == 1 else _count(len(evidence.tasks), "dataset")
    return f"{_count(len(evidence.methods), 'method')} on {where}"


def _lead(evidence: Evidence) -> str:
    seeds = sum(len(row.finished) for row in evidence.rows)
    waiting = sum(len(row.unfinished) for row in evidence.rows)
    text = f"{', '.join(evidence.methods)} · {_count(seeds, 'finished seed')} in {_count(len(evidence.runs), 'run')}"
    return text + (f" · {waiting} unfinished" if waiting else "")


def _headline(evidence: Evidence) -> str:
    """One tile for each task: the best mean of a finished method, or of all that share it, and the data's own score."""
    tiles = []
    for task in evidence.tasks:
        scored = [row for row in evidence.of_task(task) if row.summary]
        rows = [row for row in scored if not row.unfinished] or scored
        if not rows:
            continue
        best = max(rows, key=lambda row: row.summary["mean"] if row.summary else 0.0)
        assert best.summary is not None
        shown = f"{best.summary['mean']:.1f}"
        sharing = [row.method for row in rows if row.summary and f"{row.summary['mean']:.1f}" == shown]
        spread = "" if best.summary["std"] is None or len(sharing) > 1 else f" ± {best.summary['std']:.1f}"
        behaviour = evidence.behaviour(task)
        beside = f", the data {behaviour:.1f}" if behaviour is not None else ""
        note = f"{task}: highest mean{' so far' if best.unfinished else ''}, {' and '.join(sharing)} ({_count(best.summary['seeds'], 'seed')}){beside}"
        tiles.append(f'<div class="tile"><b>{shown}{spread}</b><span>{escape(note)}</span></div>')
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


RESULT_HEADS = (
    ("task", "the dataset"),
    ("method", "algorithm, with its settings where two runs of it differ"),
    ("mean", "of the final scores of all finished seeds; a final score is the mean of the last evaluations"),
    ("std", "standard deviation over seeds"),
    ("IQM", "interquartile mean: mean of the middle half of the seeds"),
    ("95 % interval", "bootstrap interval of the interquartile mean over seeds"),
    ("seeds", "finished seeds"),
    ("steps", "gradient steps of each seed"),
    ("data", "mean score of the recorded episodes"),
    ("published", "what the paper prints, on other data: D4RL v2, AntMaze v0"),
    ("state", "whether all seeds are finished"),
)


def _results(evidence: Evidence) -> str:
    rows = [_result_row(row, evidence.behaviour(row.task)) for row in evidence.rows]
    warnings = [
        f"{row.task}, {row.method}, seed {seed.number}: {warning}"
        for row in evidence.rows
        for seed in row.seeds
        for warning in seed.warnings
    ]
    listed = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    note = (
        "Scores are 0 for a random and 100 for an expert policy. Click a column to sort. The <em>published</em> numbers are the "
        "paper's: on D4RL v2 and AntMaze v0, with 5 seeds and up to a million steps, so they stand beside ours and are not "
        "the same experiment."
    )
    return f"<p>{note}</p>{html.table('results', RESULT_HEADS, rows)}" + (
        f'<ul class="warnings">{listed}</ul>' if listed else ""
    )


def _result_row(row: Row, behaviour: float | None) -> list[html.Cell]:
    summary: dict[str, Any] = row.summary or {"mean": None, "std": None, "iqm": None, "interval_95": None, "seeds": 0}
    interval = summary["interval_95"]
    middle = html.Cell("", None, True)
    if interval:
        middle = html.Cell(f"{interval[0]:.1f} to {interval[1]:.1f}", interval[0], True)
    elif summary["seeds"] == 1:
        middle = html.Cell('<span class="soft">needs more seeds</span>', None, True)
    printed = published.score(row.first.task, NAMES.get(row.first.algorithm, ""))
    known = html.Cell("", None, True)
    if printed is not None:
        shown = f'{escape(str(printed))}<span class="below">on {escape(printed.data)}</span>'
        known = html.Cell(shown, printed.score, True)
    state = html.text("finished")
    if row.state:
        state = html.Cell(f'<span class="tag open">{escape(row.state)}</span>', row.state, mark="wrap")
    elif row.summary is None:
        state = html.Cell('<span class="tag">no environment, so no score</span>', "no score", mark="wrap")
    unit = "" if row.first.unit == "score" else '<span class="tag">returns</span>'
    return [
        html.Cell(escape(row.task) + unit, row.task.lower()),
        html.text(row.method, "strong"),
        html.number(summary["mean"]),
        html.number(summary["std"]),
        html.number(summary["iqm"]),
        middle,
        html.number(summary["seeds"], 0),
        html.number(row.first.steps, 0),
        html.number(behaviour),
        known,
        state,
    ]


def _missing(text: str) -> str:
    return f'<p class="none">{escape(text)}</p>'


def _learning_curves(page: Page, evidence: Evidence) -> str:
    made = []
    for task in evidence.tasks:
        rows = [row for row in evidence.of_task(task) if any(seed.evaluations for seed in row.seeds)]
        if rows:
            panel = plots.learning_curves("", rows, evidence.colours)
            made.append(Chart(f"learning-curve-{task}", task, "", [panel], size=WIDE))
    if not made:
        return _missing("No run here was evaluated: their datasets name no environment.")
    note = (
        "Mean of the finished seeds, shaded from the lowest to the highest seed. Dotted: seeds that are not finished. Dashed: "
        "the score of the data itself."
    )
    return f"<p>{note}</p>{page.figures(made, 'plots wide')}"


def _comparison(page: Page, evidence: Evidence) -> str:
    made = [comparisons.aggregate(evidence), comparisons.profiles(evidence), comparisons.improvement(evidence)]
    if len(evidence.compared) < 2 or not any(made):
        return _missing("A comparison needs scores of at least two methods on the same dataset.")
    note = "Over the tasks that methods share. With three seeds every interval is wide; read them before the points."
    return f"<p>{note}</p>{page.figures(made, 'plots wide')}"


def _first_of_each(evidence: Evidence) -> list[tuple[Row, dict[str, np.ndarray]]]:
    """For each row the panels of its first run that has some: the runs of a row differ in their seeds only."""
    found = ((row, next((run.panels for run in row.runs if run.panels), None)) for row in evidence.rows)
    return [(row, panels) for row, panels in found if panels is not None]


NO_PANELS = (
    "No run here has saved panels of a Q distribution. Runs of algorithm qdq write them when they finish; `qdq train` with "
    "--resume adds them to a finished run of an older version, if its weights are still there."
)


def _q_distributions(page: Page, evidence: Evidence) -> str:
    made, seen = [], set()
    for row, panels in _first_of_each(evidence):
        if panels["window_samples"].tobytes() in seen:
            continue  # the same Q distribution, reused by another method
        seen.add(panels["window_samples"].tobytes())
        label = f"{row.task}, {row.first.config['q_distribution']['learner']} learner"
        caption = "Truncated returns of the data against one sample of the learned distribution for each."
        name = f"q-distribution-{row.task}"
        made.append(Chart(name, label, caption, [plots.q_distribution(panels, "")], size=WIDE))
        caption = "Rank of each true return among 99 samples at its state and action, on training windows: flat is calibrated."
        made.append(
            Chart(
                f"calibration-{row.task}",
                f"{row.task}, calibration",
                caption,
                [plots.calibration(panels, "")],
                size=WIDE,
            )
        )
    return page.figures(made, "plots wide") or _missing(NO_PANELS)


COURSES = {"q": "Q", "uncertainty": "its uncertainty", "distance": "distance to the data", "risk": "risky actions"}


def _uncertainty(page: Page, evidence: Evidence) -> str:
    made = []
    for row, panels in _first_of_each(evidence):
        title = f"{row.task}, {row.method}"
        caption = (
            "H at the same states for three kinds of actions. The line that 5 % of the recorded actions exceed is the "
            f"{plots.random_quantile(panels):.0%} quantile of random actions; the paper reports about 75 % for its own."
        )
        name = f"{row.task}-{row.method}"
        made.append(Chart(f"uncertainty-{name}", title, caption, [plots.uncertainty(panels, "")], size=WIDE))
        if "surprise_border" in panels:
            caption = (
                "Surprise of the same actions under the model of the recorded actions. What lies to the right of the border "
                "is flagged as risky; random actions may reach beyond the picture."
            )
            made.append(
                Chart(f"surprise-{name}", f"{title}: surprise", caption, [plots.surprise(panels, "")], size=WIDE)
            )
    for row in evidence.rows:
        for kind, panel in plots.training_course([seed for seed in row.seeds if seed.metrics], "").items():
            if row.first.algorithm == "qdq":
                title = f"{row.task}, {row.method}: {COURSES[kind]} during training"
                caption = "Mean over seeds, shaded from the lowest to the highest."
                made.append(Chart(f"training-{kind}-{row.task}-{row.method}", title, caption, [panel], size=WIDE))
    note = (
        "H is the standard deviation of the learned Q distribution. It tells how much returns vary from a state and action; if "
        "the three curves lie on each other, it does not tell recorded from random actions on this data. The surprise of an "
        "action is -log of its density under a model of the recorded actions: large where nobody did such a thing at such a state."
    )
    return f"<p>{note}</p>{page.figures(made, 'plots wide')}" if made else _missing(NO_PANELS)


def _quality(page: Page, evidence: Evidence) -> str:
    text, made = quality.section(evidence)
    return text + page.figures(made, "plots wide")


def _time(page: Page, evidence: Evidence) -> str:
    stages = [
        stage for stage in comparisons.STAGES if any(stage in comparisons.row_stages(row) for row in evidence.rows)
    ]
    if not stages:
        return _missing("No seed is finished yet, so no stage has a time.")
    heads = [("task", ""), ("method", ""), *((f"{comparisons.STAGES[stage][0]}, s", "seconds") for stage in stages)]
    heads += [("steps per second", "of the training, without evaluation"), ("machine", "")]
    rows = []
    for row in evidence.rows:
        seconds, machine = comparisons.row_stages(row), row.first.manifest.get("machine") or {}
        training = seconds.get("training")
        place = f"{machine.get('device', 'unknown')}, {machine.get('cores', '?')} cores"
        rows.append(
            [
                html.text(row.task),
                html.text(row.method, "strong"),
                *(html.number(seconds.get(stage)) for stage in stages),
                html.number(row.first.steps / training if training else None),
                html.text(place),
            ]
        )
    return (
        html.table("time", heads, rows) + "<p></p>" + page.figures([comparisons.timings(evidence.rows)], "plots wide")
    )


def _settings(evidence: Evidence) -> str:
    """The settings in which methods differ; within a method those that depend on the task."""
    configs = {}
    for row in evidence.rows:
        same = [other for other in evidence.rows if other.method == row.method]
        alike = all(other.first.config == same[0].first.config for other in same)
        configs.setdefault(row.method if alike else f"{row.method}, {row.task}", row.first.config)
    if len(configs) < 2:
        return _missing("Every run here has the same settings.")
    changed = differences(configs)
    names = list(configs)
    heads = [("setting", ""), *((name, "") for name in names)]
    rows = []
    for key, values in changed.items():
        given = [value for value in values.values() if value]
        common = max(given, key=given.count)
        usual = given.count(common) > len(given) / 2
        rows.append(
            [html.text(key)]
            + [
                html.text(
                    values[name] or "none", "differs" if usual and values[name] and values[name] != common else ""
                )
                for name in names
            ]
        )
    note = (
        f"The {_count(len(changed), 'setting')} in which these methods differ; a value unlike most others is coloured."
    )
    return (
        f"<p>{note} Every other setting is the same, and all are in each run's <code>config.json</code>.</p>"
        + html.table("settings", heads, rows)
    )


def _data(page: Page, evidence: Evidence) -> str:
    parts = []
    for task in evidence.tasks:
        rows = evidence.of_task(task)
        card = next((run.data_card for row in rows for run in row.runs if run.data_card), None)
        if card is None:
            digest = escape(rows[0].first.dataset_sha256)
            parts.append(
                f"<h3>{escape(task)}</h3>"
                + _missing(
                    "These runs keep no data card. `qdq train` with --resume adds it to a run whose weights are still there; "
                    "`qdq data inspect DATASET --html FILE` draws one from the data."
                )
                + f'<p class="small">sha256 of the arrays <code>{digest}</code></p>'
            )
            continue
        prefix = f"data-{len(parts) + 1}-{storage.slug(task)}-"
        page.charts.extend(card_charts(card, prefix))
        faults = sum(fault["level"] != "note" for fault in card["warnings"])
        note = f"{card['transitions']:,} transitions, {_count(faults, 'warning') if faults else 'no warnings'}"
        opened = " open" if len(evidence.tasks) == 1 else ""
        parts.append(
            f"<details{opened}><summary>{escape(task)} <span>· {escape(note)}</span></summary>"
            f'<p class="lead">{escape(origin(card))}</p>{card_body(card, FOLDER, prefix)}</details>'
        )
    return "".join(parts)


def _reproduce(evidence: Evidence) -> str:
    parts = []
    for row in evidence.rows:
        lines = "\n".join(map(escape, reproduce.commands(row)))
        notes = " ".join(map(escape, reproduce.remarks(row)))
        parts.append(
            f"<h3>{escape(row.task)} · {escape(row.method)}</h3>"
            f'<div class="command"><pre>{lines}</pre></div><p class="small">{notes}</p>'
        )
    return "<p>The literal commands of each row of the results.</p>" + "".join(parts)


def _definitions() -> str:
    items = (
        (
            "Score",
            "100 (return - random) / (expert - random) with D4RL's reference returns; for mazes the share of successes.",
        ),
        (
            "Final score of a seed",
            "the mean of its last evaluations (five unless the settings say otherwise), never the best one.",
        ),
        ("IQM", "the interquartile mean: the mean of the middle half of all runs. With three seeds it is the mean."),
        (
            "95 % interval",
            "percentile bootstrap of the IQM with 2,000 draws; seeds are drawn anew within each task. With three seeds it "
            "reaches from the lowest to the highest seed. A single seed has none.",
        ),
        ("Performance profile", "for each threshold the share of runs above it, every task counting the same."),
        (
            "Probability of improvement",
            "over all pairs of seeds of two methods on one task, the share in which the first is higher, ties counting one "
            "half; then the mean over tasks.",
        ),
        ("Unfinished", "a run whose seeds have not all come to their end; its numbers are of the finished seeds only."),
        ("Published", f"{published.content()['origin']}."),
    )
    return "".join(f"<p><b>{escape(name)}</b>: {escape(text)}</p>" for name, text in items)
