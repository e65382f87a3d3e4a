"""Presets: named sets of values, each with its origin.

`paper` and `release` exist for each of the paper's 15 tasks and are literal, even where they do not train stably.
`fast` is the default and `demo` a shorter form of it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from qdq import config as configuration
from qdq.config import Config, Sources
from qdq.data.episodes import Dataset
from qdq.errors import UsageError, suggest
from qdq.q_dataset import fitting_width

Values = dict[str, tuple[Any, str]]

OURS = ("fast", "demo")  # may fit a dataset; the others are literal
COMMAND_LINE = "command line"
FITTED = "half of the usual episode, because a time limit cuts nearly all windows of the preset's width"

LOCOMOTION = ("halfcheetah", "hopper", "walker2d")
LEVELS = ("medium", "medium-replay", "medium-expert")
MAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
TASKS = tuple(f"{body}-{level}" for body in LOCOMOTION for level in LEVELS) + tuple(f"antmaze-{maze}" for maze in MAZES)


@dataclass(frozen=True)
class Preset:
    """A description, values for every algorithm, and values for one algorithm."""

    description: str
    common: Values = field(default_factory=dict)
    by_algorithm: dict[str, Values] = field(default_factory=dict)


# What each baseline's own paper does to the data; it holds under every preset.
BASELINE_DATA: dict[str, Values] = {
    "td3-bc": {"data.normalise_states": (True, "TD3+BC paper, Section 5")},
    "iql": {"data.reward_scaling": ("return_range", "IQL paper, Appendix B")},
}

ANTMAZE_COMMON: Values = {
    "data.reward_shift": (-1.0, "paper, Appendix G.4 (as IQL)"),
    "evaluation.every": (100_000, "paper, Figure 10"),
    "evaluation.episodes": (100, "paper, Table 4"),
}
ANTMAZE_IQL: Values = {
    "data.reward_scaling": ("none", "IQL paper, Appendix B: AntMaze rewards are only shifted"),
    "algorithm.expectile": (0.9, "IQL paper, Appendix B"),
    "algorithm.advantage_temperature": (10.0, "IQL paper, Appendix B"),
}


def _paper(task: str) -> Preset:
    table = "paper, Table 4"
    body = task.split("-")[0]
    alpha = 0.99 if body in ("halfcheetah", "antmaze") or task in ("hopper-medium", "hopper-medium-replay") else 0.95
    entropy = 0.0 if task in ("halfcheetah-medium", "halfcheetah-medium-replay") else 1.0
    values: Values = {
        "algorithm.alpha": (alpha, table),
        "algorithm.beta": (0.8 if body == "hopper" else 0.9, table),
        "algorithm.entropy_weight": (entropy, table),
        "algorithm.penalty": ("paper", "paper, Eq. 8 as printed"),
        "uncertainty.rule": ("monte_carlo", "paper, Eq. 6"),
    }
    if body == "antmaze":
        values["algorithm.objective"] = ("awr", "paper, Section 3.2")
    common = ANTMAZE_COMMON if body == "antmaze" else {}
    by_algorithm = {"qdq": values} | ({"iql": ANTMAZE_IQL} if body == "antmaze" else {})
    return Preset(f"The paper's Tables 3 and 4 for {task}, literally.", common, by_algorithm)


RELEASE_ENTROPY = {
    "halfcheetah-medium": 0.0,
    "halfcheetah-medium-replay": 0.1,
    "halfcheetah-medium-expert": 2.0,
    "antmaze-umaze": 0.0,
    "antmaze-umaze-diverse": 1.5,
    "antmaze-medium-play": 0.0,
    "antmaze-medium-diverse": 1.0,
    "antmaze-large-play": 0.0,
    "antmaze-large-diverse": 0.0,
}


def _release(task: str) -> Preset:
    origin = f"released configuration of {task}"
    body = task.split("-")[0]
    entropy = RELEASE_ENTROPY.get(task, 2.0 if task.endswith("medium-expert") else 0.8)
    values: Values = {
        "algorithm.alpha": (0.992, origin),
        "algorithm.beta": (0.8 if body in ("hopper", "walker2d") else 0.9, origin),
        "algorithm.entropy_weight": (entropy, origin),
        "algorithm.gradient_clip": (10.0, origin),
        "algorithm.penalty": ("paper", "released code: Eq. 8 with raw 1/H"),
        "algorithm.sample_target_action": (entropy > 0, "released code: sampled where the entropy weight is positive"),
        "algorithm.policy_cosine_decay": (True, "released code"),
        "uncertainty.rule": ("monte_carlo", "released code"),
        "q_dataset.tail": ("release", "released code"),
        "diffusion.steps": (800_000, "released configuration"),
        "diffusion.cosine_decay": (True, "released configuration"),
        "consistency.steps": (1_600_000, "released configuration"),
        "consistency.cosine_decay": (True, "released configuration"),
    }
    if body == "antmaze":
        values |= {
            "algorithm.alpha": (0.01 if task == "antmaze-umaze-diverse" else 0.99, origin),
            "algorithm.gradient_clip": (3.0 if task == "antmaze-large-diverse" else 7.0, origin),
            "algorithm.objective": ("eq9" if task == "antmaze-umaze-diverse" else "awr", origin),
            "algorithm.penalty": (
                "release_umaze_diverse" if task == "antmaze-umaze-diverse" else "release_antmaze",
                "released code, chosen there by environment name",
            ),
            "algorithm.policy_hidden": ((256, 256), origin),
            "algorithm.critic_hidden": ((256, 256), origin),
            "algorithm.critic_layer_norm": (task.startswith("antmaze-large"), origin),
        }
    common = ANTMAZE_COMMON if body == "antmaze" else {}
    by_algorithm = {"qdq": values} | ({"iql": ANTMAZE_IQL} if body == "antmaze" else {})
    return Preset(f"The released configuration files for {task}, literally.", common, by_algorithm)


FAST_QDQ: Values = {
    "data.normalise_states": (True, "ours: docs/results.md"),
    "q_distribution.learner": ("quantile", "ours: calibrated in minutes where distillation needs hours"),
    "q_distribution.hidden": ((256, 256), "ours: speed"),
    "q_dataset.stride": (1, "ours: docs/research.md; the paper's 10 leaves nine tenths of the windows out"),
    "quantile.steps": (5_000, "ours: docs/research.md; longer runs memorise"),
    "quantile.learning_rate": (3e-3, "ours: docs/research.md"),
    "quantile.level_spread": (1.3, "ours: docs/research.md; the tails decide H"),
    "quantile.tail_weight": (0.5, "ours: docs/research.md; the tails decide H"),
    "quantile.weight_decay": (5.0, "ours: docs/research.md; against memorising"),
    "quantile.average_share": (0.1, "ours: docs/research.md; against memorising"),
    "quantile.calibration_share": (0.1, "ours: docs/research.md; intervals that hold for new episodes"),
    "uncertainty.nodes": (4, "ours: speed; H only orders actions here"),
    "uncertainty.agreement": (0.1, "ours: speed; H only orders actions here"),
    "algorithm.uncertainty": ("behaviour", "ours: docs/default.md; H hardly sees the action"),
    "algorithm.penalty": ("none", "ours: docs/research.md; targets that ask about recorded actions alone need none"),
    "algorithm.bootstrap": ("recorded", "ours: docs/research.md; asks nothing about actions that nobody took"),
    "algorithm.objective": ("support", "ours: docs/research.md"),
    "algorithm.risk_weight": (0.15, "ours: docs/research.md"),
    "algorithm.standardise_values": (True, "ours: critics start where the returns are"),
    "algorithm.critic_activation": ("relu", "ours: speed"),
    "algorithm.advantage_unit": ("return_std", "ours: the same temperature for any reward unit"),
    "algorithm.advantage_temperature": (10.0, "ours: docs/results.md"),
    "algorithm.advantage_cap": (20.0, "ours: docs/results.md"),
    "algorithm.value_samples": (0, "ours: speed"),
    "algorithm.extraction_share": (0.05, "ours: docs/research.md; a start from the recorded returns needs no ramp"),
    "algorithm.target_rate": (0.01, "ours: short runs need faster targets"),
    "algorithm.policy_cosine_decay": (True, "ours: docs/research.md; scores settle at the end of a run"),
    "algorithm.policy_hidden": ((256, 256), "ours: speed"),
    "algorithm.critic_hidden": ((256, 256), "ours: speed"),
    "training.average_rate": (0.002, "ours: scores of single weights swing between evaluations"),
    "training.state_noise": (0.05, "ours: docs/research.md; helps hopper, more of it costs halfcheetah"),
    "training.batch_size": (128, "ours: docs/research.md; half the time, and no worse where it was compared"),
}

PRESETS: dict[str, Preset] = {
    "fast": Preset(
        "Our default: 100,000 steps, for any dataset, in minutes on two cores.",
        {"training.steps": (100_000, "ours: speed")},
        {"qdq": FAST_QDQ},
    ),
    "demo": Preset(
        "`fast` cut down to a few minutes.",
        {
            "training.steps": (16_000, "ours: speed"),
            "training.checkpoint_every": (4_000, "ours: speed"),
            "evaluation.every": (1_600, "ours: speed"),
        },
        {
            "qdq": FAST_QDQ
            | {"behaviour.steps": (4_000, "ours: speed"), "algorithm.extraction_share": (0.2, "ours: speed")}
        },
    ),
    **{f"paper/{task}": _paper(task) for task in TASKS},
    **{f"release/{task}": _release(task) for task in TASKS},
}


def resolve_name(preset: str, task: str | None) -> str:
    """The full name of a preset: `paper` and `release` become `paper/TASK` by the dataset's task."""
    if preset in ("paper", "release"):
        if task not in TASKS:
            raise UsageError(
                f"Preset {preset!r} exists for each of the paper's tasks, and none of them is given; "
                f"choose one explicitly, such as {preset}/hopper-medium, or use fast."
            )
        preset = f"{preset}/{task}"
    if preset not in PRESETS:
        raise UsageError(f"Unknown preset {preset!r}; {suggest(preset, list(PRESETS))}")
    return preset


def build(
    algorithm: str,
    preset: str = "fast",
    task: str | None = None,
    overrides: tuple[str, ...] = (),
    steps: int | None = None,
) -> tuple[Config, Sources]:
    """The checked configuration of a run, and the origin of every value."""
    name = resolve_name(preset, task)
    config = replace(configuration.default(algorithm), preset=name)
    sources = {key: configuration.source_of(config, key) for key in configuration.keys(config)}
    chosen = PRESETS[name]
    maze: Values = {}
    if task is not None and task.startswith("antmaze-"):  # also under `fast`: what AntMaze's rewards need
        maze = {"data.reward_shift": ANTMAZE_COMMON["data.reward_shift"]} | (ANTMAZE_IQL if algorithm == "iql" else {})
    layers = (BASELINE_DATA.get(algorithm, {}), maze, chosen.common, chosen.by_algorithm.get(algorithm, {}))
    for key, (value, source) in (item for layer in layers for item in layer.items()):
        config = configuration.replace(config, key, value)
        sources[key] = source
    if steps is not None:
        config, sources["training.steps"] = configuration.replace(config, "training.steps", steps), COMMAND_LINE
    for override in overrides:
        config, key = configuration.apply_override(config, override)
        sources[key] = COMMAND_LINE
    return configuration.check(config), sources


def build_for(
    dataset: Dataset, algorithm: str, preset: str = "fast", overrides: tuple[str, ...] = (), steps: int | None = None
) -> tuple[Config, Sources]:
    """The configuration of a run on a dataset: for its task and, under our own presets, with windows that its episodes fill."""
    config, sources = build(algorithm, preset, dataset.metadata.task, overrides, steps)
    width = fitting_width(dataset, config.q_dataset.width)
    chosen = sources["q_dataset.width"] == COMMAND_LINE or config.preset not in OURS
    if width < config.q_dataset.width and not chosen:
        config = configuration.check(configuration.replace(config, "q_dataset.width", width))
        sources["q_dataset.width"] = FITTED
    return config, sources
