"""What a careful researcher checks before training on a dataset, as numbers; `qdq.report.data_card` draws them."""

import hashlib
from typing import Any

import numpy as np

from qdq.data.coverage import coverage
from qdq.data.curves import curves
from qdq.data.episodes import Dataset
from qdq.data.faults import find_faults
from qdq.errors import DataError

BINS = 40
CARD_FILE = "data_card.json"  # where a run folder keeps the summary


def inspect_dataset(dataset: Dataset, q_width: int = 200, q_stride: int = 10, discount: float = 0.99) -> dict[str, Any]:
    """A summary of `dataset` that can be stored as JSON, ending with warnings about the classic faults."""
    reference, final = dataset.metadata.reference, np.cumsum(dataset.lengths) - 1
    terminal = dataset.terminals[final]
    arrays = (dataset.observations, dataset.actions, dataset.rewards, dataset.terminals, dataset.truncations)
    summary: dict[str, Any] = {
        "name": dataset.name,
        "source": dataset.metadata.source,
        "environment": dataset.metadata.environment_id,
        "task": dataset.metadata.task,
        "sha256": dataset.sha256,
        "transitions": dataset.transitions,
        "episodes": dataset.episodes,
        "observation_size": dataset.observation_size,
        "action_size": dataset.action_size,
        "megabytes": sum(array.nbytes for array in arrays) / 1e6,
        "lengths": _spread(dataset.lengths),
        "returns": _spread(dataset.episode_returns),
        "rewards": _spread(dataset.rewards) | {"nonzero": float((dataset.rewards != 0).mean())},
        "score": dataset.behaviour_score,
        "reference": reference and {"random": reference.random, "expert": reference.expert, "origin": reference.origin},
        "ends": {
            "terminal_episodes": float(terminal.mean()),
            "truncated_episodes": float(1.0 - terminal.mean()),
            "terminal_transitions": float(dataset.terminals.mean()),
            "truncated_transitions": float(dataset.truncations.mean()),
        },
        "actions": _actions(dataset),
        "observations": _observations(dataset),
        "duplicate_transitions": _duplicates(dataset),
        "coverage": coverage(dataset),
        "q_dataset": _q_preview(dataset, q_width, q_stride, discount),
        "curves": curves(dataset),
        "details": _plain(dataset.metadata.details),
    }
    summary["warnings"] = find_faults(dataset, summary)
    return summary


def _plain(value: Any) -> Any:
    """What JSON can hold: a file's own details may contain NaN or anything else."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _spread(values: np.ndarray) -> dict[str, Any]:
    values = np.asarray(values, np.float64)
    counts, edges = np.histogram(values, bins=BINS)
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "max": float(values.max()),
        "std": float(values.std()),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _actions(dataset: Dataset) -> dict[str, Any]:
    low, high, actions = dataset.action_low, dataset.action_high, dataset.actions
    near = 1e-3 * (high - low)
    at_bounds = (actions <= low + near) | (actions >= high - near)
    return {
        "low": low.tolist(),
        "high": high.tolist(),
        **_columns(actions),
        "used_range": ((actions.max(axis=0) - actions.min(axis=0)) / (high - low)).tolist(),
        "at_bounds": float(at_bounds.mean()),
        "at_bounds_by_dimension": at_bounds.mean(axis=0).tolist(),
    }


def _observations(dataset: Dataset) -> dict[str, Any]:
    values = dataset.observations
    columns = _columns(values)
    groups: dict[str, int] = {}
    duplicates = []
    constant = [i for i, (low, high) in enumerate(zip(columns["min"], columns["max"], strict=True)) if low == high]
    for column in range(values.shape[1]):
        if column in constant:
            continue
        mark = hashlib.sha256(np.ascontiguousarray(values[:, column]).data).hexdigest()
        if mark in groups:
            duplicates.append([groups[mark], column])
        groups.setdefault(mark, column)
    return {**columns, "constant": constant, "duplicates": duplicates}


def _columns(values: np.ndarray) -> dict[str, list[float]]:
    return {
        "min": values.min(axis=0).tolist(),
        "mean": values.mean(axis=0, dtype=np.float64).tolist(),
        "max": values.max(axis=0).tolist(),
        "std": values.std(axis=0, dtype=np.float64).tolist(),
    }


def _duplicates(dataset: Dataset) -> int:
    """Transitions equal to an earlier one in state, action, reward and next state, by a 64-bit hash of their bits."""
    random = np.random.default_rng(0)

    def mixed(values: np.ndarray) -> np.ndarray:
        """A 64-bit number per row; equal rows have equal numbers."""
        bits = np.ascontiguousarray(values, np.float32).reshape(len(values), -1).view(np.uint32)
        total = np.zeros(len(bits), np.uint64)
        for column in range(bits.shape[1]):  # sums wrap around, which is what a hash wants
            factor = random.integers(1, 2**63, dtype=np.uint64) | np.uint64(1)
            word = bits[:, column].astype(np.uint64) * factor
            total += word ^ (word >> np.uint64(29))
        return total

    states = mixed(dataset.observations)
    after = states[dataset.rows + 1]
    keys = states[dataset.rows] + mixed(dataset.actions) + mixed(dataset.rewards) + (after ^ (after >> np.uint64(31)))
    return int(len(keys) - len(np.unique(keys)))


def _q_preview(dataset: Dataset, width: int, stride: int, discount: float) -> dict[str, Any]:
    """The truncated Q dataset that these settings would give."""
    from qdq import q_dataset

    preview: dict[str, Any] = {"width": width, "stride": stride, "discount": discount}
    _, exact = q_dataset.truncated_returns(dataset, width, discount)
    preview["exact_share"] = float(exact.mean())
    try:
        built = q_dataset.build(dataset, q_dataset.Config(width=width, stride=stride, discount=discount))
    except DataError as error:
        return preview | {"error": str(error)}
    return preview | {"windows": len(built.values), **_spread(built.values)}
