"""The pictures of runs, each a function of saved data that returns a chart."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qdq import storage
from qdq.data.episodes import Dataset
from qdq.evaluation.measures import border_quantile
from qdq.report.charts import Chart, Mark, Panel, Series, save_picture
from qdq.report.methods import NAMES, Row
from qdq.report.runs import SavedRun, SavedSeed, mean_curve, read_run

BINS = 50
RANK_BINS = 20
SCORE = "score (0 random, 100 expert)"


def draw_run(folder: Path, dataset: Dataset, memory: int | None = None) -> list[Path]:
    """Measure what the pictures of a finished run need, save it in the folder, and draw them; `memory` is its budget."""
    from qdq.api import Run
    from qdq.data.prepare import prepare
    from qdq.report import panels

    if (folder / "q_distribution").exists():
        run = Run(folder)
        network = run.deployed_policy().network
        prepared = prepare(dataset, run.config, memory)
        behaviour, border = (run.behaviour, run.surprise_border) if run.watches_actions else (None, 0.0)
        arrays = panels.measure(run.distribution, network, prepared, run.uncertainty_rule, behaviour, border)
        panels.save(folder, arrays)
    return [save_picture(chart, folder / f"{chart.name}.png") for chart in run_charts(read_run(folder))]


def run_charts(run: SavedRun) -> list[Chart]:
    """The pictures that a run has data for."""
    charts = []
    name = NAMES.get(run.algorithm, run.algorithm)
    if any(seed.evaluations for seed in run.seeds):
        title = f"{name} on {run.dataset} ({run.preset})"
        row = Row(run.dataset, name, [run], run.seeds)
        charts.append(Chart("learning_curve", title, "", [learning_curves(title, [row], {name: "blue"})], size=(7, 4)))
    if run.panels is not None:
        caption = "Recorded truncated returns against samples of the learned distribution."
        pair = [
            q_distribution(run.panels, f"Q distribution of {run.dataset}"),
            calibration(run.panels, "Calibration: flat is right (training windows)"),
        ]
        charts.append(Chart("q_distribution", run.dataset, caption, pair, size=(4.75, 3.8)))
        both = uncertainties(run.panels, f"Uncertainty of Q on {run.dataset}", f"Surprise on {run.dataset}")
        size = (7, 4) if len(both) == 1 else (4.75, 3.8)
        charts.append(Chart("uncertainty", run.dataset, "", both, size=size))
    return charts


def overview(folder: Path, target: Path) -> Path:
    """The pictures of a run side by side in one file."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    names = ("learning_curve", "q_distribution", "uncertainty")
    images = [imread(folder / f"{name}.png") for name in names if (folder / f"{name}.png").exists()]
    ratios = [image.shape[1] / image.shape[0] for image in images]
    figure = Figure(figsize=(3.2 * sum(ratios), 3.2), layout="constrained")
    for axes, image in zip(figure.subplots(1, len(images), width_ratios=ratios, squeeze=False)[0], images, strict=True):
        axes.imshow(image)
        axes.axis("off")
    with storage.atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return target


def learning_curves(title: str, rows: Sequence[Row], colours: dict[str, str], marks: bool = True) -> Panel:
    """Score over steps: for each method the mean of its finished seeds, shaded from the lowest to the highest seed."""
    series: list[Series] = []
    for row in rows:
        colour = colours[row.method]
        steps, scores = mean_curve(row.finished)
        if len(steps):
            several = len(scores) > 1
            label = f"{row.method} ({len(scores)} seeds)" if several else f"{row.method} (1 seed)"
            band = (scores.min(axis=0), scores.max(axis=0)) if several else (None, None)
            series.append(Series(label, steps, scores.mean(axis=0), colour, "line", *band))
        for seed in row.unfinished:
            if seed.evaluations:
                x, y = zip(*seed.evaluations, strict=True)
                series.append(
                    Series(f"{row.method}, seed {seed.number}, unfinished", x, y, colour, dash=":", width=1.2)
                )
    behaviour = next((row.first.behaviour_score for row in rows if row.first.behaviour_score is not None), None)
    lines = [Mark("y", behaviour, f"the data: {behaviour:.1f}")] if marks and behaviour is not None else []
    unit = SCORE if rows[0].first.unit == "score" else "return"
    low = min((float(np.nanmin(one.y if one.low is None else one.low)) for one in series), default=0.0)
    limits = (0.0, None) if low >= 0 else (None, None)
    return Panel(title, "gradient steps", unit, series, lines, x_limits=(0.0, None), y_limits=limits, steps=True)


def _headroom(series: Sequence[Series]) -> tuple[float, float]:
    """Limits that leave room for a legend above the highest bar."""
    return 0.0, 1.3 * max(float(np.max(one.y)) for one in series) or 1.0


def q_distribution(panels: dict[str, np.ndarray], title: str) -> Panel:
    """Truncated returns of the data against one sample of the learned distribution for each of them."""
    returns = panels["window_returns"]
    edges = np.histogram_bin_edges(returns, bins=BINS)
    samples = np.clip(panels["window_samples"], edges[0], edges[-1])
    series = [
        Series(
            "truncated returns of the data",
            edges,
            np.histogram(returns, edges, density=True)[0],
            "grey",
            "filled",
            opacity=0.5,
        ),
        Series("learned distribution", edges, np.histogram(samples, edges, density=True)[0], "blue", "steps"),
    ]
    return Panel(title, "Q (discounted return within the window)", "density", series, y_limits=_headroom(series))


def calibration(panels: dict[str, np.ndarray], title: str) -> Panel:
    """Where the true returns lie among samples of the learned distribution at the same state and action."""
    edges = np.linspace(0.0, 1.0, RANK_BINS + 1)
    heights = np.histogram(panels["return_ranks"], edges, density=True)[0]
    bars = Series("windows", edges, heights, "blue", "filled", opacity=0.75, legend=False)
    flat = Mark("y", 1.0, "calibrated", "vermillion")
    return Panel(title, "rank of the true return among 99 samples", "density", [bars], [flat])


KINDS = {  # of actions at the same states
    "recorded": ("recorded actions", "grey"),
    "policy": ("the policy's actions", "blue"),
    "random": ("random actions", "vermillion"),
}


def uncertainties(panels: dict[str, np.ndarray], title: str, surprise_title: str) -> list[Panel]:
    """H and, where the run has a model of the recorded actions, the surprise of three kinds of actions."""
    return [uncertainty(panels, title)] + ([surprise(panels, surprise_title)] if "surprise_border" in panels else [])


def uncertainty(panels: dict[str, np.ndarray], title: str) -> Panel:
    """H of recorded, of the policy's and of random actions at the same states, with the 95 % line of the recorded ones."""
    spreads = {kind: panels[f"{kind}_uncertainty"] for kind in KINDS}
    border = float(np.quantile(spreads["recorded"], 0.95))
    edges = np.linspace(0.0, max(float(np.quantile(values, 0.995)) for values in spreads.values()) or 1.0, BINS + 1)
    label = "H(s, a): standard deviation of Q, in reward units"
    return _kinds(title, label, spreads, edges, border, "95 % of recorded actions below")


def surprise(panels: dict[str, np.ndarray], title: str) -> Panel:
    """The surprise of the same actions with the border of the risk set; random actions may lie far to the right of it."""
    values = {kind: panels[f"{kind}_surprise"] for kind in KINDS}
    border = float(panels["surprise_border"][0])
    low = min(float(np.quantile(found, 0.005)) for found in values.values())
    high = max(border, *(float(np.quantile(found, 0.995)) for found in values.values()))
    ordinary = max(border, *(float(np.quantile(values[kind], 0.995)) for kind in ("recorded", "policy")))
    high = min(high, ordinary + (ordinary - low))  # as much room for the surprising as for the ordinary
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    return _kinds(title, "surprise: -log p(a | s)", values, edges, border, "border of the risk set")


def _kinds(
    title: str, label: str, values: dict[str, np.ndarray], edges: np.ndarray, border: float, border_label: str
) -> Panel:
    """Densities of a number over kinds of actions; what lies outside of the edges still counts."""
    series = []
    for kind, (name, colour) in KINDS.items():
        heights = np.histogram(values[kind], edges)[0] / (len(values[kind]) * np.diff(edges))
        above = f"{name}: {(values[kind] > border).mean():.0%} above"
        series.append(Series(above, edges, heights, colour, "steps"))
    return Panel(title, label, "density", series, [Mark("x", border, border_label)], y_limits=_headroom(series))


def random_quantile(panels: dict[str, np.ndarray]) -> float:
    """The paper's check: which quantile of H over random actions the 95 % quantile over recorded ones is."""
    return border_quantile(panels["recorded_uncertainty"], panels["random_uncertainty"])


def _logged(
    seeds: Sequence[SavedSeed], column: str, colour: str, label: str, zero_means_none: bool = False
) -> Series | None:
    """A logged metric over steps: the mean of the seeds, shaded from the lowest to the highest."""
    curves = [
        {
            step: value
            for step, value in zip(seed.metrics["step"], seed.metrics[column], strict=True)
            if value != 0.0 or not zero_means_none
        }
        for seed in seeds
        if column in seed.metrics
    ]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    if not steps:
        return None
    values = np.array([[curve[step] for step in steps] for curve in curves])
    band = (values.min(axis=0), values.max(axis=0)) if len(curves) > 1 else (None, None)
    return Series(label, steps, values.mean(axis=0), colour, "line", *band, width=1.5)


def training_course(seeds: Sequence[SavedSeed], name: str) -> dict[str, Panel]:
    """Mean Q of the critics, and how risky the actions are, during training; by kind, what the runs have logged.

    Runs that ask H show its mean over the target actions and the border of the risk set; it is not asked for while the
    policy is extracted from the recorded returns, so its curves may begin later. Runs that hold the policy to the data show
    how far it is from it, and the share of its actions in the risk set.
    """
    course = {
        "q": (
            "mean Q over a batch",
            _logged(seeds, "q_mean", "blue", "mean Q"),
            _logged(seeds, "policy_q", "green", "mean Q of the policy's actions"),
        ),
        "uncertainty": (
            "H of the target actions",
            _logged(seeds, "uncertainty", "vermillion", "mean H", zero_means_none=True),
            _logged(seeds, "uncertainty_border", "grey", "border of the risk set", zero_means_none=True),
        ),
    }
    distance = _logged(seeds, "policy_distance", "vermillion", "mean distance to the data")
    if distance is not None:  # then the logged share is that of the policy's actions
        flagged = _logged(seeds, "risk_share", "purple", "in the risk set")
        course["distance"] = ("distance of the policy's actions", distance, None)
        course["risk"] = ("share of the policy's actions", flagged, None)
    panels = {}
    for kind, (label, *series) in course.items():
        present = [one for one in series if one is not None]
        if present:
            limits = (None if kind == "q" else 0.0, None)
            panels[kind] = Panel(
                name, "gradient steps", label, present, x_limits=(0.0, None), y_limits=limits, steps=True
            )
    return panels
