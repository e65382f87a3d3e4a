"""A dataset's card: one self-contained HTML file with its numbers, its plots and its warnings."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from qdq.report import html
from qdq.report.charts import Chart, Image, Mark, Panel, Series
from qdq.storage import write_text

SIZE = (4.4, 2.6)


def write_data_card(summary: dict[str, Any], path: Path) -> None:
    """Write the card of a dataset, given what `inspect_dataset` found."""
    write_text(Path(path), data_card(summary))


def data_card(summary: dict[str, Any]) -> str:
    """The card as HTML text; nothing in it loads anything from elsewhere."""
    name = str(summary["name"])
    body = f'<main><h1>{escape(name)}</h1><p class="lead">{escape(origin(summary))}</p>{card_body(summary)}</main>'
    return html.document(f"{name}: dataset card", body)


def origin(summary: dict[str, Any]) -> str:
    """Environment, task and format of a dataset in one line."""
    parts = (summary["environment"] or "no simulator", summary["task"], f"read from {summary['source']}")
    return " · ".join(str(part) for part in parts if part)


def card_body(summary: dict[str, Any], folder: str | None = None, prefix: str = "") -> str:
    """Everything on the card below its title; with `folder`, figures link to their files there."""
    charts = "".join(html.figure(chart, folder) for chart in card_charts(summary, prefix))
    return (
        f'<div class="tiles">{_tiles(summary)}</div>{_warnings(summary)}'
        f'<h3>What happened</h3><div class="plots">{charts}</div>'
        f"<h3>Actions</h3>{_table(summary['actions'], bounds=True)}"
        f"<h3>Observations</h3>{_table(summary['observations'])}"
        f'<p class="small">sha256 of the arrays <code>{escape(str(summary["sha256"]))}</code><br>{_reference(summary)}</p>'
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
            f"<tr><td>{i}{escape(marks.get(i, ''))}</td>"
            + "".join(f'<td class="number">{cell}</td>' for cell in cells)
            + "</tr>"
        )
    head = "<th>column</th>" + "".join(f'<th class="number">{key}</th>' for key in keys)
    return f'<div class="table"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def card_charts(summary: dict[str, Any], prefix: str = "") -> list[Chart]:
    """Every picture of the card."""
    curves, preview = summary["curves"], summary["q_dataset"]
    panels = [
        ("returns", "Returns", "Sum of rewards of each episode.", _histogram(summary["returns"], "return", "episodes")),
        (
            "returns-in-order",
            "In the order of recording",
            "A replay buffer climbs; one fixed policy does not.",
            _in_order(curves["returns_in_order"]),
        ),
        ("lengths", "Lengths", "Orange: episodes that ended in a terminal.", _lengths(curves["lengths"])),
        (
            "within-episode",
            "Within an episode",
            "Mean reward by step; shaded: share of episodes still running.",
            _within(curves["within_episode"]),
        ),
        (
            "rewards",
            "Rewards",
            "Of single steps, on a logarithmic count.",
            _histogram(summary["rewards"], "reward", "steps", True),
        ),
        (
            "actions",
            "Actions",
            "Each column is one dimension, from its low to its high bound.",
            _action_map(curves["action_map"]),
        ),
        (
            "coverage",
            "Coverage",
            f"Two main directions of (s, a); {summary['coverage']['occupied_cells']:.0%} of the cells seen.",
            _map(summary["coverage"]["map"]),
        ),
        (
            "observations",
            "Observations",
            "Each column: range (thin), middle 90 % (thick), median; in deviations.",
            _ranges(curves["observation_ranges"]),
        ),
    ]
    if "windows" in preview:
        caption = (
            f"{preview['windows']:,} windows of {preview['width']} steps, stride {preview['stride']}, discount "
            f"{preview['discount']:g}; {preview['exact_share']:.0%} of all steps have a complete window."
        )
        panels.append(("truncated-q", "Truncated Q", caption, _histogram(preview, "truncated return", "windows")))
    return [Chart(f"{prefix}{name}", title, caption, [panel], size=SIZE) for name, title, caption, panel in panels]


def _histogram(spread: dict[str, Any], x: str, y: str, logarithmic: bool = False) -> Panel:
    counts = np.array(spread["histogram"]["counts"], float)
    if logarithmic:
        counts[counts == 0] = np.nan
    bars = Series(y, spread["histogram"]["edges"], counts, "blue", "filled", legend=False)
    mark = Mark("x", spread["mean"], colour="vermillion", dash="-")
    return Panel("", f"{x} (line: mean {spread['mean']:.4g})", y, [bars], [mark], logarithmic=logarithmic)


def _in_order(curve: dict[str, Any]) -> Panel:
    points = Series(
        "episode", curve["episodes"], curve["returns"], "blue", "points", width=2.5, opacity=0.6, legend=False
    )
    average = Series("moving average", curve["average_episodes"], curve["average"], "vermillion", legend=False)
    return Panel("", "episode", "return", [points, average])


def _lengths(curve: dict[str, Any]) -> Panel:
    every = Series("all", curve["edges"], curve["all"], "blue", "filled", legend=False)
    terminal = Series("ended in a terminal", curve["edges"], curve["terminal"], "vermillion", "filled", legend=False)
    return Panel("", "steps", "episodes", [every, terminal])


def _within(curve: dict[str, Any]) -> Panel:
    running = Series("share still running", curve["steps"], curve["running"], "vermillion", "share", legend=False)
    reward = Series("mean reward", curve["steps"], curve["reward"], "blue", legend=False)
    return Panel("", "step of the episode", "mean reward", [reward, running])


def _action_map(columns: list[list[float]]) -> Panel:
    image = Image(np.array(columns).T, (-0.5, len(columns) - 0.5, 0.0, 1.0))
    ticks = ([0, 0.5, 1], ["low", "middle", "high"])
    return Panel("", "action dimension", "", image=image, y_ticks=ticks, whole_numbers=True)


def _map(grid: dict[str, Any]) -> Panel:
    strength = np.log1p(np.array(grid["counts"], float).T)
    extent = (grid["x"][0], grid["x"][-1], grid["y"][0], grid["y"][-1])
    return Panel("", "first direction", "second direction", image=Image(strength / max(strength.max(), 1e-9), extent))


def _ranges(ranges: dict[str, Any]) -> Panel:
    columns = np.arange(len(ranges["median"]))
    low, high = np.array(ranges["lowest"]), np.array(ranges["highest"])
    series = [
        Series("whole range", columns, ranges["median"], "grey", "range", low, high, width=1.2, legend=False),
        Series(
            "middle 90 %",
            columns,
            ranges["median"],
            "blue",
            "range",
            ranges["low_5"],
            ranges["high_95"],
            width=4,
            legend=False,
        ),
        Series("median", columns, ranges["median"], "vermillion", "points", width=4, legend=False),
    ]
    limits = (max(low.min(), -8.0) - 0.3, min(high.max(), 8.0) + 0.3)
    return Panel("", "observation column", "deviations from the mean", series, y_limits=limits, whole_numbers=True)
