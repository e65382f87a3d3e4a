"""Run folders as plain values: everything that tables, figures and the report page know about a run."""

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qdq import storage
from qdq.data.guard import reading
from qdq.data.inspect import CARD_FILE
from qdq.data.tasks import recognise
from qdq.errors import DataError, UsageError

PANELS = Path("q_distribution") / "panels.npz"
QUALITY = "quality.json"
LARGEST = float(np.finfo(np.float32).max)  # of the numbers behind a picture, so that no bin of a histogram is infinite
PANEL_ARRAYS = (  # the arrays in that file; see `qdq.report.panels`
    "window_returns",
    "window_samples",
    "return_ranks",
    "recorded_uncertainty",
    "policy_uncertainty",
    "random_uncertainty",
)
SURPRISE_ARRAYS = (  # and those of a run with a model of the recorded actions
    "recorded_surprise",
    "policy_surprise",
    "random_surprise",
    "surprise_border",
)


@dataclass(frozen=True, eq=False)
class SavedSeed:
    """One seed of a run, finished or not."""

    number: int
    folder: Path
    evaluations: list[tuple[int, float]]  # (step, score)
    finished: bool
    final_score: float | None  # of a finished seed; None also without an environment
    step: int  # how far it has come
    seconds: float
    evaluation_seconds: float
    warnings: list[str]

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv."""
        return read_metrics(self.folder / "metrics.csv")


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A run folder; `result` is None as long as no call has come to its end."""

    path: Path
    manifest: dict[str, Any]
    config: dict[str, Any]
    result: dict[str, Any] | None
    seeds: list[SavedSeed]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def dataset(self) -> str:
        return str(self.manifest["dataset"])

    @property
    def dataset_sha256(self) -> str:
        return str(self.manifest["dataset_sha256"])

    @property
    def algorithm(self) -> str:
        return str(self.config["algorithm_name"])

    @property
    def preset(self) -> str:
        return str(self.config["preset"])

    @property
    def steps(self) -> int:
        return int(self.config["training"]["steps"])

    @cached_property
    def task(self) -> str | None:
        """D4RL's name of the task, such as hopper-medium."""
        if self.manifest.get("task"):
            return str(self.manifest["task"])
        known = recognise(self.dataset)
        return known.name if known else None

    @property
    def unit(self) -> str:
        return "score" if self.manifest.get("reference") else "return"

    @property
    def finished(self) -> bool:
        return bool(self.seeds) and all(seed.finished for seed in self.seeds)

    @cached_property
    def data_card(self) -> dict[str, Any] | None:
        """What `inspect_dataset` found when the run began; runs of early versions have none."""
        path = self.path / CARD_FILE
        return storage.read_json(path) if path.exists() else None

    @cached_property
    def behaviour_score(self) -> float | None:
        """The score of the data."""
        if self.result is not None:
            return _score(self.result["dataset"]["behaviour_score"])
        return _score(self.data_card["score"]) if self.data_card else None

    @cached_property
    def panels(self) -> dict[str, np.ndarray] | None:
        """The arrays behind the pictures of the Q distribution; None where the run has none (yet)."""
        from qdq.data.npz import read_arrays

        path = self.path / PANELS
        if not path.exists():
            return None
        arrays = read_arrays(path, PANEL_ARRAYS + SURPRISE_ARRAYS)
        sound = all(
            array.dtype.kind == "f" and array.ndim == 1 and len(array) and (np.abs(array) <= LARGEST).all()
            for array in arrays.values()
        )
        whole = set(arrays) in (set(PANEL_ARRAYS), {*PANEL_ARRAYS, *SURPRISE_ARRAYS})
        if not whole or not sound or len(arrays.get("surprise_border", [0.0])) != 1:
            raise DataError(f"{path} does not hold what it should; run `qdq train` with --resume to write it again.")
        return arrays

    @cached_property
    def quality(self) -> dict[str, Any] | None:
        """What `qdq quality` measured; None where it was not asked to."""
        from qdq.report.quality import checked

        path = self.path / QUALITY
        return checked(storage.read_json(path), path) if path.exists() else None

    @cached_property
    def stages(self) -> dict[str, float]:
        """Seconds of each stage; of the training the mean over finished seeds."""
        seconds: dict[str, float] = {}
        if self.result is not None:
            if not isinstance(self.result["stages"], dict):
                raise ValueError("result.json has no table of stages")
            for stage, values in self.result["stages"].items():
                if stage != "training":
                    seconds[stage] = float(values["seconds"])
        over = [seed for seed in self.seeds if seed.finished]
        if over:
            evaluation = float(np.mean([seed.evaluation_seconds for seed in over]))
            seconds["training"] = float(np.mean([seed.seconds for seed in over])) - evaluation
            seconds["evaluation"] = evaluation
        return seconds


def find_runs(paths: Iterable[Path]) -> list[SavedRun]:
    """The runs in these folders; each path is a run folder or a folder that holds some at any depth."""
    found: dict[Path, SavedRun] = {}
    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path} is not a folder; give run folders, or folders that hold them.")
        folders = sorted(_run_folders(path))
        if not folders:
            raise DataError(f"{path} holds no run folder (none with a manifest.json and a config.json of `qdq train`).")
        for folder in folders:
            if folder.resolve() not in found:
                found[folder.resolve()] = read_run(folder)
    if not found:
        raise UsageError("Give at least one run folder.")
    return list(found.values())


def _run_folders(path: Path) -> Iterable[Path]:
    for folder, below, files in os.walk(path):
        if "manifest.json" in files and "config.json" in files:
            below.clear()  # nothing inside a run is a run
            config = storage.read_json(Path(folder) / "config.json")
            if isinstance(config, dict) and "algorithm_name" in config:
                yield Path(folder)
        below[:] = sorted(name for name in below if not name.startswith("."))


def read_run(folder: Path) -> SavedRun:
    """One run folder, whatever state it is in."""
    manifest, config = storage.read_json(folder / "manifest.json"), storage.read_json(folder / "config.json")
    result = storage.read_json(folder / "result.json") if (folder / "result.json").exists() else None
    try:
        last = int(config["evaluation"]["last"])
        numbers = {int(number) for number in manifest["seeds"]}
        numbers |= {int(path.name.removeprefix("seed_")) for path in folder.glob("seed_[0-9]*")}
        seeds = [_read_seed(folder / f"seed_{number}", number, last) for number in sorted(numbers)]
        run = SavedRun(folder, manifest, config, result, seeds)
        _ = (run.dataset, run.dataset_sha256, run.algorithm, run.preset, run.steps, run.stages, run.behaviour_score)
        return run
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise DataError(
            f"{folder} is not a run folder that this version can read ({type(error).__name__}: {str(error)[:200]})."
        ) from error


def _read_seed(folder: Path, number: int, last: int) -> SavedSeed:
    if (folder / "outcome.json").exists():
        outcome = storage.read_json(folder / "outcome.json")
        curve = [(int(entry["step"]), float(entry["score"])) for entry in outcome["evaluations"]]
        step = curve[-1][0] if curve else 0
        return SavedSeed(
            number,
            folder,
            curve,
            True,
            _score(outcome["final_score"]),
            step,
            float(outcome["seconds"]),
            float(outcome["evaluation_seconds"]),
            [str(warning) for warning in outcome["warnings"]],
        )
    curve = _read_evaluations(folder / "evaluations.jsonl")
    progress = storage.read_json(folder / "progress.json") if (folder / "progress.json").exists() else {}
    if not isinstance(progress, dict):
        raise DataError(
            f"{folder / 'progress.json'} is damaged; remove it, and `qdq train ... --resume` writes it anew."
        )
    metrics = read_metrics(folder / "metrics.csv")
    step = int(max([0, *metrics.get("step", [])[-1:]]))
    return SavedSeed(
        number,
        folder,
        curve,
        False,
        None,
        step,
        float(progress.get("seconds", 0.0)),
        float(progress.get("evaluation_seconds", 0.0)),
        [str(warning) for warning in progress.get("warnings", [])],
    )


def _score(value: Any) -> float | None:
    """A score as it was saved; None where the data has no reference."""
    return None if value is None else float(value)


def _read_evaluations(path: Path) -> list[tuple[int, float]]:
    curve = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        try:
            entry = storage.parse_json(line)
            curve.append((int(entry["step"]), float(entry["score"])))
        except (KeyError, TypeError, ValueError, OverflowError):
            continue  # a line that is being written, or was when the power failed
    return curve


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """The columns of a metrics.csv; rows that are not complete are left out."""
    if not path.exists():
        return {}
    with reading(path, "CSV"), open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    heads, values = (rows[0] if rows else []), []
    for row in rows[1:]:
        try:
            values.append([float(value) for value in row])
        except ValueError:
            continue
    table = np.array([row for row in values if len(row) == len(heads)], np.float64).reshape(-1, len(heads))
    return {head: table[:, i] for i, head in enumerate(heads)}


def mean_curve(seeds: Sequence[SavedSeed]) -> tuple[np.ndarray, np.ndarray]:
    """The steps that all these seeds were evaluated at, and their scores there: shapes (steps,) and (seeds, steps)."""
    curves = [dict(seed.evaluations) for seed in seeds if seed.evaluations]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return np.array(steps, float), np.array([[curve[step] for step in steps] for curve in curves])
