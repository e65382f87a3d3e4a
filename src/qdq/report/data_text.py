"""A dataset's card for the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"


def print_data_card(summary: dict[str, Any], console: Console) -> None:
    """Print what `inspect_dataset` found."""
    where = summary["environment"] or "no simulator"
    console.print(f"[bold]{escape(str(summary['name']))}[/bold]  {escape(str(where))}, read from {summary['source']}")
    console.print(
        f"{summary['transitions']:,} transitions in {summary['episodes']:,} episodes, observations of "
        f"{summary['observation_size']}, actions of {summary['action_size']}, {summary['megabytes']:,.1f} MB"
    )
    if summary["score"] is not None:
        origin = escape(str(summary["reference"]["origin"]))
        console.print(f"mean score {summary['score']:.1f} of 100 (reference: {origin})")
    ends, coverage = summary["ends"], summary["coverage"]
    console.print(
        f"episodes ending in a terminal {ends['terminal_episodes']:.1%}, truncated {ends['truncated_episodes']:.1%}; "
        f"duplicated transitions {summary['duplicate_transitions']:,}"
    )
    console.print(_spreads(summary))
    console.print(_columns(summary))
    distance = coverage["neighbour_distance"]
    console.print(
        f"coverage: {coverage['effective_state_dimensions']:.1f} effective state dimensions, "
        f"{coverage['effective_action_dimensions']:.1f} of actions, action spread {coverage['action_spread']:.2f} of "
        f"uniform, neighbour distance {'none' if distance is None else format(distance, '.2f')}, "
        f"actions at bounds {summary['actions']['at_bounds']:.1%}"
    )
    preview = summary["q_dataset"]
    if "windows" in preview:
        console.print(
            f"Q dataset (width {preview['width']}, stride {preview['stride']}, discount {preview['discount']:g}): "
            f"{preview['windows']:,} windows, {preview['exact_share']:.1%} of all steps have a complete one"
        )
    console.print(f"sha256 {summary['sha256']}")
    for fault in sorted(summary["warnings"], key=lambda fault: fault["level"] == "note"):
        style = "dim" if fault["level"] == "note" else "yellow"
        console.print(f"[{style}]{fault['level']}: {escape(fault['message'])}[/{style}]", highlight=False)


def _spreads(summary: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("", "min", "mean", "median", "max"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_column("histogram", no_wrap=True)
    rows = {"length": "lengths", "return": "returns", "reward": "rewards", "truncated Q": "q_dataset"}
    for label, key in rows.items():
        spread = summary[key]
        if "histogram" in spread:
            numbers = (f"{spread[value]:,.4g}" for value in ("min", "mean", "median", "max"))
            table.add_row(label, *numbers, _bars(spread["histogram"]["counts"]))
    return table


def _columns(summary: dict[str, Any]) -> Table:
    """The ranges of actions and of the first observation columns."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("column", "min", "mean", "std", "max"):
        table.add_column(heading, justify="left" if heading == "column" else "right")
    for label, key, limit in (("action", "actions", 12), ("observation", "observations", 12)):
        columns = summary[key]
        count = len(columns["min"])
        for i in range(min(count, limit)):
            table.add_row(f"{label} {i}", *(f"{columns[value][i]:.4g}" for value in ("min", "mean", "std", "max")))
        if count > limit:
            table.add_row(f"{label} ... {count - 1}", "", "", "", "")
    return table


def _bars(counts: list[int]) -> str:
    """Counts as a line of bars; pairs of bins are joined to keep it short."""
    joined = [sum(counts[i : i + 2]) for i in range(0, len(counts), 2)]
    top = max(joined) or 1
    return "".join(BARS[0 if not value else max(1, round(8 * value / top))] for value in joined)
