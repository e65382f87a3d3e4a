"""A study as a person writes it: a small TOML file that is checked key by key before anything starts."""

import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdq.errors import DataError, UsageError, suggest

ENGINES = ("local", "ray", "slurm")
EXECUTORS = ("slurm", "local")


@dataclass(frozen=True)
class Variant:
    """A named set of changes; the one without a name is the study as it stands."""

    name: str
    algorithms: tuple[str, ...]
    preset: str
    steps: int | None
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class EngineSettings:
    """Where the jobs of a study run, and what each of them may use."""

    name: str = "local"
    jobs: int | None = None  # at the same time
    cores: int = 1  # of one job
    memory: str | None = None  # of one job, such as 2GiB
    address: str = "auto"  # of a Ray cluster
    slurm: dict[str, Any] = field(default_factory=dict)  # passed on to submitit


@dataclass(frozen=True)
class Study:
    """Datasets x variants of algorithms x seeds, the folder that holds them, and the engine that runs them."""

    name: str
    out: Path
    datasets: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    engine: EngineSettings
    shared_runs: Path | None = None  # a folder of runs that other studies use as well

    @property
    def runs(self) -> Path:
        """The folder of the run folders."""
        return self.shared_runs or self.out / "runs"

    def changed(self, out: Path | None, **engine: Any) -> "Study":
        """The study with what the command line says instead; another `out` holds its own runs, too."""
        given = {key: value for key, value in engine.items() if value is not None}
        place = {} if out is None else {"out": out, "shared_runs": None}
        return replace(self, **place, engine=_checked(replace(self.engine, **given)))


def read_study(path: Path) -> Study:
    """The study in a TOML file; whatever is wrong in it is named with its place."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is not readable TOML ({error}).") from error
    table = _Table(content, str(path))
    name = table.text("name", path.stem)
    out = Path(table.text("out", f"studies/{name}")).expanduser()
    runs = table.text("runs", "")
    datasets = table.texts("datasets")
    algorithms = table.texts("algorithms")
    seeds = _seeds(table)
    plain = Variant("", algorithms, table.text("preset", "fast"), table.number("steps"), table.texts("set", ()))
    variants = [plain] if table.flag("plain", True) else []
    for label, inner in table.tables("variants").items():
        changed = Variant(
            label,
            inner.texts("algorithms", algorithms),
            inner.text("preset", plain.preset),
            inner.number("steps", plain.steps),
            plain.overrides + inner.texts("set", ()),
        )
        inner.finish()
        variants.append(changed)
    if not variants:
        raise UsageError(f"{path} has plain = false but no variants, so there is nothing to run.")
    engine = _engine(table.table("engine"))
    table.finish()
    shared_runs = Path(runs).expanduser() if runs else None
    return Study(name, out, datasets, tuple(variants), seeds, engine, shared_runs)


def _seeds(table: "_Table") -> tuple[int, ...]:
    value = table.value("seeds", 1)
    if _whole(value) and value >= 1:
        return tuple(range(value))
    if isinstance(value, list) and value and all(_whole(seed) and seed >= 0 for seed in value):
        if len(set(value)) < len(value):
            raise UsageError(f"{table.place} lists a seed twice in seeds = {value}.")
        return tuple(value)
    raise UsageError(
        f"{table.place} needs seeds as a count of at least 1 or a list such as [0, 1, 2], but has {value!r}."
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _engine(table: "_Table") -> EngineSettings:
    slurm = table.value("slurm", {})
    if not isinstance(slurm, dict):
        raise UsageError(f"{table.place} needs slurm as a table [engine.slurm].")
    default = EngineSettings()
    engine = EngineSettings(
        table.text("name", default.name),
        table.number("jobs"),
        table.number("cores", default.cores) or default.cores,
        table.text("memory", "") or None,
        table.text("address", default.address),
        slurm,
    )
    table.finish()
    return _checked(engine)


def _checked(engine: EngineSettings) -> EngineSettings:
    from qdq.memory import parse_memory

    if engine.name not in ENGINES:
        raise UsageError(f"Unknown engine {engine.name!r}; {suggest(engine.name, ENGINES)}")
    executor = engine.slurm.get("executor", "slurm")
    if executor not in EXECUTORS:
        raise UsageError(f"Unknown executor {executor!r} in [engine.slurm]; {suggest(str(executor), EXECUTORS)}")
    if engine.jobs is not None and engine.jobs < 1:
        raise UsageError(f"A study needs at least 1 job at the same time, but jobs is {engine.jobs}.")
    if engine.memory is not None:
        parse_memory(engine.memory)
    return engine


class _Table:
    """A TOML table that hands out checked values and, at the end, refuses every key that nobody asked for."""

    def __init__(self, content: dict[str, Any], place: str):
        self.content, self.place = content, place
        self.known: list[str] = []

    def value(self, key: str, default: Any = None) -> Any:
        self.known.append(key)
        return self.content.get(key, default)

    def text(self, key: str, default: str) -> str:
        value = self.value(key, default)
        if not isinstance(value, str):
            raise UsageError(f"{self.place} needs text for {key}, but has {value!r}.")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of different texts; without a default it must hold at least one."""
        value = self.value(key, None if default is None else list(default))
        if value is None or (default is None and value == []):
            self._refuse_unknown(only_near=key)
            raise UsageError(f'{self.place} lacks {key}, a list such as {key} = ["..."].')
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{self.place} needs a list of texts for {key}, but has {value!r}.")
        twice = next((item for item in value if value.count(item) > 1), None)
        if twice is not None:
            raise UsageError(f"{self.place} lists {twice!r} twice in {key}.")
        return tuple(value)

    def number(self, key: str, default: int | None = None) -> int | None:
        value = self.value(key, default)
        if value is not None and (not _whole(value) or value < 1):
            raise UsageError(f"{self.place} needs a whole number of at least 1 for {key}, but has {value!r}.")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise UsageError(f"{self.place} needs true or false for {key}, but has {value!r}.")
        return value

    def table(self, key: str) -> "_Table":
        value = self.value(key, {})
        if not isinstance(value, dict):
            raise UsageError(f"{self.place} needs {key} as a table [{key}].")
        return _Table(value, f"{self.place} [{key}]")

    def tables(self, key: str) -> dict[str, "_Table"]:
        outer = self.table(key)
        return {name: _Table(outer._inner(name), f"{self.place} [{key}.{name}]") for name in outer.content}

    def _inner(self, name: str) -> dict[str, Any]:
        if not isinstance(self.content[name], dict):
            raise UsageError(f"{self.place} needs {name} as a table of its own.")
        return self.content[name]

    def finish(self) -> None:
        """Refuse keys that nothing has asked for."""
        self._refuse_unknown()

    def _refuse_unknown(self, only_near: str | None = None) -> None:
        import difflib

        for key in self.content:
            if key in self.known or (only_near and not difflib.get_close_matches(key, [only_near], cutoff=0.6)):
                continue
            raise UsageError(f"Unknown key {key!r} in {self.place}; {suggest(key, self.known)}")
