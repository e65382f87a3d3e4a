"""The algorithms: one file each, holding all of its mathematics, with the same names in the same order.

Every module offers `Config`, `State`, `init(config, problem, key)`, its losses, `steps(config, problem)` and
`policy(state)`. To add one, write such a file and enter it here.
"""

import importlib
from types import ModuleType
from typing import Any

from qdq.errors import UsageError, suggest

ALGORITHMS = {
    "qdq": "qdq.algorithms.qdq",
    "bc": "qdq.algorithms.bc",
    "td3-bc": "qdq.algorithms.td3_bc",
    "iql": "qdq.algorithms.iql",
}

USES_Q_DISTRIBUTION = {"qdq"}


def _judges(name: str, settings: Any) -> bool:
    """Whether actions are told apart by their risk: in the targets, or by the policy's objective."""
    return name in USES_Q_DISTRIBUTION and (
        settings.penalty not in ("discount", "none") or settings.objective == "support"
    )


def uses_distribution(name: str, settings: Any) -> bool:
    """Whether a run learns a Q distribution: for its risk signal, or to be asked what may follow; not for a control."""
    if not _judges(name, settings):
        return False
    asked = settings.uncertainty == "behaviour" and settings.objective == "support"
    return asked or settings.uncertainty == "q_distribution"


def uses_behaviour(name: str, settings: Any) -> bool:
    """Whether a run learns a model of the recorded actions."""
    return _judges(name, settings) and settings.uncertainty == "behaviour"


def get(name: str) -> ModuleType:
    """The module of an algorithm."""
    if name not in ALGORITHMS:
        raise UsageError(f"Unknown algorithm {name!r}; {suggest(name, list(ALGORITHMS))}")
    return importlib.import_module(ALGORITHMS[name])
