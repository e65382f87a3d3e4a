"""The records of an online run: metrics as CSV, evaluations as JSON lines. Rows are appended, and rewound on resume."""

import csv
import io
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.references import Reference
from qdq.errors import DataError
from qdq.storage import parse_json, write_text

METRICS_EVERY = 1_000  # environment steps


def versions() -> dict[str, str]:
    """Versions of what decides an environment's behaviour and a run's numbers."""
    return {name: version(name) for name in ("gymnasium", "mujoco", "numpy", "jax")}


class RunRecords:
    """Writes `metrics.csv` and `evaluations.jsonl` of one run folder."""

    def __init__(self, folder: Path, reference: Reference | None):
        self.metrics_path = folder / "metrics.csv"
        self.evaluations_path = folder / "evaluations.jsonl"
        self.reference = reference
        self.began = time.monotonic()
        self.pending: defaultdict[str, list[float]] = defaultdict(list)

    def rewind(self, environment_steps: int) -> None:
        """Drop the rows beyond a checkpoint, which a resumed run writes again."""
        if self.evaluations_path.exists():
            kept = [
                row
                for row in read_evaluations(self.evaluations_path.parent)
                if row["environment_steps"] <= environment_steps
            ]
            write_text(self.evaluations_path, "".join(json.dumps(row) + "\n" for row in kept))
        if self.metrics_path.exists():
            try:
                with open(self.metrics_path, newline="", encoding="utf-8") as file:
                    reader = csv.DictReader(file)
                    names = list(reader.fieldnames or [])
                    rows = [row for row in reader if int(row["environment_steps"]) <= environment_steps]
                if any(None in row for row in rows):
                    raise ValueError("a row is longer than the header")
            except (csv.Error, KeyError, TypeError, ValueError) as error:
                raise DataError(f"{self.metrics_path} is damaged ({error}); remove it to go on without it.") from error
            text = io.StringIO()
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_text(self.metrics_path, text.getvalue())

    def metrics(
        self, environment_steps: int, updates: int, metrics: dict[str, float], returns: Sequence[float]
    ) -> None:
        """Note a chunk's metrics; every 1,000 environment steps their means become a row."""
        for name, value in metrics.items():
            self.pending[name].append(value)
        if environment_steps % METRICS_EVERY:
            return
        row: dict[str, Any] = {
            "environment_steps": environment_steps,
            "updates": updates,
            "seconds": round(time.monotonic() - self.began, 1),
            "training_return": float(np.mean(returns[-10:])) if returns else "",
            **{name: float(np.mean(values)) for name, values in sorted(self.pending.items())},
        }
        self.pending.clear()
        new = not self.metrics_path.exists()
        with open(self.metrics_path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)

    def evaluation(
        self, environment_steps: int, returns: np.ndarray, training_returns: Sequence[float]
    ) -> dict[str, Any]:
        """Append an evaluation and return it; the score is null where D4RL gives no reference."""
        mean = float(np.mean(returns))
        row = {
            "environment_steps": environment_steps,
            "return": mean,
            "score": None if self.reference is None else float(self.reference.score(mean)),
            "returns": [float(value) for value in returns],
            "training_return": float(np.mean(training_returns)) if training_returns else None,
        }
        with open(self.evaluations_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        return row


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run, in order."""
    path = folder / "evaluations.jsonl"
    try:
        rows = [parse_json(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except FileNotFoundError as error:
        raise DataError(f"{folder} holds no evaluations.jsonl, so it is not a folder of an online run.") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); remove its broken line.") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("environment_steps"), int):
            raise DataError(f"{path} has no evaluation in line {number}; remove that line.")
    return rows
