"""QDQ: offline reinforcement learning that says where it cannot be trusted.

    run = qdq.train(qdq.load_dataset("hopper-medium-replay"))
    actions = run.policy(observations)
    risk = run.uncertainty(observations, actions)

Names are imported on first use, so that `import qdq` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdq.api import Run, load_run, train
    from qdq.data.episodes import Dataset, Metadata, from_arrays
    from qdq.data.load import load_dataset
    from qdq.errors import QDQError

__all__ = ["Dataset", "Metadata", "QDQError", "Run", "from_arrays", "load_dataset", "load_run", "train"]

_HOMES = {
    "Dataset": "qdq.data.episodes",
    "Metadata": "qdq.data.episodes",
    "from_arrays": "qdq.data.episodes",
    "load_dataset": "qdq.data.load",
    "train": "qdq.api",
    "load_run": "qdq.api",
    "Run": "qdq.api",
    "QDQError": "qdq.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qdq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
