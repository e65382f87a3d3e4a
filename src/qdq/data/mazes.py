"""Mazes: how their environments are found, and the scripted controller that collects PointMaze data.

The controller needs no training. It looks up the next cell on a shortest path to a target cell, and steers to its
centre with a proportional-derivative rule and Gaussian noise; in the goal's own cell it steers to the goal. Like D4RL's
mazes, its data holds more than successes. Every episode draws how noisy it is and one of three errands:

    direct     straight to the goal
    detour     through one to three random cells, then to the goal
    wandering  from one random cell to the next, never through the goal's cell, until the time limit; where the goal
               bars the only way it waits
"""

import contextlib
import io
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from qdq.errors import UsageError

POINT_MAZES = {"umaze": "PointMaze_UMaze-v3", "medium": "PointMaze_Medium-v3", "large": "PointMaze_Large-v3"}

# The goal ends the episode, as in D4RL's AntMaze; Gymnasium's default goes on after the goal until the time limit.
POINT_MAZE_OPTIONS: dict[str, Any] = {"continuing_task": False}

Errand = Literal["direct", "detour", "wandering"]
ERRANDS: dict[Errand, float] = {"direct": 0.4, "detour": 0.3, "wandering": 0.3}  # shares of the episodes
DETOURS = 3  # at most
SPREADS = (0.2, 1.0)  # range of the noise on actions, drawn for each episode

Cell = tuple[int, int]


def register_robotics(environment_id: str) -> None:
    """Make gymnasium-robotics known to Gymnasium, where the id is one of its environments.

    An id such as `module:Name-v0` is refused: Gymnasium would import that module, and ids come from files.
    """
    if ":" in environment_id:
        raise UsageError(
            f"The environment {environment_id!r} names a module to import, which is never done for an id from a file; "
            "register it by importing the module yourself, and give its id without the module."
        )
    if not environment_id.startswith(("AntMaze", "PointMaze", "Franka", "Adroit")):
        return
    import gymnasium

    with contextlib.redirect_stderr(io.StringIO()):  # on import it prints news about other environments
        import gymnasium_robotics
    gymnasium.register_envs(gymnasium_robotics)


def free_cells(maze_map: Iterable[Iterable[Any]]) -> set[Cell]:
    """Rows and columns of the cells that are not walls."""
    return {(i, j) for i, row in enumerate(maze_map) for j, cell in enumerate(row) if cell != 1}


def next_cells(free: set[Cell], goal: Cell) -> dict[Cell, Cell]:
    """For every free cell from which `goal` can be reached, the next cell on a shortest path to it."""
    following = {goal: goal}
    queue = deque([goal])
    while queue:
        i, j = queue.popleft()
        for neighbour in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
            if neighbour in free and neighbour not in following:
                following[neighbour] = (i, j)
                queue.append(neighbour)
    return following


class WaypointController:
    """Drives the point of a PointMaze; a behaviour policy on the environment's own (dict) observations."""

    def __init__(self, maze: Any, gain: float = 4.0, damping: float = 0.8):
        self.maze = maze
        self.gain, self.damping = gain, damping
        self.free = free_cells(maze.maze_map)
        self.centres = {cell: np.asarray(maze.cell_rowcol_to_xy(np.asarray(cell))) for cell in self.free}
        self.paths: dict[tuple[Cell, Cell | None], dict[Cell, Cell]] = {}  # by target and avoided cell
        self.begin(None)

    def begin(self, noise: np.random.Generator | None, errand: Errand | None = None) -> None:
        """Start an episode: draw its noise and, unless given, its errand; without randomness straight to the goal."""
        self.target: Cell | None = None
        self.errand: Errand = errand or "direct"
        self.spread, self.detours = 0.5, 0
        if noise is not None:
            drawn = list(ERRANDS)[noise.choice(len(ERRANDS), p=list(ERRANDS.values()))]
            self.errand = errand or drawn
            self.spread = noise.uniform(*SPREADS)
            self.detours = int(noise.integers(1, DETOURS + 1)) if self.errand == "detour" else 0

    def act(self, observation: Mapping[str, np.ndarray], noise: np.random.Generator | None) -> np.ndarray:
        """An action in [-1, 1]; straight to the goal with exact steering where `noise` is None."""
        position, velocity = observation["achieved_goal"], observation["observation"][2:]
        cell, goal = self._cell(position), self._cell(observation["desired_goal"])
        avoided = goal if self.errand == "wandering" else None
        if self.target in (None, cell):
            self.target = goal if noise is None else self._next_target(cell, goal, noise)
        # A point pressed against a wall may be counted to the wall's cell for a moment: head for the target then.
        following = self._path(self.target, avoided).get(cell, self.target)
        point = observation["desired_goal"] if following == goal else self.centres[following]
        action = self.gain * (point - position) - self.damping * velocity
        if noise is not None:
            action = action + self.spread * noise.standard_normal(2)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _next_target(self, cell: Cell, goal: Cell, noise: np.random.Generator) -> Cell:
        """Where the next leg of the errand leads from `cell`."""
        if self.errand == "wandering":
            reachable = next_cells(self.free - {goal}, cell)
        elif self.detours > 0:
            self.detours -= 1
            reachable = next_cells(self.free, cell)
        else:
            return goal
        choices = sorted(set(reachable) & self.free - {cell, goal})
        return choices[noise.integers(len(choices))] if choices else cell

    def _path(self, target: Cell, avoided: Cell | None) -> dict[Cell, Cell]:
        """The next cell on a shortest path to `target`, from every cell and around the avoided one."""
        if (target, avoided) not in self.paths:
            self.paths[target, avoided] = next_cells(self.free - {avoided}, target)
        return self.paths[target, avoided]

    def _cell(self, position: np.ndarray) -> Cell:
        row, column = self.maze.cell_xy_to_rowcol(position)
        return int(row), int(column)
