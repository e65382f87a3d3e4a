"""Dict observations as one vector: the same rule for stored data and for live environments.

The parts of a goal-reaching environment are laid out as `achieved_goal`, `observation`, `desired_goal`. Where the
observation is twice as wide as the goal it is a position with its velocity and already contains `achieved_goal`, which
is then left out (PointMaze: 4 + 2 = 6 numbers). AntMaze has 2 + 27 + 2 = 31. The goal is part of the vector because
it changes between episodes. Other dictionaries of vectors are joined in the order of the space.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdq.errors import DataError

GOAL_KEYS = {"achieved_goal", "observation", "desired_goal"}


@dataclass(frozen=True)
class ObservationLayout:
    """The parts of a flat observation, in order; a single part without a name is a plain vector."""

    parts: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return sum(width for _, width in self.parts)

    def to_json(self) -> list[list[Any]]:
        """The parts as plain lists, for `metadata.details["observation_layout"]`."""
        return [[name, width] for name, width in self.parts]

    @classmethod
    def from_json(cls, content: Any) -> "ObservationLayout":
        """The layout that `to_json` wrote."""
        try:
            return cls(tuple((str(name), int(width)) for name, width in content))
        except (TypeError, ValueError) as error:
            raise DataError(f"The observation layout {content!r} is not a list of names and widths.") from error


def layout_of(space: Any) -> ObservationLayout:
    """How observations of a Gymnasium space are laid out: a vector, or a dictionary of vectors."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        widths = {str(key): _width(str(key), part) for key, part in space.spaces.items()}
        if not widths:
            raise DataError("The observation is a dictionary without parts; at least one vector is needed.")
        if set(widths) != GOAL_KEYS:
            return ObservationLayout(tuple(widths.items()))
        names = ["achieved_goal", "observation", "desired_goal"]
        if widths["observation"] == 2 * widths["achieved_goal"]:
            names.remove("achieved_goal")
        return ObservationLayout(tuple((name, widths[name]) for name in names))
    return ObservationLayout((("", _width("", space)),))


def flatten_observation(observation: Any, layout: ObservationLayout) -> np.ndarray:
    """One observation, or a batch of them along leading axes, as float32 vectors."""
    if not isinstance(observation, Mapping):
        if len(layout.parts) != 1:
            raise DataError(f"A plain observation was given where a dictionary of {layout.to_json()} is needed.")
        return _part("observation", observation, layout.size)
    missing = [name for name, _ in layout.parts if name not in observation]
    if missing:
        raise DataError(
            f"The observation lacks {', '.join(map(repr, missing))}; it has {sorted(map(str, observation))}."
        )
    return np.concatenate([_part(name, observation[name], width) for name, width in layout.parts], axis=-1)


def _part(name: str, value: Any, width: int) -> np.ndarray:
    array = np.asarray(value, np.float32)
    if array.ndim == 0 or array.shape[-1] != width:
        raise DataError(
            f"The part {name!r} of the observation has shape {array.shape} where the last axis must be {width}."
        )
    return array


def _width(name: str, space: Any) -> int:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.shape[0] == 0:
        label = f"The part {name!r} of the observation" if name else "The observation"
        raise DataError(f"{label} is a {space}, but only vectors (one-dimensional Box) are supported.")
    return int(space.shape[0])
