"""A dataset's card: one self-contained HTML file with its numbers, its plots and its warnings."""

import io
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.episodes import Dataset
from qdq.storage import write_text

# matplotlib cannot draw in "the page's text colour", so it draws in these and they are replaced by CSS variables.
INK, ACCENT, SECOND, FAINT = "#010203", "#040506", "#070809", "#0a0b0c"
VARIABLES = {INK: "var(--ink)", ACCENT: "var(--accent)", SECOND: "var(--second)", FAINT: "var(--line)"}
SCATTER_POINTS = 3_000

STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --panel: #ffffff; --ink: #22262b; --soft: #646b73; --line: #e2e0db;
  --accent: #2f6f8f; --second: #c8662b; --warn: #fdf1e3; --warn-ink: #8a4a12; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --panel: #1c2024; --ink: #e6e8ea; --soft: #98a0a8;
  --line: #333a41; --accent: #67b3d6; --second: #ee9a5f; --warn: #33261a; --warn-ink: #f3bd8b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2rem 1.1rem 3rem; }
h1 { font-size: 1.8rem; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 0.7rem; }
.lead { color: var(--soft); margin: 0.2rem 0 1.4rem; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(45%, 210px), 1fr)); gap: 0.7rem; }
.tile, figure, .table { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 0.7rem 0.9rem; } .tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 0.85rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); gap: 0.9rem; }
figure { margin: 0; padding: 0.8rem 0.8rem 0.6rem; min-width: 0; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { color: var(--soft); font-size: 0.85rem; min-height: 4.2rem; }
figcaption b { color: var(--ink); display: block; font-size: 0.95rem; }
ul.warnings { list-style: none; margin: 1.2rem 0 0; padding: 0; display: grid; gap: 0.5rem; }
ul.warnings li { background: var(--warn); color: var(--warn-ink); border-radius: 10px; padding: 0.6rem 0.9rem; }
ul.warnings li.note { background: none; border: 1px solid var(--line); color: var(--soft); }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 0.88rem; }
th, td { padding: 0.35rem 0.8rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr + tr td { border-top: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } code { font-size: 0.85rem; overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: 0.85rem; margin-top: 2.2rem; }
"""


def write_data_card(dataset: Dataset, summary: dict[str, Any], path: Path) -> None:
    """Write the card of `dataset`, given what `inspect_dataset` found."""
    write_text(Path(path), data_card(dataset, summary))


def data_card(dataset: Dataset, summary: dict[str, Any]) -> str:
    """The card as HTML text; nothing in it loads anything from elsewhere."""
    name = escape(str(summary["name"]))
    origin = " · ".join(
        escape(str(part))
        for part in (summary["environment"] or "no simulator", summary["task"], f"read from {summary['source']}")
        if part
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{name}: dataset card</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{name}</h1><p class="lead">{origin}</p>'
        f'<div class="tiles">{_tiles(summary)}</div>{_warnings(summary)}'
        f'<h2>What happened</h2><div class="plots">{"".join(_plots(dataset, summary))}</div>'
        f"<h2>Actions</h2>{_table(summary['actions'], bounds=True)}"
        f"<h2>Observations</h2>{_table(summary['observations'])}"
        f"<footer>sha256 of the arrays <code>{escape(summary['sha256'])}</code><br>{_reference(summary)}</footer>"
        "</main></body></html>\n"
    )


def _tiles(summary: dict[str, Any]) -> str:
    ends, coverage = summary["ends"], summary["coverage"]
    score = summary["score"]
    distance = coverage["neighbour_distance"]
    tiles = [
        (f"{summary['transitions']:,}", "transitions"),
        (f"{summary['episodes']:,}", "episodes"),
        (f"{summary['observation_size']} → {summary['action_size']}", "observation → action"),
        (f"{summary['returns']['mean']:,.4g}", "mean return"),
        ("none" if score is None else f"{score:.1f}", "mean score, of 100"),
        (f"{ends['terminal_episodes']:.0%} / {ends['truncated_episodes']:.0%}", "terminal / truncated"),
        (f"{coverage['action_spread']:.2f}", "action spread, 1 = uniform"),
        ("none" if distance is None else f"{distance:.2f}", "neighbour distance, 1 = scattered"),
    ]
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in tiles
    )


def _warnings(summary: dict[str, Any]) -> str:
    if not summary["warnings"]:
        return '<ul class="warnings"><li class="note">No classic fault was found.</li></ul>'
    ordered = sorted(summary["warnings"], key=lambda fault: fault["level"] == "note")
    items = "".join(f'<li class="{escape(fault["level"])}">{escape(fault["message"])}</li>' for fault in ordered)
    return f'<ul class="warnings">{items}</ul>'


def _reference(summary: dict[str, Any]) -> str:
    reference = summary["reference"]
    if reference is None:
        return "No reference returns are known, so returns are not turned into scores."
    return (
        f"Scores: 0 is a return of {reference['random']:.6g}, 100 is {reference['expert']:.6g} "
        f"(reference: {escape(str(reference['origin']))})."
    )


def _table(columns: dict[str, Any], bounds: bool = False) -> str:
    keys = ["low", "min", "mean", "std", "max", "high", "at bounds"] if bounds else ["min", "mean", "std", "max"]
    marks: dict[int, str] = {}
    for column in columns.get("constant", []):
        marks[column] = " constant"
    for first, column in columns.get("duplicates", []):
        marks[column] = f" = {first}"
    rows = []
    for i in range(len(columns["min"])):
        shares = columns.get("at_bounds_by_dimension", [])
        cells = [f"{shares[i]:.1%}" if key == "at bounds" else f"{columns[key][i]:.4g}" for key in keys]
        rows.append(
            f"<tr><td>{i}{escape(marks.get(i, ''))}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )
    head = "".join(f"<th>{key}</th>" for key in ["column", *keys])
    return f'<div class="table"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _plots(dataset: Dataset, summary: dict[str, Any]) -> list[str]:
    preview, coverage = summary["q_dataset"], summary["coverage"]
    plots = [
        _figure("Returns", "Sum of rewards of each episode.", _histogram(summary["returns"], "return", "episodes")),
        _figure("In the order of recording", "A replay buffer climbs; one fixed policy does not.", _over_time(dataset)),
        _figure("Lengths", "Orange: episodes that ended in a terminal.", _lengths(dataset)),
        _figure("Within an episode", "Mean reward by step; shaded: share of episodes still running.", _within(dataset)),
        _figure(
            "Rewards",
            "Of single steps, on a logarithmic count.",
            _histogram(summary["rewards"], "reward", "steps", True),
        ),
        _figure("Actions", "Each column is one dimension, from its low to its high bound.", _action_map(dataset)),
        _figure(
            "Coverage",
            f"Two main directions of (s, a); {coverage['occupied_cells']:.0%} of the cells seen.",
            _map(coverage),
        ),
        _figure(
            "Observations", "Each column: range (thin), middle 90 % (thick), median; in deviations.", _ranges(dataset)
        ),
    ]
    if "windows" in preview:
        caption = (
            f"{preview['windows']:,} windows of {preview['width']} steps, stride {preview['stride']}, discount "
            f"{preview['discount']:g}; {preview['exact_share']:.0%} of all steps have a complete window."
        )
        plots.append(_figure("Truncated Q", caption, _histogram(preview, "truncated return", "windows")))
    return plots


def _figure(title: str, caption: str, svg: str) -> str:
    return f"<figure><figcaption><b>{escape(title)}</b>{escape(caption)}</figcaption>{svg}</figure>"


def _axes() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 2.5), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=10, length=3, color=FAINT)
    axes.patch.set_alpha(0.0)
    return figure, axes


def _svg(figure: Any, axes: Any, x: str, y: str) -> str:
    """The figure as inline SVG in the page's own colours."""
    import matplotlib

    axes.set_xlabel(x, color=INK, fontsize=10)
    axes.set_ylabel(y, color=INK, fontsize=10)
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": x + y}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def _histogram(spread: dict[str, Any], x: str, y: str, logarithmic: bool = False) -> str:
    figure, axes = _axes()
    counts, edges = np.array(spread["histogram"]["counts"]), np.array(spread["histogram"]["edges"])
    axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=ACCENT, linewidth=0)
    axes.axvline(spread["mean"], color=SECOND, linewidth=1.5)
    if logarithmic:
        axes.set_yscale("log")
    return _svg(figure, axes, f"{x} (line: mean {spread['mean']:.4g})", y)


def _over_time(dataset: Dataset) -> str:
    figure, axes = _axes()
    keep = np.unique(np.linspace(0, dataset.episodes - 1, min(dataset.episodes, SCATTER_POINTS)).astype(int))
    axes.plot(keep, dataset.episode_returns[keep], ".", color=ACCENT, markersize=3, alpha=0.7)
    window = max(1, dataset.episodes // 25)
    if window > 1:
        smooth = np.convolve(dataset.episode_returns, np.ones(window) / window, "valid")
        index = np.unique(np.linspace(0, len(smooth) - 1, 200).astype(int))
        axes.plot(index + window / 2, smooth[index], color=SECOND, linewidth=1.5)
    return _svg(figure, axes, "episode", "return")


def _within(dataset: Dataset) -> str:
    """Mean reward at each step of an episode, and the share of episodes that last so long."""
    figure, axes = _axes()
    longest = int(dataset.lengths.max())
    step = np.arange(dataset.transitions) - np.repeat(dataset.starts, dataset.lengths)
    alive = np.bincount(step, minlength=longest)
    reward = np.bincount(step, weights=dataset.rewards, minlength=longest) / alive
    bins = np.array_split(np.arange(longest), min(longest, 100))
    centres = [piece.mean() for piece in bins]
    axes.plot(centres, [reward[piece].mean() for piece in bins], color=ACCENT, linewidth=1.6)
    share = axes.twinx()
    running = [alive[piece].mean() / dataset.episodes for piece in bins]
    share.fill_between(centres, running, color=SECOND, alpha=0.25, linewidth=0)
    share.set_ylim(0.0, 1.05)
    share.set_axis_off()
    return _svg(figure, axes, "step of the episode", "mean reward")


def _lengths(dataset: Dataset) -> str:
    figure, axes = _axes()
    terminal = dataset.terminals[np.cumsum(dataset.lengths) - 1]
    edges = np.histogram_bin_edges(dataset.lengths, bins=min(40, max(1, int(np.ptp(dataset.lengths)) + 1)))
    parts = [dataset.lengths[~terminal], dataset.lengths[terminal]]
    axes.hist(parts, bins=list(edges), stacked=True, color=[ACCENT, SECOND])
    return _svg(figure, axes, "steps", "episodes")


def _image(axes: Any, strength: np.ndarray, extent: tuple[float, float, float, float]) -> None:
    """Values from 0 to 1 as shades that stand out on light and on dark paper."""
    from matplotlib.colors import LinearSegmentedColormap

    shade = LinearSegmentedColormap.from_list(
        "seen", [(0.24, 0.55, 0.70, 0.0), (0.24, 0.55, 0.70, 0.75), (0.93, 0.52, 0.22, 1.0)]
    )
    axes.imshow(
        strength, aspect="auto", origin="lower", extent=extent, cmap=shade, vmin=0.0, vmax=1.0, interpolation="nearest"
    )


def _action_map(dataset: Dataset) -> str:
    figure, axes = _axes()
    scaled = (dataset.actions - dataset.action_low) / (dataset.action_high - dataset.action_low)
    counts = np.stack([np.histogram(column, bins=40, range=(0.0, 1.0))[0] for column in scaled.T], axis=1)
    _image(axes, counts / counts.max(axis=0), (-0.5, dataset.action_size - 0.5, 0.0, 1.0))
    axes.set_yticks([0, 0.5, 1], ["low", "middle", "high"])
    axes.set_xticks(np.unique(np.linspace(0, dataset.action_size - 1, min(dataset.action_size, 10)).astype(int)))
    return _svg(figure, axes, "action dimension", "")


def _map(coverage: dict[str, Any]) -> str:
    figure, axes = _axes()
    grid = coverage["map"]
    strength = np.log1p(np.array(grid["counts"]).T)
    _image(axes, strength / max(strength.max(), 1e-9), (grid["x"][0], grid["x"][-1], grid["y"][0], grid["y"][-1]))
    return _svg(figure, axes, "first direction", "second direction")


def _ranges(dataset: Dataset) -> str:
    figure, axes = _axes()
    step = max(1, len(dataset.observations) // 50_000)
    sample = dataset.observations[::step].astype(np.float64)
    deviation = np.where(sample.std(axis=0) > 0, sample.std(axis=0), 1.0)
    low, five, middle, ninety_five, high = np.quantile(
        (sample - sample.mean(axis=0)) / deviation, [0, 0.05, 0.5, 0.95, 1], axis=0
    )
    columns = np.arange(sample.shape[1])
    axes.vlines(columns, low, high, color=FAINT, linewidth=1.2)
    axes.vlines(columns, five, ninety_five, color=ACCENT, linewidth=4)
    axes.plot(columns, middle, "o", color=SECOND, markersize=3)
    axes.set_ylim(max(low.min(), -8.0) - 0.3, min(high.max(), 8.0) + 0.3)
    return _svg(figure, axes, "observation column", "deviations from the mean")
