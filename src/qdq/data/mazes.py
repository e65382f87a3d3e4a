"""PointMaze: which environments the factory knows, and the scripted controller that collects their data.

The controller needs no training. It looks up the next cell on a shortest path to the goal's cell, and steers to its
centre with a proportional-derivative rule and Gaussian noise; in the goal's own cell it steers to the goal.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

POINT_MAZES = {"umaze": "PointMaze_UMaze-v3", "medium": "PointMaze_Medium-v3", "large": "PointMaze_Large-v3"}

# The goal ends the episode, as in D4RL's AntMaze; Gymnasium's default goes on after the goal until the time limit.
POINT_MAZE_OPTIONS: dict[str, Any] = {"continuing_task": False}

Cell = tuple[int, int]


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
    """Drives the point of a PointMaze to its goal; a behaviour policy on the environment's own (dict) observations."""

    def __init__(self, maze: Any, gain: float = 4.0, damping: float = 0.8, spread: float = 0.5):
        self.maze = maze
        self.gain, self.damping, self.spread = gain, damping, spread
        free = free_cells(maze.maze_map)
        self.paths = {goal: next_cells(free, goal) for goal in free}
        self.centres = {cell: np.asarray(maze.cell_rowcol_to_xy(np.asarray(cell))) for cell in free}

    def _cell(self, position: np.ndarray) -> Cell:
        row, column = self.maze.cell_xy_to_rowcol(position)
        return int(row), int(column)

    def act(self, observation: Mapping[str, np.ndarray], noise: np.random.Generator | None) -> np.ndarray:
        """An action in [-1, 1]; exact steering where `noise` is None."""
        position, velocity = observation["achieved_goal"], observation["observation"][2:]
        goal = self._cell(observation["desired_goal"])
        # A point pressed against a wall may be counted to the wall's cell for a moment: head for the goal then.
        following = self.paths[goal].get(self._cell(position), goal)
        target = observation["desired_goal"] if following == goal else self.centres[following]
        action = self.gain * (target - position) - self.damping * velocity
        if noise is not None:
            action = action + self.spread * noise.standard_normal(2)
        return np.clip(action, -1.0, 1.0).astype(np.float32)
