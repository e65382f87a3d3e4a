"""The paper's figures, one function each: from a dataset or from run folders to a chart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from qdq import q_dataset
from qdq.data.episodes import Dataset
from qdq.errors import UsageError
from qdq.report import plots
from qdq.report.charts import Chart, Panel, Series
from qdq.report.methods import Evidence, Row, flat, format_value
from qdq.sweep import ablations

STRIDES = (1, 10, 50)
WIDTHS = (100, 200, 300)
BINS = 60
COLOURS = ("blue", "vermillion", "green", "purple", "amber", "sky")


def q_stride(dataset: Dataset) -> Chart:
    """Figure 3: the Q dataset for sliding steps k of 1, 10 and 50."""
    panel = _windows(dataset, [q_dataset.Config(stride=stride) for stride in STRIDES], "k = {0.stride}")
    caption = "Truncated returns (T = 200) for three sliding steps k."
    return Chart("q-stride", f"Q distribution by sliding step, {dataset.name}", caption, [panel], size=(6, 3.6))


def q_width(dataset: Dataset) -> Chart:
    """Figure 4: the Q dataset for windows of 100, 200 and 300 steps."""
    panel = _windows(dataset, [q_dataset.Config(width=width) for width in WIDTHS], "T = {0.width}")
    caption = "Truncated returns (k = 10) for three window widths T."
    return Chart("q-width", f"Q distribution by window width, {dataset.name}", caption, [panel], size=(6, 3.6))


def _windows(dataset: Dataset, settings: Sequence[q_dataset.Config], label: str) -> Panel:
    values = [q_dataset.build(dataset, config).values for config in settings]
    edges = np.histogram_bin_edges(np.concatenate(values), bins=BINS)
    series = [
        Series(
            f"{label.format(config)}: {len(value):,} windows",
            edges,
            np.histogram(value, edges, density=True)[0],
            colour,
            "steps",
            dash=dash,
        )
        for config, value, colour, dash in zip(
            settings, values, ("grey", "blue", "vermillion"), ("-", "-", "--"), strict=True
        )
    ]
    return Panel(dataset.name, "Q (discounted return within the window)", "density", series)


def _with_panels(evidence: Evidence) -> list[Row]:
    rows = [row for row in evidence.rows if any(run.panels for run in row.runs)]
    if not rows:
        raise UsageError(
            "None of these runs has saved panels of its Q distribution; train with algorithm qdq, or give `qdq train` of an "
            "older run that still has its weights again with --resume, which writes them."
        )
    return rows


def _panels(row: Row) -> dict[str, np.ndarray]:
    return next(panels for run in row.runs if (panels := run.panels))


def _name(row: Row, rows: Sequence[Row]) -> str:
    """The task, with the method where a task occurs more than once."""
    return row.task if sum(other.task == row.task for other in rows) == 1 else f"{row.task}, {row.method}"


def q_distribution(evidence: Evidence) -> Chart:
    """Figures 5 and 6: truncated returns against the learned distribution, for each task."""
    rows = _with_panels(evidence)
    panels = [plots.q_distribution(_panels(row), _name(row, rows)) for row in rows]
    caption = "Truncated returns of the data, and samples of the learned distribution at the same states and actions."
    return Chart("q-distribution", "True and learned Q distribution", caption, panels)


def uncertainty(evidence: Evidence) -> Chart:
    """Figure 7: H of recorded against random actions, with the 95 % line, for each task."""
    rows = _with_panels(evidence)
    made = [plots.uncertainties(_panels(row), *2 * [_name(row, rows)]) for row in rows]
    panels = [panel for both in made for panel in both]
    caption = "Standard deviation of Q for recorded, the policy's and random actions at the same states"
    if len(panels) > len(rows):
        caption += ", and their surprise under a model of the recorded actions"
    columns = 3 if len(panels) == len(rows) else 2
    return Chart("uncertainty", "Uncertainty of recorded and of random actions", f"{caption}.", panels, columns=columns)


def training(evidence: Evidence) -> Chart:
    """Figure 8: the critics' Q and how risky the actions are during training."""
    rows = [row for row in evidence.rows if any("q_mean" in seed.metrics for seed in row.seeds)]
    if not rows:
        raise UsageError("None of these runs has logged a Q value; train with an algorithm that has critics.")
    courses = [plots.training_course(row.seeds, _name(row, rows)) for row in rows]
    captions = {
        "q": "Mean Q over a batch.",
        "uncertainty": "Mean H of the target actions, and the border of the risk set.",
        "distance": "Mean distance of the policy's actions to the recorded ones.",
        "risk": "Share of the policy's actions in the risk set.",
    }
    caption = " ".join(text for kind, text in captions.items() if any(kind in course for course in courses))
    panels = [panel for course in courses for panel in course.values()]
    columns = max(2, *map(len, courses))
    return Chart("training", "Q and its uncertainty during training", caption, panels, columns=columns)


def learning_curves(evidence: Evidence) -> Chart:
    """Figures 9 and 10: score over training steps with seed bands, for each task."""
    panels = []
    for task in evidence.tasks:
        rows = [row for row in evidence.of_task(task) if any(seed.evaluations for seed in row.seeds)]
        if rows:
            panels.append(plots.learning_curves(task, rows, evidence.colours))
    if not panels:
        raise UsageError("None of these runs has been evaluated; their datasets name no environment.")
    caption = "Mean over seeds; shaded from the lowest to the highest seed."
    return Chart("learning-curves", "Learning curves", caption, panels)


def _ablation(evidence: Evidence, name: str, key: str, symbol: str, number: int) -> Chart:
    """Learning curves of QDQ that differ in one setting only, one panel for each task."""
    section, setting = key.split(".")
    panels = []
    for task in evidence.tasks:
        groups: dict[str, list[Row]] = {}
        for row in evidence.of_task(task):
            config = row.first.config
            if row.first.algorithm == "qdq" and any(seed.evaluations for seed in row.seeds):
                rest = {**config, section: {**config[section], setting: None}}
                groups.setdefault(repr(rest), []).append(row)
        for rows in groups.values():
            values = {format_value(row.first.config[section][setting]): row for row in rows}
            if len(values) < 2:
                continue
            named = [
                Row(task, f"{symbol} = {value}", values[value].runs, values[value].seeds)
                for value in sorted(values, key=_order)
            ]
            colours = {row.method: COLOURS[i % len(COLOURS)] for i, row in enumerate(named)}
            panels.append(plots.learning_curves(task, named, colours))
    if not panels:
        raise UsageError(
            f"Figure {number} compares runs of QDQ that differ in {key} alone, and there are none here; train some with "
            f"--set {key}=..."
        )
    caption = f"QDQ with different {setting.replace('_', ' ')}, everything else the same."
    return Chart(name, f"Ablation of {setting.replace('_', ' ')}", caption, panels)


def _order(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), "")
    except ValueError:
        return (1, 0.0, value)


def ablation_alpha(evidence: Evidence) -> Chart:
    """Figure 11: QDQ for different alpha (weight of the optimistic target)."""
    return _ablation(evidence, "ablation-alpha", "algorithm.alpha", "alpha", 11)


def penalty(evidence: Evidence) -> Chart:
    """Figure 12: QDQ with and without its uncertainty penalty."""
    panels = []
    for task in evidence.tasks:
        rows = [
            row
            for row in evidence.of_task(task)
            if row.first.algorithm == "qdq" and any(seed.evaluations for seed in row.seeds)
        ]
        for without in rows:
            settings = flat(without.first.config)
            intact = [row for row in rows if _differs_by_penalty(row, settings)]
            if intact:
                named = [Row(task, "QDQ" if len(intact) == 1 else row.method, row.runs, row.seeds) for row in intact]
                named.append(Row(task, "without the penalty", without.runs, without.seeds))
                colours = {row.method: COLOURS[i % len(COLOURS)] for i, row in enumerate(named)}
                panels.append(plots.learning_curves(task, named, colours))
    if not panels:
        raise UsageError(
            "Figure 12 compares QDQ with the same run without its penalty, and there is no such pair here; train one with "
            "`qdq ablate DATASET --over uncertainty --only surprise --only 'no penalty'` (with --preset paper or release: "
            "--only H)."
        )
    caption = (
        "QDQ as it is and without what holds it to the data, everything else the same: with paper and release the penalty in "
        "the target, with fast the policy's distance to the recorded actions."
    )
    return Chart("penalty", "QDQ with and without its penalty", caption, panels)


def _differs_by_penalty(row: Row, without: dict[str, str]) -> bool:
    """Whether these settings are those of the row's run with its penalty taken away, and nothing else."""
    settings = flat(row.first.config)
    removed = dict(change.split("=", 1) for change in ablations.changes("uncertainty", row.first.preset)["no penalty"])
    return settings != without and settings | removed == without and settings["algorithm.penalty"] != "discount"


def ablation_beta(evidence: Evidence) -> Chart:
    """Figure 13: QDQ for different beta (border of the risk set)."""
    return _ablation(evidence, "ablation-beta", "algorithm.beta", "beta", 13)


def ablation_entropy(evidence: Evidence) -> Chart:
    """Figure 14: QDQ for different entropy weights (gamma in Eq. 9)."""
    return _ablation(evidence, "ablation-entropy", "algorithm.entropy_weight", "entropy weight", 14)


@dataclass(frozen=True)
class Figure:
    """What a figure is made from, and how."""

    needs: Literal["dataset", "runs"]
    make: Callable[..., Chart]

    @property
    def description(self) -> str:
        return (self.make.__doc__ or "").strip().splitlines()[0]


FIGURES = {
    "q-stride": Figure("dataset", q_stride),
    "q-width": Figure("dataset", q_width),
    "q-distribution": Figure("runs", q_distribution),
    "uncertainty": Figure("runs", uncertainty),
    "training": Figure("runs", training),
    "learning-curves": Figure("runs", learning_curves),
    "ablation-alpha": Figure("runs", ablation_alpha),
    "penalty": Figure("runs", penalty),
    "ablation-beta": Figure("runs", ablation_beta),
    "ablation-entropy": Figure("runs", ablation_entropy),
}
