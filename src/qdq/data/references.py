"""Reference returns that turn a return into a score from 0 (random) to 100 (expert)."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Reference:
    """Two returns and where they come from."""

    random: float
    expert: float
    origin: str

    def score(self, returns: Any) -> Any:
        """100 * (return - random) / (expert - random); for mazes 100 where the goal was reached, however long it was held."""
        if self.origin == "success":
            return np.where(np.asarray(returns) > 0, 100.0, 0.0)
        return 100.0 * (np.asarray(returns) - self.random) / (self.expert - self.random)


_D4RL = {
    "Hopper": (-20.272305, 3234.3),
    "HalfCheetah": (-280.178953, 12135.0),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}


def d4rl_reference(environment_id: str | None) -> Reference | None:
    """D4RL's reference returns for a Gymnasium id, if D4RL has them; mazes score success as 100."""
    if environment_id is None:
        return None
    family = environment_id.split("-")[0]
    if family in _D4RL:
        return Reference(*_D4RL[family], origin="D4RL")
    if family.startswith(("AntMaze", "PointMaze")):
        return Reference(0.0, 1.0, origin="success")
    return None
