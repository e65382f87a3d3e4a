"""The whole configuration of a run: one frozen dataclass per section, overridden by presets and `section.key=value`."""

import ast
import dataclasses
import sys
import typing
from dataclasses import dataclass
from typing import Any, Literal

from qdq import algorithms, behaviour, consistency, diffusion, q_dataset, q_distribution, quantile, uncertainty
from qdq.errors import UsageError, suggest
from qdq.settings import PAPER_TABLE_4, setting, to_dict

LARGEST = 2**31 - 1  # of a whole number; none comes near it, and larger ones overflow in what is computed from them


@dataclass(frozen=True)
class DataConfig:
    """What is done to the dataset before anything is learned from it."""

    normalise_states: bool = setting(
        False, "shift and scale observations to zero mean and unit variance", "paper: raw data"
    )
    reward_shift: float = setting(0.0, "added to every reward (-1 on AntMaze)", "paper, as IQL")
    reward_scaling: Literal["none", "return_range"] = setting(
        "none", "return_range divides rewards by (best - worst episode return) / 1000", "paper: raw data"
    )


@dataclass(frozen=True)
class TrainingConfig:
    """The actor-critic's training run."""

    steps: int = setting(1_000_000, "gradient steps", PAPER_TABLE_4)
    batch_size: int = setting(256, "transitions per step", PAPER_TABLE_4)
    chunk: int = setting(200, "steps per compiled chunk: metrics are logged and Ctrl-C is obeyed between chunks")
    checkpoint_every: int = setting(10_000, "steps between checkpoints")
    average_rate: float = setting(
        0.0, "moving-average rate of the policy that is evaluated, per update; 0 evaluates the policy itself"
    )
    state_noise: float = setting(
        0.0,
        "standard deviation of noise on the states that are learned from, as the networks see them",
    )


@dataclass(frozen=True)
class EvaluationConfig:
    """The evaluation protocol."""

    every: int = setting(5_000, "steps between evaluations", "paper, Figure 9")
    episodes: int = setting(10, "episodes per evaluation", PAPER_TABLE_4)
    last: int = setting(5, "evaluations at the end whose mean is the final score")
    keep_policies: bool = setting(False, "save the policy at every evaluation, also where there is no environment")


@dataclass(frozen=True)
class Config:
    """Everything that decides the outcome of a run, except the data and the seed."""

    algorithm_name: str
    preset: str
    data: DataConfig
    q_dataset: q_dataset.Config
    q_distribution: q_distribution.Config
    diffusion: diffusion.Config
    consistency: consistency.Config
    quantile: quantile.Config
    uncertainty: uncertainty.Config
    behaviour: behaviour.Config
    algorithm: Any
    training: TrainingConfig
    evaluation: EvaluationConfig

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as saved in config.json."""
        return to_dict(self)


Sources = dict[str, str]


def default(algorithm: str) -> Config:
    """Every section at its own defaults."""
    return Config(
        algorithm,
        "none",
        DataConfig(),
        q_dataset.Config(),
        q_distribution.Config(),
        diffusion.Config(),
        consistency.Config(),
        quantile.Config(),
        uncertainty.Config(),
        behaviour.Config(),
        algorithms.get(algorithm).Config(),
        TrainingConfig(),
        EvaluationConfig(),
    )


def sections(config: Config) -> dict[str, Any]:
    """The sections by name."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}


def keys(config: Config) -> list[str]:
    """Every `section.key`."""
    return [
        f"{name}.{field.name}" for name, section in sections(config).items() for field in dataclasses.fields(section)
    ]


def source_of(config: Config, key: str) -> str:
    """Where the default of a key comes from."""
    section, name = key.split(".")
    fields = {field.name: field for field in dataclasses.fields(getattr(config, section))}
    return fields[name].metadata["source"]


def replace(config: Config, key: str, value: Any) -> Config:
    """The configuration with one key changed; an unknown key is an error that suggests the nearest."""
    known = keys(config)
    if key not in known:
        near = suggest(key, known)
        raise UsageError(
            f"Unknown setting {key!r} for {config.algorithm_name}; {near} (`qdq presets show fast` lists them all.)"
        )
    section, name = key.split(".")
    part = getattr(config, section)
    return dataclasses.replace(
        config, **{section: dataclasses.replace(part, **{name: _convert(part, section, name, value)})}
    )


def apply_override(config: Config, override: str) -> tuple[Config, str]:
    """Apply `section.key=value` as typed on the command line; returns the key as well."""
    key, separator, text = override.partition("=")
    if not separator:
        raise UsageError(f"Override {override!r} is not of the form section.key=value.")
    return replace(config, key.strip(), text.strip()), key.strip()


def _convert(part: Any, section: str, name: str, value: Any) -> Any:
    """`value` as the field's type; text is parsed, other values are checked."""
    kind = typing.get_type_hints(type(part))[name]
    problem = UsageError(f"Setting {section}.{name} needs {_describe(kind)}, but got {value!r}.")
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            raise problem
        return value
    if kind is str:
        return str(value)
    if isinstance(value, str):
        literal = {"true": "True", "false": "False"}.get(value.lower(), value)
        try:
            value = ast.literal_eval(literal)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:  # the last two for endless brackets
            raise problem from error
    if kind is bool and isinstance(value, bool):
        return value
    if isinstance(value, bool):
        raise problem
    if kind is int and isinstance(value, int | float) and abs(value) <= LARGEST and value == int(value):
        return int(value)
    if kind is float and isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    if typing.get_origin(kind) is tuple:
        items = tuple(value) if isinstance(value, list | tuple) else (value,)
        if items and all(type(item) is int and 0 < item <= LARGEST for item in items):
            return items
    raise problem


def _describe(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "whole numbers such as 256,256"
    return {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[kind]


def from_dict(content: dict[str, Any]) -> Config:
    """The configuration saved in a config.json; unknown and missing keys are errors, as are values that cannot work."""
    if not isinstance(content, dict) or not all(isinstance(content.get(k), str) for k in ("algorithm_name", "preset")):
        raise UsageError("The saved configuration does not say its algorithm and its preset; it is damaged.")
    config = default(content["algorithm_name"])
    config = dataclasses.replace(config, preset=content["preset"])
    for name, section in sections(config).items():
        saved = content.get(name, {})
        if not isinstance(saved, dict):
            raise UsageError(f"The saved configuration has no settings under {name}; it is damaged.")
        missing = {field.name for field in dataclasses.fields(section)} - set(saved)
        if missing:
            raise UsageError(
                f"The saved configuration lacks {name}.{min(missing)}; it was written by another version of qdq."
            )
        for key, value in saved.items():
            config = replace(config, f"{name}.{key}", tuple(value) if isinstance(value, list) else value)
    return check(config)


POSITIVE = (
    "training.steps",
    "training.batch_size",
    "training.chunk",
    "training.checkpoint_every",
    "evaluation.every",
    "evaluation.episodes",
    "evaluation.last",
    "q_dataset.width",
    "q_dataset.stride",
    "q_distribution.frequencies",
    "q_distribution.groups",
    "diffusion.steps",
    "diffusion.batch_size",
    "consistency.steps",
    "consistency.batch_size",
    "consistency.intervals",
    "quantile.steps",
    "quantile.batch_size",
    "quantile.levels",
    "uncertainty.nodes",
    "behaviour.steps",
    "behaviour.batch_size",
    "behaviour.components",
)
SHARES = (
    "algorithm.extraction_share",
    "algorithm.target_rate",
    "training.average_rate",
    "training.state_noise",
    "consistency.target_rate",
    "quantile.average_share",
)
FRACTIONS = (
    "algorithm.alpha",
    "algorithm.beta",
    "algorithm.expectile",
    "algorithm.discount",
    "q_dataset.discount",
    "behaviour.held_out",
    "behaviour.false_alarms",
)
STAGE_CHUNK = 200  # steps per compiled chunk of the stages of the Q distribution


def check(config: Config) -> Config:
    """Refuse values that cannot work, before anything is computed."""

    def value(key: str) -> Any:
        section, name = key.split(".")
        return getattr(getattr(config, section), name, None)

    for key in POSITIVE:
        if value(key) < 1:
            raise UsageError(f"Setting {key} must be at least 1, but is {value(key)}.")
    for key in SHARES:
        if value(key) is not None and not 0.0 <= value(key) <= 1.0:
            raise UsageError(f"Setting {key} must lie between 0 and 1, but is {value(key)}.")
    for key in FRACTIONS:
        if value(key) is not None and not 0.0 < value(key) < 1.0:
            raise UsageError(f"Setting {key} must lie between 0 and 1, but is {value(key)}.")
    if not 0.0 <= config.quantile.calibration_share <= 0.5:  # more is kept than learned from
        raise UsageError(
            f"Setting quantile.calibration_share must lie between 0 and 0.5, but is {config.quantile.calibration_share}."
        )
    for key, low, high in (("level_spread", 0.5, 2.0), ("tail_weight", 0.0, 1.0), ("weight_decay", 0.0, 100.0)):
        if not low <= value(f"quantile.{key}") <= high:
            raise UsageError(
                f"Setting quantile.{key} must lie between {low:g} and {high:g}, but is {value(f'quantile.{key}')}."
            )
    for key in ("algorithm.largest_deviation", "algorithm.risk_stiffness", "algorithm.risk_weight"):
        if (value(key) or 0.0) < 0.0:
            raise UsageError(f"Setting {key} must not be negative, but is {value(key)}.")
    if config.uncertainty.samples < 2:
        raise UsageError(f"Setting uncertainty.samples must be at least 2, but is {config.uncertainty.samples}.")
    chunk = config.training.chunk
    if chunk % 2:
        raise UsageError(f"Setting training.chunk must be even (policies learn every second step), but is {chunk}.")
    for key in ("training.steps", "training.checkpoint_every", "evaluation.every"):
        if value(key) % chunk:
            raise UsageError(f"Setting {key}={value(key)} must be a multiple of training.chunk={chunk}.")
    for key in ("diffusion.steps", "consistency.steps", "quantile.steps", "behaviour.steps"):
        if value(key) % STAGE_CHUNK:
            raise UsageError(f"Setting {key}={value(key)} must be a multiple of {STAGE_CHUNK}.")
    groups = config.q_distribution.groups
    for size in config.q_distribution.hidden:
        if size % groups or size < 4 * groups:  # with fewer channels a group's normalised values carry next to nothing
            raise UsageError(
                f"Setting q_distribution.hidden needs multiples of q_distribution.groups={groups} of at least {4 * groups}, "
                f"but has {size}."
            )
    return config
