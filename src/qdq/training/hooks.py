"""What happens between chunks: guard, log, checkpoint, evaluate, interrupt. Each hook is called with (step, state, metrics)."""

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from qdq import storage
from qdq.errors import DataError, DivergedError, InterruptedRun

Metrics = dict[str, float]
CHECKPOINTS_KEPT = 2


class Guard:
    """Watches the numbers: warns when mean Q leaves the plausible band, stops the run when numbers lose their meaning."""

    def __init__(self, stage: str, q_minimum: float, q_maximum: float, reward_magnitude: float, discount: float):
        spread = q_maximum - q_minimum
        self.stage = stage
        self.low, self.high = q_minimum - 0.5 * spread, q_maximum + 0.5 * spread
        self.limit = 3.0 * reward_magnitude / (1.0 - discount)
        if spread <= 0:  # returns that never differ say nothing about where Q may lie
            self.low, self.high, self.limit = -math.inf, math.inf, math.inf
        self.warnings: list[str] = []
        self.settled = False  # Q starts near zero, which may lie below the band; that is a beginning, not a fault

    def __call__(self, step: int, state: Any, metrics: Metrics) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise DivergedError(
                    f"Training diverged in stage {self.stage} at step {step}: {name} is not finite; the last good checkpoint is "
                    "kept. The likely cause is a learning rate that is too high or extreme rewards."
                )
        magnitude = metrics.get("q_magnitude")
        if magnitude is not None and magnitude > self.limit:
            raise DivergedError(
                f"Training diverged in stage {self.stage} at step {step}: |Q| reached {magnitude:.4g}, beyond three times what "
                f"rewards allow ({self.limit:.4g}); the last good checkpoint is kept. The likely cause is a policy that left the "
                "data: strengthen the penalty or the imitation."
            )
        mean = metrics.get("q_mean")
        if mean is None:
            return
        self.settled = self.settled or mean >= self.low
        floor = self.low if self.settled else min(self.low, -0.1 * (self.high - self.low))
        outside = mean > self.high or mean < floor
        metrics["q_warning"] = float(outside)
        if outside and not self.warnings:
            self.warnings.append(
                f"mean Q = {mean:.4g} left the plausible range [{self.low:.4g}, {self.high:.4g}] at step {step}"
            )


class CsvLog:
    """Appends one row of metrics per chunk; rows beyond the point of resuming are dropped."""

    def __init__(self, path: Path, resume_step: int = 0):
        self.path = path
        self.columns: list[str] | None = None
        lines = _lines(path) if resume_step else []
        path.unlink(missing_ok=True)
        if lines and lines[0].startswith("step"):
            self.columns = lines[0].split(",")
            storage.write_text(path, "".join(line + "\n" for line in lines if self._kept(line, resume_step)))

    def _kept(self, line: str, resume_step: int) -> bool:
        """Whether a line is the header, or a whole row from before the point of resuming."""
        assert self.columns is not None
        values = line.split(",")
        whole = len(values) == len(self.columns)
        return whole and (values == self.columns or (values[0].isdecimal() and int(values[0][:18]) <= resume_step))

    def __call__(self, step: int, state: Any, metrics: Metrics) -> None:
        if self.columns is None:
            self.columns = ["step", *sorted(metrics)]
            storage.write_text(self.path, ",".join(self.columns) + "\n")
        row = [str(step), *(f"{metrics.get(name, math.nan):.9g}" for name in self.columns[1:])]
        storage.append(self.path, ",".join(row) + "\n")


class TensorBoardLog:
    """Writes the same metrics as TensorBoard events, where the `tensorboard` extra is installed."""

    def __init__(self, directory: Path, resume_step: int = 0):
        self.writer: Any = None
        if not resume_step:
            shutil.rmtree(directory, ignore_errors=True)
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[attr-defined]
            from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[attr-defined]
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            return
        self.event, self.summary = Event, Summary
        self.writer = EventFileWriter(str(directory))
        if resume_step:  # TensorBoard's way to drop what an earlier session wrote from this step on
            restart = SessionLog(status=SessionLog.START)
            self.writer.add_event(Event(step=resume_step + 1, wall_time=time.time(), session_log=restart))

    def __call__(self, step: int, state: Any, metrics: Metrics) -> None:
        if self.writer is not None:
            values = [self.summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            self.writer.add_event(self.event(step=step, wall_time=time.time(), summary=self.summary(value=values)))

    def close(self) -> None:
        """Flush what is buffered."""
        if self.writer is not None:
            self.writer.close()


class Restored(NamedTuple):
    """Where training goes on: after `step`, with `state`, and with the notes saved beside it."""

    step: int
    state: Any
    notes: dict[str, Any]


class Checkpoints:
    """Saves the state every so many steps and keeps the newest two.

    A checkpoint is one file with a checksum, so that its state, step and notes belong together or are not there at all.
    """

    def __init__(self, directory: Path, identity: str, every: int, say: Callable[[str], None]):
        self.directory, self.identity, self.every, self.say = directory, identity, every, say

    def __call__(self, step: int, state: Any, metrics: Metrics) -> None:
        if step % self.every == 0:
            self.save(step, state)

    def save(self, step: int, state: Any, notes: dict[str, Any] | None = None) -> None:
        """Write one checkpoint and drop those that are older than the newest two."""
        metadata = {"step": str(step), "identity": self.identity, "notes": json.dumps(notes or {})}
        storage.save_pytree(self._path(step), state, metadata)
        for old in self.files()[:-CHECKPOINTS_KEPT]:
            old.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.directory / f"step_{step:09d}.safetensors"

    def files(self) -> list[Path]:
        """Checkpoints from the oldest to the newest."""
        return sorted(self.directory.glob("step_*.safetensors"))

    def restore(self, like: Any, step: int | None = None) -> Restored:
        """The newest readable checkpoint, or the one of `step`; step 0 and `like` if there is none."""
        files = self.files() if step is None else [path for path in [self._path(step)] if path.exists()]
        for path in reversed(files):
            try:
                state, metadata = storage.load_pytree(path, like)
                if metadata.get("identity") != self.identity:
                    raise DataError(f"{path} belongs to another dataset, configuration or seed.")
            except DataError as error:
                before = "the checkpoint before it is tried" if path != files[0] else "there is none before it"
                self.say(f"{str(error).rstrip('.')}; {before}.")
                continue
            return Restored(int(metadata["step"]), state, storage.parse_json(metadata["notes"]))
        return Restored(0, like, {})


class JsonLines:
    """An append-only list of JSON objects, each with a `step`."""

    def __init__(self, path: Path, resume_step: int = 0):
        self.path = path
        self.entries: list[dict[str, Any]] = []
        if resume_step:
            self.entries = [entry for entry in read_entries(path) if entry["step"] <= resume_step]
        self._rewrite()

    def append(self, entry: dict[str, Any]) -> None:
        """Add one object; the file is replaced as a whole, so it is never half-written."""
        self.entries.append(entry)
        self._rewrite()

    def _rewrite(self) -> None:
        storage.write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in self.entries))


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The whole entries of a list of JSON objects that may be missing or damaged."""
    return [entry for entry in map(_parse, _lines(path)) if entry]


def _lines(path: Path) -> list[str]:
    """The lines of a log that may be missing or damaged."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def _parse(line: str) -> dict[str, Any] | None:
    """The entry on a line; None where the line is damaged."""
    try:
        entry = storage.parse_json(line)
    except ValueError:
        return None
    whole = isinstance(entry, dict) and type(entry.get("step")) is int and isinstance(entry.get("score"), int | float)
    return entry if whole else None


class Interrupt:
    """Ctrl-C or SIGTERM asks for a stop; the request is obeyed after the current chunk, when the state can be saved."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, save: Callable[[int, Any], None], advice: str = "go on with --resume"):
        self.save, self.advice = save, advice
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._request) for number in self.SIGNALS}
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:  # the second Ctrl-C does not wait
            raise KeyboardInterrupt
        self.requested = True

    def __call__(self, step: int, state: Any, metrics: Metrics) -> None:
        if self.requested:
            self.save(step, state)
            raise InterruptedRun(f"Interrupted at step {step}; everything up to here is saved, {self.advice}.")
