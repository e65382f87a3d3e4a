"""The names of D4RL's tasks: which environment a file belongs to, read from its name."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MUJOCO = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4", "ant": "Ant-v4"}
MUJOCO_SIZES = {  # of an observation and an action; D4RL's ant also records contact forces
    "Hopper-v4": (11, 3),
    "HalfCheetah-v4": (17, 6),
    "Walker2d-v4": (17, 6),
    "Ant-v4": (111, 8),
}
MUJOCO_LEVELS = ("random", "medium", "expert", "medium-replay", "medium-expert", "full-replay")
MAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
PAPER_TASKS = (
    *(
        f"{family}-{level}"
        for family in ("hopper", "halfcheetah", "walker2d")
        for level in MUJOCO_LEVELS[1:2] + MUJOCO_LEVELS[3:5]
    ),
    *(f"antmaze-{maze}" for maze in MAZES),
)
ANTMAZE_NOTE = (
    "D4RL's own ant has other physics than gymnasium-robotics' AntMaze, so a policy trained on this file is not scored "
    "in that simulator."
)

_LEVELS = sorted(MUJOCO_LEVELS, key=len, reverse=True)
_MUJOCO = re.compile(rf"(?<![a-z0-9])({'|'.join(MUJOCO)})-({'|'.join(_LEVELS)})(?:-v\d+)?(?![a-z])")
_MAZE = re.compile(rf"(?<![a-z0-9])antmaze-({'|'.join(sorted(MAZES, key=len, reverse=True))})(?:-v\d+)?(?![a-z])")
_MAZE_FILES = {  # D4RL's names for the mazes, and for (many starts, many goals)
    ("u-maze", "False", "False"): "umaze",
    ("u-maze", "True", "True"): "umaze-diverse",
    ("big-maze", "True", "False"): "medium-play",
    ("big-maze", "True", "True"): "medium-diverse",
    ("hardest-maze", "True", "False"): "large-play",
    ("hardest-maze", "True", "True"): "large-diverse",
}
_MAZE_FILE = re.compile(r"ant_maze_(u-maze|big-maze|hardest-maze)_noisy_multistart_(true|false)_multigoal_(true|false)")


@dataclass(frozen=True)
class Task:
    """What a D4RL name says about the data."""

    name: str  # such as hopper-medium
    environment_id: str | None  # for evaluation; none where no simulator has the same physics
    step_limit: int  # D4RL's time limit of an episode

    @property
    def is_antmaze(self) -> bool:
        return self.name.startswith("antmaze")


def recognise(name: str) -> Task | None:
    """The D4RL task that a file or dataset name speaks of, if any."""
    lower = name.lower()
    if match := _MAZE_FILE.search(lower):
        maze, starts, goals = match.groups()
        level = _MAZE_FILES.get((maze, starts.capitalize(), goals.capitalize()))
        return None if level is None else _antmaze(level)
    dashed = lower.replace("_", "-").replace("mixed", "medium-replay").replace("walker-", "walker2d-")
    if match := _MAZE.search(dashed):
        return _antmaze(match.group(1))
    if match := _MUJOCO.search(dashed):
        return Task(f"{match.group(1)}-{match.group(2)}", MUJOCO[match.group(1)], 1000)
    return None


def never_terminates(environment_id: str | None, options: Mapping[str, Any]) -> bool:
    """Whether episodes of an environment end by a time limit only; mazes go on at the goal unless told otherwise."""
    if environment_id is None:
        return False
    if environment_id.startswith(("AntMaze", "PointMaze")):
        return bool(options.get("continuing_task", True))
    return environment_id.startswith("HalfCheetah")


def _antmaze(level: str) -> Task:
    return Task(f"antmaze-{level}", None, 700 if level.startswith("umaze") else 1000)
