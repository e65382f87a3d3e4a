"""Which runs belong together: a task is a dataset, a method is an algorithm with its settings, a row is both."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qdq.evaluation import statistics
from qdq.report.runs import SavedRun, SavedSeed

NAMES = {"qdq": "QDQ", "bc": "BC", "td3-bc": "TD3+BC", "iql": "IQL"}
FIXED_COLOURS = {"QDQ": "blue", "TD3+BC": "green", "IQL": "amber", "BC": "grey"}
MORE_COLOURS = ("vermillion", "purple", "sky", "ink", "green", "amber", "blue", "grey")


@dataclass(frozen=True)
class Method:
    """An algorithm with a preset and what was changed of it."""

    algorithm: str
    preset: str  # without its task: `paper`, not `paper/hopper-medium`
    changes: tuple[str, ...]  # section.key=value


@dataclass(frozen=True, eq=False)
class Row:
    """All seeds of one method on one task."""

    task: str
    method: str
    runs: list[SavedRun]
    seeds: list[SavedSeed]

    @property
    def first(self) -> SavedRun:
        return self.runs[0]

    @property
    def finished(self) -> list[SavedSeed]:
        return [seed for seed in self.seeds if seed.finished]

    @property
    def unfinished(self) -> list[SavedSeed]:
        return [seed for seed in self.seeds if not seed.finished]

    @cached_property
    def scores(self) -> np.ndarray:
        """Final scores of the finished seeds."""
        return np.array([seed.final_score for seed in self.finished if seed.final_score is not None], np.float64)

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        return statistics.summary(self.scores) if len(self.scores) else None

    @property
    def state(self) -> str:
        """Empty for a finished row, else how far it has come."""
        if not self.unfinished:
            return ""
        step = max((seed.step for seed in self.unfinished), default=0)
        waiting = f"{len(self.finished)} of {len(self.seeds)} seeds finished"
        return f"unfinished: {waiting}" + (f", one at step {step:,}" if step else "")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Every run, sorted into tasks and methods."""

    runs: list[SavedRun]
    rows: list[Row]

    @cached_property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(row.task for row in self.rows))

    @cached_property
    def methods(self) -> list[str]:
        return sorted(dict.fromkeys(row.method for row in self.rows), key=_rank)

    @cached_property
    def colours(self) -> dict[str, str]:
        """One colour for each method, the same in every figure."""
        chosen = {method: FIXED_COLOURS[method] for method in self.methods if method in FIXED_COLOURS}
        free = [colour for colour in MORE_COLOURS if colour not in chosen.values()] or list(MORE_COLOURS)
        others = [method for method in self.methods if method not in chosen]
        return chosen | {method: free[i % len(free)] for i, method in enumerate(others)}

    def row(self, task: str, method: str) -> Row | None:
        return next((row for row in self.rows if (row.task, row.method) == (task, method)), None)

    def behaviour(self, task: str) -> float | None:
        """The score of the data, from any run that knows it."""
        scores = (run.behaviour_score for row in self.rows if row.task == task for run in row.runs)
        return next((score for score in scores if score is not None), None)

    def of_task(self, task: str) -> list[Row]:
        return sorted((row for row in self.rows if row.task == task), key=lambda row: _rank(row.method))

    def common_scores(self, methods: Sequence[str]) -> tuple[list[str], dict[str, list[np.ndarray]]]:
        """The tasks that each of these methods has scores (0-100) for, and those scores."""
        tasks = []
        for task in self.tasks:
            rows = [self.row(task, method) for method in methods]
            if all(row is not None and len(row.scores) and row.first.unit == "score" for row in rows):
                tasks.append(task)
        return tasks, {m: [row.scores for t in tasks if (row := self.row(t, m))] for m in methods}

    @cached_property
    def compared(self) -> list[str]:
        """Methods with a score on some task."""
        scored = {row.method for row in self.rows if len(row.scores) and row.first.unit == "score"}
        return [method for method in self.methods if method in scored]

    @cached_property
    def comparable(self) -> tuple[list[str], list[str]]:
        """The methods and the tasks of the largest complete comparison: each of the methods has each of the tasks."""
        known = {method: set(self.common_scores([method])[0]) for method in self.compared}
        candidates = list(known.values()) + [one & two for one in known.values() for two in known.values()]
        best: tuple[list[str], list[str]] = ([], [])
        for tasks in candidates:
            methods = [method for method in self.compared if tasks and tasks <= known[method]]
            if (len(methods) * len(tasks), len(methods)) > (len(best[0]) * len(best[1]), len(best[0])):
                best = (methods, [task for task in self.tasks if task in tasks])
        return best


def _rank(method: str) -> tuple[int, str]:
    order = list(NAMES.values())
    name = method.split(" (")[0]
    return (order.index(name) if name in order else len(order), method)


def gather(runs: list[SavedRun]) -> Evidence:
    """Sort runs into rows; runs of other seeds with the same settings on the same data are one row."""
    tasks = _task_names(runs)
    methods = {id(run): identify(run) for run in runs}
    labels = _labels(list(methods.values()))
    grouped: dict[tuple[str, str], list[SavedRun]] = {}
    for run in runs:
        grouped.setdefault((tasks[id(run)], labels[methods[id(run)]]), []).append(run)
    rows = []
    for (task, method), members in sorted(grouped.items(), key=lambda item: (item[0][0], _rank(item[0][1]))):
        seeds: dict[int, SavedSeed] = {}
        for seed in (seed for run in members for seed in run.seeds):
            if seed.number not in seeds or (seed.finished and not seeds[seed.number].finished):
                seeds[seed.number] = seed  # the same seed twice is one result, not two
        rows.append(Row(task, method, members, [seeds[number] for number in sorted(seeds)]))
    return Evidence(runs, rows)


def _task_names(runs: list[SavedRun]) -> dict[int, str]:
    """The dataset's name; where two datasets share it, with the start of their hashes."""
    hashes: dict[str, set[str]] = {}
    for run in runs:
        hashes.setdefault(run.dataset, set()).add(run.dataset_sha256)
    return {
        id(run): run.dataset if len(hashes[run.dataset]) == 1 else f"{run.dataset} ({run.dataset_sha256[:8]})"
        for run in runs
    }


def identify(run: SavedRun) -> Method:
    """The method of a run: its algorithm, its preset, and what differs from that preset."""
    return Method(run.algorithm, run.preset.split("/")[0], changes(run))


def changes(run: SavedRun) -> tuple[str, ...]:
    """The settings of a run that differ from its preset, as they are typed after --set."""
    from qdq import presets
    from qdq.errors import UsageError

    try:
        built, _ = presets.build(run.algorithm, run.preset, run.task)
        plain = built.to_dict()
    except UsageError:  # a preset or an algorithm of another version
        plain = {}
    found = []
    for section, values in run.config.items():
        if not isinstance(values, dict):
            continue
        for key, value in values.items():
            known = plain.get(section, {})
            if plain and key not in known:
                continue  # a setting that this version no longer has
            if not plain or known[key] != value:
                found.append(f"{section}.{key}={format_value(value)}")
    return tuple(sorted(found))


def format_value(value: Any) -> str:
    """A setting's value as it is typed on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _labels(methods: list[Method]) -> dict[Method, str]:
    """Names as short as they can be without two methods sharing one."""
    labels = {}
    for method in dict.fromkeys(methods):
        same = [other for other in dict.fromkeys(methods) if other.algorithm == method.algorithm]
        shared = set.intersection(*(set(other.changes) for other in same))
        parts = [method.preset] if len({other.preset for other in same}) > 1 else []
        parts += [change.split(".", 1)[1] for change in method.changes if change not in shared]
        name = NAMES.get(method.algorithm, method.algorithm)
        labels[method] = f"{name} ({', '.join(parts)})" if parts else name
    if len(set(labels.values())) < len(labels):  # the last parts of two keys are the same: spell everything out
        labels = {
            method: f"{label} [{', '.join((method.preset, *method.changes))}]" for method, label in labels.items()
        }
    return labels


def flat(config: dict[str, Any]) -> dict[str, str]:
    """Every setting of a saved configuration, as it is typed on the command line."""
    plain = {key: format_value(value) for key, value in config.items() if not isinstance(value, dict)}
    return plain | {
        f"{section}.{key}": format_value(value)
        for section, values in config.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }


def differences(configs: dict[str, dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The settings in which configurations differ: for each key its value under each name."""
    settings = {name: flat(config) for name, config in configs.items()}
    keys = sorted(set().union(*settings.values()))
    return {
        key: {name: values.get(key, "") for name, values in settings.items()}
        for key in keys
        if len({values.get(key, "") for values in settings.values()}) > 1
    }
