"""QDQ: offline reinforcement learning that says where it cannot be trusted.

    run = qdq.train(qdq.load_dataset("hopper-medium-replay"))
    actions = run.policy(observations)
    risk = run.uncertainty(observations, actions)

Names are imported on first use, so that `import qdq` costs nothing.
"""

import importlib
from typing import Any

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

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qdq' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
