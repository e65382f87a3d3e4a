"""The benchmark as one picture: processor time of every step, split into products and the rest; scaling curves."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from qdq import storage

INK, ACCENT, SECOND, QUIET = "#1f2933", "#0072b2", "#e69f00", "#8a97a6"


def save(content: dict[str, Any], out: Path) -> list[Path]:
    """Write bench.json and bench.png."""
    storage.write_json(out / "bench.json", content)
    figure = draw(content)
    with storage.atomic_path(out / "bench.png") as temporary:
        figure.savefig(temporary, format="png", dpi=150)
    return [out / "bench.json", out / "bench.png"]


def draw(content: dict[str, Any]) -> Figure:
    """Bars for the steps; below them the scaling curves, where they were measured."""
    scaling = content.get("scaling", {})
    figure = Figure(figsize=(9, 4.2 + (2.8 if scaling else 0)), layout="constrained")
    grid = figure.add_gridspec(2 if scaling else 1, max(len(scaling), 1), height_ratios=[4.2, 2.8][: 1 + bool(scaling)])
    _bars(figure.add_subplot(grid[0, :]), content["steps"])
    for column, (name, rows) in enumerate(scaling.items()):
        _curve(figure.add_subplot(grid[1, column]), name, rows)
    return figure


def _bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    names = [row["name"] for row in rows]
    products = [row["products_milliseconds"] for row in rows]
    rest = [max(row["cpu_milliseconds_per_step"] - row["products_milliseconds"], 0.0) for row in rows]
    axes.barh(names, products, color=ACCENT, label="its matrix products alone")
    axes.barh(names, rest, left=products, color=SECOND, label="everything else")
    widest = max(row["cpu_milliseconds_per_step"] for row in rows)
    for i, row in enumerate(rows):
        text = f" {row['cpu_milliseconds_per_step']:.1f} ms, utilisation {row['utilisation']:.2f}"
        axes.text(row["cpu_milliseconds_per_step"], i, text, va="center", color=INK, fontsize=9)
    axes.set_xlim(0, 1.4 * widest)
    axes.invert_yaxis()
    axes.set_xlabel("processor milliseconds per step, one core")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")


def _curve(axes: Any, name: str, rows: list[dict[str, Any]]) -> None:
    rate = "cpu_milliseconds_per_step" not in rows[0]
    key = "steps_per_second" if rate else "cpu_milliseconds_per_step"
    axes.plot([row["value"] for row in rows], [row[key] for row in rows], marker="o", color=ACCENT)
    axes.set_xscale("log", base=10 if name == "dataset size" else 2)
    axes.set_ylim(0, 1.1 * max(row[key] for row in rows))
    axes.set_xlabel(name)
    axes.set_ylabel("steps/s in all" if rate else "CPU ms", color=INK)
    axes.grid(color=QUIET, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
