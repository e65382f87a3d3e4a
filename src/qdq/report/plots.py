"""The three pictures of a run: learning curve, Q distribution, uncertainty. Each is a function of saved data."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from qdq import storage, uncertainty
from qdq.data.blocks import take
from qdq.data.episodes import Dataset
from qdq.data.prepare import Prepared, prepare

matplotlib.use("Agg")

INK, ACCENT, SECOND, QUIET = "#1f2933", "#1d4ed8", "#dc6803", "#8a97a6"
SAMPLE_ROWS = 4_000


def draw_run(folder: Path, dataset: Dataset, memory: int | None = None) -> list[Path]:
    """Draw every picture that the run has data for; `memory` is the run's budget."""
    from qdq.api import Run

    run = Run(folder)
    drawn = []
    if run.result["score"] is not None:
        drawn.append(_save(learning_curve(run.result), folder / "learning_curve.png"))
    if (folder / "q_distribution").exists():
        prepared = prepare(dataset, run.config, memory)
        drawn.append(_save(q_distribution(run.distribution, prepared, dataset.name), folder / "q_distribution.png"))
        network = run.deployed_policy().network
        drawn.append(
            _save(
                uncertainty_panels(run.distribution, network, prepared, run.uncertainty_rule, dataset.name),
                folder / "uncertainty.png",
            )
        )
    return drawn


def overview(folder: Path, target: Path) -> Path:
    """The pictures of a run side by side in one file."""
    from matplotlib.image import imread

    names = ("learning_curve", "q_distribution", "uncertainty")
    images = [imread(folder / f"{name}.png") for name in names if (folder / f"{name}.png").exists()]
    ratios = [image.shape[1] / image.shape[0] for image in images]
    figure = Figure(figsize=(3.2 * sum(ratios), 3.2), layout="constrained")
    for axes, image in zip(figure.subplots(1, len(images), width_ratios=ratios, squeeze=False)[0], images, strict=True):
        axes.imshow(image)
        axes.axis("off")
    return _save(figure, target, dots_per_inch=110)


def _save(figure: Figure, path: Path, dots_per_inch: int = 150) -> Path:
    with storage.atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=dots_per_inch)
    return path


def _axes(figure: Figure, *position: int, **options: Any) -> Any:
    axes = figure.add_subplot(*position, **options)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    return axes


def _legend(axes: Any) -> None:
    axes.legend(fontsize=8.5, facecolor="white", edgecolor="none", framealpha=0.9)


def learning_curve(result: dict[str, Any]) -> Figure:
    """Score over training steps: every seed thin, their mean bold, the behaviour as a dashed line."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = _axes(figure)
    curves = [[(e["step"], e["score"]) for e in seed["evaluations"]] for seed in result["seeds"] if seed["evaluations"]]
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=ACCENT, alpha=0.35 if len(curves) > 1 else 1.0, linewidth=1.2)
    if len(curves) > 1:
        steps = [step for step, _ in curves[0]]
        mean = np.mean([[score for _, score in curve] for curve in curves], axis=0)
        axes.plot(steps, mean, color=ACCENT, linewidth=2.4, label=f"mean of {len(curves)} seeds")
    behaviour = result["dataset"]["behaviour_score"]
    if behaviour is not None:
        axes.axhline(behaviour, color=SECOND, linestyle="--", linewidth=1.5, label=f"behaviour: {behaviour:.1f}")
    final = result["score"]
    label = f"final: {final['mean']:.1f}" + (f" ± {final['std']:.1f}" if final["seeds"] > 1 else "")
    axes.plot([], [], " ", label=label)
    axes.set_xlabel("gradient steps")
    axes.set_ylabel("score (0 random, 100 expert)" if result["score_unit"].startswith("score") else "return")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.set_title(
        f"{result['algorithm']} on {result['dataset']['name']} ({result['preset']})", fontsize=11, loc="left", color=INK
    )
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    _legend(axes)
    return figure


def _rows(count: int, limit: int = SAMPLE_ROWS) -> np.ndarray:
    return np.linspace(0, count - 1, min(count, limit)).astype(int)


def q_distribution(distribution: Any, prepared: Prepared, name: str) -> Figure:
    """Truncated returns of the data against one sample of the learned distribution for each window, and its calibration."""
    chosen = _rows(len(prepared.windows.index))
    batch = prepared.transitions.at(jnp.asarray(take(prepared.windows.index, chosen)))
    truth = take(prepared.windows.values, chosen)
    samples = np.asarray(distribution.sample(batch.observations, batch.actions, jax.random.key(0), 1))[0]
    few = slice(None, None, 4)  # 99 samples each: a quarter of the rows keeps this within 100 MB
    levels = np.asarray(distribution.sample(batch.observations[few], batch.actions[few], jax.random.key(1), 99))
    rank = ((levels < truth[few]).sum(axis=0) + 0.5) / 100
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    axes = _axes(figure, 1, 2, 1)
    bins = np.histogram_bin_edges(truth, bins=60).tolist()
    axes.hist(truth, bins, density=True, color=QUIET, alpha=0.55, label="truncated returns of the data")
    axes.hist(
        np.clip(samples, bins[0], bins[-1]),
        bins,
        density=True,
        histtype="step",
        color=ACCENT,
        linewidth=1.8,
        label="learned distribution",
    )
    axes.set_xlabel("Q (discounted return within the window)")
    axes.set_ylabel("density")
    _legend(axes)
    axes.set_title(f"Q distribution of {name}", fontsize=11, loc="left", color=INK)
    axes = _axes(figure, 1, 2, 2)
    axes.hist(rank, np.linspace(0, 1, 21).tolist(), density=True, color=ACCENT, alpha=0.75)
    axes.axhline(1.0, color=SECOND, linestyle="--", linewidth=1.5)
    axes.set_xlabel("rank of the true return among 99 samples")
    axes.set_title("Calibration: flat is right (training windows)", fontsize=11, loc="left", color=INK)
    return figure


def uncertainty_panels(
    distribution: Any, policy: Any, prepared: Prepared, rule: uncertainty.Config, name: str
) -> Figure:
    """H of recorded, of the policy's and of random actions at the same states, with the 95 % line of the recorded ones."""
    batch = prepared.transitions.at(jnp.asarray(_rows(prepared.dataset.transitions)))
    key = jax.random.key(0)
    actions = {
        "recorded actions": (batch.actions, QUIET),
        "the policy's actions": (policy(batch.observations), ACCENT),
        "random actions": (jax.random.uniform(key, batch.actions.shape, minval=-1.0, maxval=1.0), SECOND),
    }
    spread = {
        label: (np.asarray(uncertainty.mean_and_std(distribution, batch.observations, action, rule, key)[1]), color)
        for label, (action, color) in actions.items()
    }
    border = np.quantile(spread["recorded actions"][0], 0.95)
    top = max(np.quantile(values, 0.995) for values, _ in spread.values())
    bins = np.linspace(0, top, 60).tolist()
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = _axes(figure)
    for label, (values, color) in spread.items():
        above = (values > border).mean()
        axes.hist(
            values,
            bins,
            density=True,
            histtype="step",
            linewidth=1.8,
            color=color,
            label=f"{label}: {above:.0%} above the line",
        )
    axes.axvline(border, color=INK, linestyle="--", linewidth=1.2, label="95 % of recorded actions")
    axes.set_xlabel("H(s, a): standard deviation of Q, in reward units")
    axes.set_ylabel("density")
    axes.set_title(f"Uncertainty of Q on {name}", fontsize=11, loc="left", color=INK)
    _legend(axes)
    return figure
