"""Which column of a table means what: a small TOML, or the convention."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.episodes import Dataset
from qdq.data.guard import reading
from qdq.errors import DataError, UsageError, suggest

SECTIONS = {
    "columns": ("observations", "actions", "reward", "terminal", "truncated", "episode", "next_observations"),
    "environment": ("id", "action_low", "action_high"),
    "reference": ("random", "expert"),
}


LARGEST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Columns:
    """The meaning of a table's columns, and what the table itself cannot say."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    reward: str
    terminal: str | None = None
    truncated: str | None = None
    episode: str | None = None
    next_observations: tuple[str, ...] = ()
    environment_id: str | None = None
    action_low: float | tuple[float, ...] | None = None
    action_high: float | tuple[float, ...] | None = None
    reference: tuple[float, float] | None = None  # returns that score 0 and 100

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that must exist."""
        single = [self.reward, self.terminal, self.truncated, self.episode]
        return (*self.observations, *self.actions, *self.next_observations, *(name for name in single if name))


def conventional_columns(header: tuple[str, ...], path: Path) -> Columns:
    """The columns named by convention in `header`."""
    columns = Columns(
        observations=_numbered(header, "observation"),
        actions=_numbered(header, "action"),
        reward="reward",
        terminal="terminal" if "terminal" in header else None,
        truncated="truncated" if "truncated" in header else None,
        episode="episode" if "episode" in header else None,
        next_observations=_numbered(header, "next_observation"),
    )
    if not columns.observations or not columns.actions or "reward" not in header:
        raise DataError(
            f"{path} does not have the columns observation_0.., action_0.. and reward; rename them, or say which "
            "column is which in a TOML file given with --columns."
        )
    return columns


def read_columns(path: Path) -> Columns:
    """The columns that a TOML file names."""
    with reading(path, "TOML"):
        return parse_columns(Path(path).read_text(encoding="utf-8"), path)


def parse_columns(text: str, path: Path) -> Columns:
    """The columns that a TOML text names; `path` is where it was found."""
    with reading(path, "TOML"):
        content = tomllib.loads(text)
    for section, values in content.items():
        if section not in SECTIONS or not isinstance(values, dict):
            raise UsageError(f"{path} has an unknown section [{section}]; {suggest(section, tuple(SECTIONS))}")
        for key in values:
            if key not in SECTIONS[section]:
                raise UsageError(f"{path} has an unknown key {key!r} in [{section}]; {suggest(key, SECTIONS[section])}")
    names, environment, reference = (content.get(section, {}) for section in SECTIONS)
    for key in ("observations", "actions", "reward"):
        if key not in names:
            raise UsageError(f"{path} does not say which columns are the {key}; add {key} to [columns].")
    pair = None
    if reference:
        if not all(_is_number(reference.get(key)) for key in ("random", "expert")):
            raise UsageError(f"{path} needs both random and expert, as numbers, in [reference].")
        pair = float(reference["random"]), float(reference["expert"])
        if pair[0] == pair[1] or not np.isfinite(pair).all():
            raise UsageError(f"{path} needs two different returns in [reference].")
    return Columns(
        observations=_list(path, "observations", names["observations"]),
        actions=_list(path, "actions", names["actions"]),
        reward=_text(path, "reward", names["reward"]) or "",
        terminal=_text(path, "terminal", names.get("terminal")),
        truncated=_text(path, "truncated", names.get("truncated")),
        episode=_text(path, "episode", names.get("episode")),
        next_observations=_list(path, "next_observations", names.get("next_observations", [])),
        environment_id=_text(path, "id", environment.get("id")),
        action_low=_bound(path, "action_low", environment.get("action_low")),
        action_high=_bound(path, "action_high", environment.get("action_high")),
        reference=pair,
    )


def columns_of(dataset: Dataset) -> Columns:
    """The conventional columns of a written dataset, with its bounds and environment."""
    reference = dataset.metadata.reference
    return Columns(
        observations=tuple(f"observation_{i}" for i in range(dataset.observation_size)),
        actions=tuple(f"action_{i}" for i in range(dataset.action_size)),
        reward="reward",
        terminal="terminal",
        truncated="truncated",
        episode="episode",
        next_observations=tuple(f"next_observation_{i}" for i in range(dataset.observation_size)),
        environment_id=dataset.metadata.environment_id,
        action_low=tuple(map(float, dataset.action_low)),
        action_high=tuple(map(float, dataset.action_high)),
        reference=(reference.random, reference.expert) if reference else None,
    )


def columns_to_toml(columns: Columns) -> str:
    """The TOML text that `read_columns` reads."""
    lines = ["[columns]"]
    lines += [f"{key} = {_toml(getattr(columns, key))}" for key in SECTIONS["columns"] if getattr(columns, key)]
    lines += ["", "[environment]"]
    values = {"id": columns.environment_id, "action_low": columns.action_low, "action_high": columns.action_high}
    lines += [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    if columns.reference is not None:
        lines += ["", "[reference]", f"random = {columns.reference[0]!r}", f"expert = {columns.reference[1]!r}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(float(value))


def _numbered(header: tuple[str, ...], stem: str) -> tuple[str, ...]:
    numbers = sorted(int(match.group(1)) for name in header if (match := re.fullmatch(rf"{stem}_(\d{{1,6}})", name)))
    return tuple(f"{stem}_{number}" for number in numbers)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= LARGEST or not abs(value) < np.inf  # NaN and infinity have messages of their own


def _list(path: Path, key: str, value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f'{path}: {key} must be a list of column names, such as ["x", "v"].')
    return tuple(value)


def _text(path: Path, key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{path}: {key} must be one name in quotes.")
    return value


def _bound(path: Path, key: str, value: Any) -> float | tuple[float, ...] | None:
    if value is None:
        return None
    if _is_number(value):
        return float(value)
    if isinstance(value, list) and value and all(_is_number(item) for item in value):
        return tuple(map(float, value))
    raise UsageError(f"{path}: {key} must be a number, or a list of one number per action.")
