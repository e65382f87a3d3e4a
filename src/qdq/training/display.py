"""The live display: a progress bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any, Protocol

Metrics = dict[str, float]


class Display(Protocol):
    """What the stages tell a person."""

    def begin(self, stage: str, steps: int, start: int = 0) -> None: ...
    def update(self, step: int, metrics: Metrics) -> None: ...
    def score(self, text: str) -> None: ...
    def end(self) -> None: ...
    def line(self, text: str) -> None: ...


class Silent:
    """Says nothing (the default of the Python interface's inner stages and of tests)."""

    def begin(self, stage: str, steps: int, start: int = 0) -> None: ...
    def update(self, step: int, metrics: Metrics) -> None: ...
    def score(self, text: str) -> None: ...
    def end(self) -> None: ...
    def line(self, text: str) -> None: ...


class Lines:
    """Plain lines, at most one every ten seconds and one at the end of each stage."""

    def __init__(self, interval: float = 10.0):
        self.interval = interval
        self._score = ""

    def begin(self, stage: str, steps: int, start: int = 0) -> None:
        self.stage, self.steps, self.start = stage, steps, start
        self.began = self.said = time.monotonic()
        self._score = ""
        self.line(f"{stage}: {steps:,} steps")

    def update(self, step: int, metrics: Metrics) -> None:
        now = time.monotonic()
        if now - self.said < self.interval and step < self.steps:
            return
        self.said = now
        rate = (step - self.start) / max(now - self.began, 1e-9)
        left = (self.steps - step) / max(rate, 1e-9)
        self.line(
            f"{self.stage}: {step:,}/{self.steps:,}  {rate:,.0f} steps/s  {left:,.0f} s left{describe(metrics)}{self._score}"
        )

    def score(self, text: str) -> None:
        self._score = f"  {text}"

    def end(self) -> None: ...

    def line(self, text: str) -> None:
        print(text, flush=True)


class Live:
    """A rich progress bar with speed, time left, last score, mean Q and the share of risky actions."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console()
        self.progress: Any = None
        self._score = ""

    def begin(self, stage: str, steps: int, start: int = 0) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._score = ""
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self.progress = Progress(*columns, console=self.console)
        self.start, self.began = start, time.monotonic()
        self.task = self.progress.add_task(stage, total=steps, completed=start, rate="", numbers="")
        self.progress.start()

    def update(self, step: int, metrics: Metrics) -> None:
        rate = (step - self.start) / max(time.monotonic() - self.began, 1e-9)
        numbers = describe(metrics).strip() + self._score
        self.progress.update(self.task, completed=step, rate=f"{rate:,.0f} steps/s", numbers=numbers)

    def score(self, text: str) -> None:
        self._score = f"  [bold green]{text}[/]"

    def end(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)


def describe(metrics: Metrics) -> str:
    """The few numbers worth showing all the time."""
    text = ""
    if "q_mean" in metrics:
        text += f"  Q {metrics['q_mean']:.1f}"
    elif "loss" in metrics:
        text += f"  loss {metrics['loss']:.4f}"
    if "risk_share" in metrics:
        text += f"  risk {metrics['risk_share']:.0%}"
    if metrics.get("q_warning"):
        text += "  WARNING: Q out of range"
    return text


def choose() -> Display:
    """The live display on a terminal, plain lines otherwise."""
    return Live() if sys.stdout.isatty() else Lines()
