"""The live table of a sweep: redrawn on a terminal, plain lines elsewhere; and the table at its end."""

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from qdq.sweep.progress import Row

COLUMNS = ("queued", "running", "done", "failed")


class Display(Protocol):
    """What a sweep tells a person."""

    def line(self, text: str) -> None: ...
    def update(self, rows: Sequence[Row], summary: str, final: bool = False) -> None: ...
    def end(self) -> None: ...


class Lines:
    """A line for every event, and once a minute how far everything is."""

    def __init__(self, interval: float = 60.0):
        self.interval, self.said = interval, time.monotonic()

    def line(self, text: str) -> None:
        print(text, flush=True)

    def update(self, rows: Sequence[Row], summary: str, final: bool = False) -> None:
        if final or time.monotonic() - self.said > self.interval:
            self.said = time.monotonic()
            self.line(summary)

    def end(self) -> None: ...


class Live:
    """A table that is redrawn in place, with events above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.console = Console()
        self.live: Any = RichLive(console=self.console, auto_refresh=False)
        self.live.start()
        self.drawn = 0.0

    def line(self, text: str) -> None:
        self.live.console.print(text, highlight=False, markup=False)

    def update(self, rows: Sequence[Row], summary: str, final: bool = False) -> None:
        if final or time.monotonic() - self.drawn > 0.5:
            self.drawn = time.monotonic()
            self.live.update(draw(rows, summary), refresh=True)

    def end(self) -> None:
        self.live.stop()


def draw(rows: Sequence[Row], summary: str) -> Any:
    """The table of a sweep in progress."""
    from rich.table import Table

    table = Table(caption=summary, caption_justify="left")
    for column in ("dataset", "method", *COLUMNS, "steps", "score so far"):
        table.add_column(column, justify="left" if column in ("dataset", "method") else "right")
    for row in rows:
        counts = [str(row.counts[name] or "") for name in COLUMNS]
        table.add_row(row.dataset, row.method, *counts, f"{row.share:.0%}", _mean(row.scores))
    return table


def _mean(scores: Sequence[float]) -> str:
    return f"{sum(scores) / len(scores):.1f} ({len(scores)})" if scores else ""


def choose() -> Display:
    """The live table on a terminal, plain lines otherwise."""
    return Live() if sys.stdout.isatty() else Lines()
