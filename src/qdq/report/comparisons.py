"""Charts that compare methods over tasks."""

from collections.abc import Sequence

import numpy as np

from qdq.evaluation import statistics
from qdq.report.charts import Chart, Mark, Panel, Series
from qdq.report.methods import Evidence, Row

STAGES = {  # in the order of the method
    "q_dataset": ("Q dataset", "sky"),
    "diffusion": ("diffusion teacher", "purple"),
    "consistency": ("consistency student", "amber"),
    "quantile": ("quantile learner", "amber"),
    "behaviour": ("model of the recorded actions", "green"),
    "training": ("training, one seed", "blue"),
    "evaluation": ("evaluation, one seed", "grey"),
}


def _on(evidence: Evidence) -> str:
    """Which tasks a comparison is made on, and which methods it leaves out."""
    methods, tasks = evidence.comparable
    absent = [method for method in evidence.compared if method not in methods]
    where = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks ({', '.join(tasks)})"
    return where + (f"; left out, because not run on all of them: {', '.join(absent)}" if absent else "")


def _scores(evidence: Evidence, methods: Sequence[str], tasks: Sequence[str]) -> dict[str, list[np.ndarray]]:
    return {method: [row.scores for task in tasks if (row := evidence.row(task, method))] for method in methods}


def aggregate(evidence: Evidence) -> Chart | None:
    """The interquartile mean of each method over the tasks that all of them have."""
    methods, tasks = evidence.comparable
    if len(methods) < 2:
        return None
    scores = _scores(evidence, methods, tasks)
    series = []
    for row, method in enumerate(methods):
        interval = statistics.bootstrap_interval(scores[method])
        low, high = ([interval[0]], [interval[1]]) if interval else (None, None)
        middle = statistics.interquartile_mean(scores[method])
        series.append(Series(method, [middle], [row], evidence.colours[method], "interval", low, high, legend=False))
    caption = (
        f"Mean of the middle half of all runs on {_on(evidence)}; bars are stratified bootstrap intervals (95 %), and are "
        "missing where a method has a single seed."
    )
    panel = Panel("", "interquartile mean of scores", "", series, categories=methods)
    return Chart("aggregate", "Interquartile mean", caption, [panel], size=(4.9, max(1.6, 0.9 + 0.42 * len(methods))))


def profiles(evidence: Evidence) -> Chart | None:
    """For each method, the share of its runs above each score."""
    methods, tasks = evidence.comparable
    if not methods:
        return None
    scores = _scores(evidence, methods, tasks)
    top = max(float(np.max(task)) for method in methods for task in scores[method])
    bottom = min(0.0, *(float(np.min(task)) for method in methods for task in scores[method]))
    thresholds = np.linspace(bottom, top * 1.02 + 1e-9, 101)
    series = []
    for method in methods:
        made = statistics.performance_profile(scores[method], thresholds)
        series.append(Series(method, thresholds, made.share, evidence.colours[method], "line", made.low, made.high))
    caption = (
        f"Share of runs whose final score exceeds the threshold, on {_on(evidence)}. Higher is better; bands are pointwise 95 % "
        "bootstrap intervals, stratified by task."
    )
    panel = Panel("", "score threshold", "share of runs above", series, y_limits=(-0.02, 1.04))
    return Chart("performance-profile", "Performance profile", caption, [panel], size=(4.9, 3.2))


def improvement(evidence: Evidence) -> Chart | None:
    """For each pair of methods, the chance that a run of the one beats a run of the other on the same task."""
    rows, names = [], []
    methods = evidence.compared
    for i, first in enumerate(methods):
        for second in methods[i + 1 :]:
            tasks, scores = evidence.common_scores((first, second))
            if not tasks:
                continue
            estimate, interval = statistics.probability_of_improvement(scores[first], scores[second])
            low, high = ([interval[0]], [interval[1]]) if interval else (None, None)
            name = f"{first}\nover {second}"
            rows.append(
                Series(name, [estimate], [len(names)], evidence.colours[first], "interval", low, high, legend=False)
            )
            names.append(name)
    if not rows:
        return None
    caption = (
        "The chance that a run of the first method scores higher than one of the second on the same task, averaged over the "
        "tasks both have; a tie counts one half. An interval that crosses the line at one half decides nothing."
    )
    panel = Panel("", "P(first > second)", "", rows, [Mark("x", 0.5)], names, x_limits=(-0.03, 1.03))
    size = (4.9, max(1.6, 0.9 + 0.42 * len(names)))
    return Chart("probability-of-improvement", "Probability of improvement", caption, [panel], size=size)


def timings(rows: Sequence[Row]) -> Chart | None:
    """Minutes of each stage, one bar for each method and task."""
    timed = [row for row in rows if row_stages(row)]
    if not timed:
        return None
    names = [f"{row.task}\n{row.method}" for row in timed]
    left = np.zeros(len(timed))
    series = []
    for stage, (label, colour) in STAGES.items():
        minutes = np.array([row_stages(row).get(stage, 0.0) / 60.0 for row in timed])
        if minutes.any():
            series.append(Series(label, minutes, range(len(timed)), colour, "stack", low=left.copy()))
            left = left + minutes
    caption = "Minutes on the machine of each run; the stages of a Q distribution are trained once and then reused."
    panel = Panel("", "minutes", "", series, categories=names)
    return Chart("timings", "Where the time goes", caption, [panel], size=(4.9, max(1.9, 1.2 + 0.44 * len(names))))


def row_stages(row: Row) -> dict[str, float]:
    """Seconds of each stage, from the first run of the row that has been timed."""
    return next((run.stages for run in row.runs if run.stages), {})
