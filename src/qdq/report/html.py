"""The pieces of our HTML pages: one file each, nothing loaded from elsewhere, every foreign text escaped."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from qdq.report.charts import Chart, inline


def asset(name: str) -> str:
    """The text of a file that ships beside this module."""
    return files("qdq.report").joinpath(name).read_text(encoding="utf-8")


def document(title: str, body: str, script: bool = False) -> str:
    """A whole page; with `script`, tables sort and filter and figures show their values."""
    # Whatever else could slip through the escaping: such a page cannot fetch, send or embed anything.
    rule = "default-src 'none'; style-src 'unsafe-inline'; img-src data:" + ("; script-src 'unsafe-inline'" * script)
    program = "<script>\n" + asset("page.js") + "</script>" if script else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{rule}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{asset('page.css')}</style></head><body>"
        f"{body}{program}</body></html>\n"
    )


def embedded(content: Any) -> str:
    """JSON inside a page: no text in it can end its element."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def figure(chart: Chart, folder: str | None = None) -> str:
    """A chart with its caption; with `folder`, also its hover values and links to its files there."""
    svg, hover = inline(chart)
    caption = f"<figcaption><b>{escape(chart.title)}</b> {escape(chart.caption)}</figcaption>"
    label = escape(f"{chart.title}. {chart.caption}", quote=True)
    plot = f'<div class="plot" role="img" aria-label="{label}">{svg}</div>'
    if folder is None:
        return f"<figure>{caption}{plot}</figure>"
    links = " ".join(
        f'<a href="{escape(folder, quote=True)}/{escape(chart.name, quote=True)}.{kind}">{kind.upper()}</a>'
        for kind in ("png", "svg", "csv")
    )
    data = f'<script type="application/json" class="hover">{embedded(hover)}</script>'
    return f'<figure class="live">{caption}{plot}{data}<p class="files">{links}</p></figure>'


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown (HTML), and what it is sorted by."""

    shown: str
    value: float | str | None = None
    numeric: bool = False
    mark: str = ""


def text(value: Any, mark: str = "") -> Cell:
    """A cell of escaped text."""
    return Cell(escape(str(value)), str(value).lower(), mark=mark)


def number(value: float | None, digits: int = 1, missing: str = "") -> Cell:
    """A cell with a number; a missing one sorts last."""
    if value is None:
        return Cell(f'<span class="soft">{escape(missing)}</span>', None, True)
    return Cell(f"{value:,.{digits}f}", float(value), True)


def table(name: str, heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Cell]], filterable: bool = True) -> str:
    """A table with a name; `heads` are (text, explanation). The page's script makes it sort and filter."""
    numeric = [bool(rows) and rows[0][i].numeric for i in range(len(heads))]
    head = "".join(
        f'<th scope="col" class="{"number" if right else "text"}" title="{escape(hint, quote=True)}">{escape(label)}</th>'
        for (label, hint), right in zip(heads, numeric, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    options = " data-filter" if filterable else ""
    return (
        f'<div class="table"><table id="{escape(name, quote=True)}" class="sortable"{options}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    classes = " ".join(filter(None, ("number" if cell.numeric else "", cell.mark)))
    value = "" if cell.value is None else str(cell.value)
    attributes = (f' class="{escape(classes, quote=True)}"' if classes else "") + (
        f' data-value="{escape(value, quote=True)}"'
    )
    return f"<td{attributes}>{cell.shown}</td>"
