"""A chart is plain data; this module draws it, for a file or for a page, and writes its numbers as CSV.

Every picture of the project is made in two steps: a function of saved data returns a `Chart`, and the functions here
draw it. So PNG, SVG, CSV and the page with its hover values can never disagree.
"""

import csv
import io
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qdq import storage

# Okabe and Ito's colours, which people with colour blindness can tell apart, darkened where they are lines on white. On a
# page each becomes a CSS variable of its name, so that dark pages have their own shades.
COLOURS = {
    "ink": "#22262b",
    "soft": "#646b73",
    "line": "#e2e0db",
    "panel": "#ffffff",
    "blue": "#0072b2",
    "vermillion": "#d55e00",
    "green": "#00896a",
    "purple": "#b5588f",
    "amber": "#c07f00",
    "sky": "#3a94c9",
    "grey": "#7b858f",
}
SHADES = ((0.24, 0.55, 0.70, 0.0), (0.24, 0.55, 0.70, 0.75), (0.93, 0.52, 0.22, 1.0))  # stand out on light and on dark
DIGITS = 6  # significant digits of the numbers behind a picture

Kind = Literal["line", "steps", "filled", "points", "interval", "stack", "range", "share"]


@dataclass(frozen=True, eq=False)
class Series:
    """One set of numbers in a panel.

    `steps` and `filled` are histograms, with one edge more in `x` than heights in `y`; `interval` and `stack` are rows of a
    panel with categories, with `y` the row; `range` is an upright bar from `low` to `high`; `share` runs from 0 to 1 over the
    height of the panel.
    """

    name: str
    x: Any
    y: Any
    colour: str = "blue"
    kind: Kind = "line"
    low: Any = None
    high: Any = None
    dash: str = "-"
    width: float = 1.8
    opacity: float = 1.0
    legend: bool = True


@dataclass(frozen=True)
class Mark:
    """A straight line across a panel: at a value of x or of y."""

    axis: Literal["x", "y"]
    value: float
    label: str = ""
    colour: str = "ink"
    dash: str = "--"


@dataclass(frozen=True, eq=False)
class Image:
    """A grid of strengths from 0 to 1, its first row at the bottom."""

    strength: np.ndarray
    extent: tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    series: Sequence[Series] = ()
    marks: Sequence[Mark] = ()
    categories: Sequence[str] = ()  # names of rows, from top to bottom
    image: Image | None = None
    x_limits: tuple[float | None, float | None] = (None, None)
    y_limits: tuple[float | None, float | None] = (None, None)
    logarithmic: bool = False
    y_ticks: tuple[Sequence[float], Sequence[str]] | None = None
    whole_numbers: bool = False  # x counts columns
    steps: bool = False  # x counts training steps: written as 5k, 100k, 1M


@dataclass(frozen=True, eq=False)
class Chart:
    """Panels under one name, which is also that of its files."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 3
    size: tuple[float, float] = (4.6, 2.9)  # inches of one panel


def draw(chart: Chart) -> Any:
    """The chart as a matplotlib figure."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(chart.columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    with matplotlib.rc_context({"text.parse_math": False, "font.family": "sans-serif", "axes.unicode_minus": True}):
        figure = Figure(figsize=(chart.size[0] * columns, chart.size[1] * rows), layout="constrained")
        for number, panel in enumerate(chart.panels):
            _draw_panel(figure.add_subplot(rows, columns, number + 1), panel)
    return figure


def _draw_panel(axes: Any, panel: Panel) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(COLOURS["line"])
    if panel.image is None:
        axes.grid(True, axis="x" if panel.categories else "both", color=COLOURS["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=COLOURS["ink"], labelsize=9, length=3, color=COLOURS["line"])
    axes.patch.set_alpha(0.0)
    if panel.image is not None:
        _draw_image(axes, panel.image)
    if panel.logarithmic:
        axes.set_yscale("log")
    entries = [entry for entry in (_draw_series(axes, panel, series) for series in panel.series) if entry]
    for mark in panel.marks:
        line = (axes.axvline if mark.axis == "x" else axes.axhline)(
            mark.value, color=COLOURS[mark.colour], linestyle=mark.dash, linewidth=1.1
        )
        if mark.label:
            entries.append((line, mark.label))
    if panel.categories:
        axes.set_yticks(
            range(len(panel.categories)),
            ["\n".join(_shorten(line, 34) for line in name.split("\n")) for name in panel.categories],
        )
        axes.set_ylim(len(panel.categories) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
    if panel.y_ticks is not None:
        axes.set_yticks(*panel.y_ticks)
    axes.set_xlim(*panel.x_limits)
    if not panel.categories:
        axes.set_ylim(*panel.y_limits)
    if panel.whole_numbers:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if panel.steps:
        axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.set_xlabel(panel.x, color=COLOURS["ink"], fontsize=9.5)
    axes.set_ylabel(panel.y, color=COLOURS["ink"], fontsize=9.5)
    if panel.title:
        axes.set_title(_shorten(panel.title, 48), fontsize=10, loc="left", color=COLOURS["ink"])
    if entries:
        handles, labels = zip(*entries, strict=True)
        _legend(axes, handles, [_shorten(label, 44) for label in labels], panel)


def _legend(axes: Any, handles: Sequence[Any], labels: Sequence[str], panel: Panel) -> None:
    above = bool(panel.categories)  # beside rows there is no free corner
    legend = (axes.figure if above else axes).legend(
        handles,
        [f" {label}" if label.startswith("_") else label for label in labels],  # matplotlib would hide it
        loc="outside upper left" if above else "best",
        ncols=min(len(labels), 3) if above else 1,
        fontsize=8.5,
        facecolor=COLOURS["panel"],
        edgecolor="none",
        framealpha=0.7,
        fancybox=False,
        labelcolor=COLOURS["ink"],
        handlelength=1.6,
        borderaxespad=0.3,
        labelspacing=0.25,
        columnspacing=1.2,
    )
    legend.set_zorder(10)


def _draw_image(axes: Any, image: Image) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shade = LinearSegmentedColormap.from_list("seen", list(SHADES))
    axes.imshow(
        image.strength,
        aspect="auto",
        origin="lower",
        extent=image.extent,
        cmap=shade,
        vmin=0.0,
        vmax=1.0,
        interpolation="nearest",
    )


def _draw_series(axes: Any, panel: Panel, series: Series) -> tuple[Any, str] | None:
    """Draw one series; returns its entry of the legend."""
    colour = COLOURS[series.colour]
    x, y = np.asarray(series.x, np.float64), np.asarray(series.y, np.float64)
    look = {"color": colour, "alpha": series.opacity}
    if series.kind == "line":
        if series.low is not None and series.high is not None:
            axes.fill_between(x, series.low, series.high, color=colour, alpha=0.16, linewidth=0)
        marker = "o" if len(x) == 1 else None
        handle = axes.plot(x, y, series.dash, linewidth=series.width, marker=marker, markersize=4, **look)[0]
    elif series.kind in ("steps", "filled"):
        fill = series.kind == "filled"
        handle = axes.stairs(y, x, fill=fill, linewidth=0 if fill else series.width, linestyle=series.dash, **look)
    elif series.kind == "points":
        handle = axes.plot(x, y, "o", markersize=series.width, markeredgewidth=0, **look)[0]
    elif series.kind == "interval":
        if series.low is not None and series.high is not None:
            axes.hlines(y, series.low, series.high, linewidth=5, color=colour, alpha=0.35)
        handle = axes.plot(x, y, "o", markersize=6, **look)[0]
    elif series.kind == "stack":
        left = np.zeros(len(x)) if series.low is None else np.asarray(series.low, np.float64)
        handle = axes.barh(y, x, left=left, height=0.62, linewidth=0, **look)
    elif series.kind == "range":
        handle = axes.vlines(x, series.low, series.high, linewidth=series.width, **look)
    else:
        handle = axes.fill_between(
            x, y, color=colour, alpha=0.22, linewidth=0, transform=axes.get_xaxis_transform(), zorder=0
        )
    return (handle, series.name) if series.legend and series.name else None


def _shorten(text: str, limit: int = 40) -> str:
    """Text that cannot push a picture off the page."""
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short_number(value: float) -> str:
    """5000 as 5k, 1000000 as 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _render(figure: Any, target: Any, kind: str, salt: str, dots_per_inch: int = 200) -> None:
    import matplotlib

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif"}
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font")  # a name in a script that the font lacks
        figure.savefig(target, format=kind, dpi=dots_per_inch, metadata=metadata, transparent=kind == "svg")


def save_picture(chart: Chart, path: Path, dots_per_inch: int = 150) -> Path:
    """Write the chart as one PNG file."""
    with storage.atomic_path(path) as temporary:
        _render(draw(chart), temporary, "png", chart.name, dots_per_inch)
    return path


def save(chart: Chart, folder: Path) -> list[Path]:
    """Write NAME.png, NAME.svg and NAME.csv; a name with folders in it keeps them."""
    figure, written = draw(chart), []
    for kind in ("png", "svg"):
        path = folder / f"{chart.name}.{kind}"
        with storage.atomic_path(path) as temporary:
            _render(figure, temporary, kind, chart.name)
        written.append(path)
    path = folder / f"{chart.name}.csv"
    storage.write_text(path, to_csv(chart))
    return [*written, path]


def to_csv(chart: Chart) -> str:
    """The numbers behind the chart, one row each. A histogram's row is its bin, from x to x_end."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["panel", "series", "x", "x_end", "y", "low", "high"])
    for panel in chart.panels:
        for series in panel.series:
            writer.writerows([cell(panel.title), cell(series.name), *row] for row in _rows(panel, series))
        for mark in panel.marks:
            position = ["", "", _number(mark.value)] if mark.axis == "y" else [_number(mark.value), "", ""]
            writer.writerow([cell(panel.title), cell(mark.label or "line"), *position, "", ""])
        if panel.image is not None:
            for row, values in enumerate(panel.image.strength):
                for column, value in enumerate(values):
                    writer.writerow([cell(panel.title), f"row {row}", column, "", _number(value), "", ""])
    return buffer.getvalue()


def _rows(panel: Panel, series: Series) -> Iterator[list[str]]:
    x, y = list(series.x), list(series.y)
    ends = x[1:] if series.kind in ("steps", "filled") else itertools.repeat(None)
    low = itertools.repeat(None) if series.low is None else series.low
    high = itertools.repeat(None) if series.high is None else series.high
    named = series.kind in ("interval", "stack")
    for left, end, height, bottom, top in zip(x, ends, y, low, high, strict=False):
        shown = cell(panel.categories[int(height)]) if named else _number(height)
        yield [_number(left), _number(end), shown, _number(bottom), _number(top)]


def _number(value: Any) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{DIGITS}g}"


def cell(text: str) -> str:
    """Text for a CSV file; a spreadsheet must not take a name for a formula."""
    text = " ".join(str(text).split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def inline(chart: Chart) -> tuple[str, list[dict[str, Any]]]:
    """The chart as SVG in the colours of the page, and for each panel what its hover values need."""
    figure = draw(chart)
    buffer = io.StringIO()
    _render(figure, buffer, "svg", chart.name)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    width, height = (72.0 * inches for inches in figure.get_size_inches())
    return text, [
        _hover(axes, panel, width, height)
        for axes, panel in zip(figure.axes, chart.panels, strict=True)
        if panel.series
    ]


def _hover(axes: Any, panel: Panel, width: float, height: float) -> dict[str, Any]:
    position = axes.get_position()
    box = [position.x0 * width, (1 - position.y1) * height, position.x1 * width, (1 - position.y0) * height]
    return {
        "box": [round(value, 1) for value in box],
        "x": {"limits": _plain(axes.get_xlim()), "label": panel.x},
        "y": {"limits": _plain(axes.get_ylim()), "label": panel.y, "logarithmic": panel.logarithmic},
        "categories": list(panel.categories),
        "series": [
            {
                "name": series.name,
                "colour": series.colour,
                "kind": series.kind,
                "x": _plain(series.x),
                "y": _plain(series.y),
                "low": None if series.low is None else _plain(series.low),
                "high": None if series.high is None else _plain(series.high),
            }
            for series in panel.series
        ],
    }


def _plain(values: Any) -> list[float | None]:
    """Numbers for JSON, no longer than they need to be."""
    return [
        float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in np.asarray(values, float).tolist()
    ]
