"""Stage 1, the truncated Q dataset (Eq. 5): what really followed a state and an action, within a window.

    Q_T(s_i, a_i) = sum over m = i .. i+T-1 of discount^(m-i) * r_m

Windows start at 0, k, 2k, ... in every episode and never cross its end. A window cut by a terminal is exact. A window
cut by a time limit is too low: `tail="exact"` drops it, but keeps the first window of each episode so that no episode
vanishes. `tail="release"` follows the released code: an episode no longer than T gives its first window, a longer one
gives windows up to and including the first that reaches the end, at most 100.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.signal import lfilter

from qdq.data.blocks import blocks_of, is_mapped, release
from qdq.data.episodes import Dataset, Part
from qdq.data.rows import ArrayStore, Store
from qdq.errors import DataError
from qdq.settings import PAPER_TABLE_4, setting

RELEASE_WINDOWS_PER_EPISODE = 100
FEWEST_EXACT = 0.05  # share of the transitions whose window is exact, where something is to be learned from them
LONGEST_PART = 2**18  # transitions that are looked at together; a longer episode is taken in parts


@dataclass(frozen=True)
class Config:
    """Settings of the truncated Q dataset."""

    width: int = setting(200, "window width T, in steps", PAPER_TABLE_4)
    stride: int = setting(10, "distance k between window starts, in steps", PAPER_TABLE_4)
    discount: float = setting(0.99, "discount per step inside a window", PAPER_TABLE_4)
    tail: Literal["exact", "release"] = setting(
        "exact", "windows cut by a time limit: dropped, or kept as in the release"
    )


@dataclass(frozen=True, eq=False)
class QDataset:
    """Window starts with their truncated returns, and the truncated return of every transition."""

    index: np.ndarray  # (windows,), the transition at which each window starts
    rows: np.ndarray  # (windows,), the row of its observation
    values: np.ndarray  # (windows,), float32, in reward units
    returns: np.ndarray  # (transitions,), float32
    exact: np.ndarray  # (transitions,), whether that return is exact rather than cut by a time limit
    minimum: float  # of the values, like the next two
    maximum: float
    std: float
    exact_share: float  # of the transitions

    @property
    def mean(self) -> float:
        """Of the values."""
        return sum(float(block.sum(dtype=np.float64)) for block in blocks_of(self.values)) / len(self.values)

    @property
    def constant(self) -> bool:
        """Whether all values are the same."""
        return self.maximum - self.minimum <= 1e-6 * max(abs(self.minimum), abs(self.maximum))


def truncated_returns(dataset: Dataset, width: int, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """For every transition its truncated return, and whether that is exact rather than cut by a time limit."""
    returns, exact = np.empty(dataset.transitions, np.float32), np.empty(dataset.transitions, bool)
    for part in dataset.parts(LONGEST_PART):
        span = slice(part.start, part.stop)
        returns[span], exact[span] = _returns(dataset, part, width, discount)
    return returns, exact


def fitting_width(dataset: Dataset, width: int) -> int:
    """`width`, or half of the usual episode where time limits leave hardly a window of that width exact."""
    cut = dataset.truncations[np.cumsum(dataset.lengths) - 1]
    exact = dataset.lengths[~cut].sum() + np.maximum(dataset.lengths[cut] - width + 1, 0).sum()
    if exact >= FEWEST_EXACT * dataset.transitions:
        return width
    return min(width, max(2, int(np.median(dataset.lengths)) // 2))


def collect(dataset: Dataset, config: Config, store: Store | None = None) -> QDataset:
    """The windows of `dataset`, whatever their values; `store` is where their columns grow, in memory by default."""
    store = store or ArrayStore()
    exact_count, waiting, gathered = 0, 0, list[dict[str, np.ndarray]]()
    for part in dataset.parts(LONGEST_PART):
        returns, exact = _returns(dataset, part, config.width, config.discount)
        index = part.begin + _offsets(part, config, exact)
        values = returns[index - part.start]
        columns = {"index": index, "rows": index + part.episode, "values": values, "returns": returns, "exact": exact}
        gathered.append(columns)
        exact_count, waiting = exact_count + int(exact.sum()), waiting + len(returns)
        if waiting >= LONGEST_PART or part.stop == dataset.transitions:
            for name in columns:
                store.append(name, np.concatenate([parts[name] for parts in gathered]))
            release(dataset.rewards, dataset.truncations)
            waiting, gathered = 0, []
    columns = store.finish()
    values = columns["values"]
    minimum = min(float(block.min()) for block in blocks_of(values))
    maximum = max(float(block.max()) for block in blocks_of(values))
    return QDataset(
        **columns, minimum=minimum, maximum=maximum, std=_std(values), exact_share=exact_count / dataset.transitions
    )


def require_differences(windows: QDataset, name: str) -> None:
    """Refuse windows that do not tell actions apart."""
    if windows.constant:
        raise DataError(
            f"Dataset {name!r} has the same truncated return {windows.maximum:.6g} everywhere, so no action can be "
            "told from another; check the rewards, use a longer window (q_dataset.width), or imitate with --algorithm bc."
        )


def build(dataset: Dataset, config: Config) -> QDataset:
    """The Q dataset of `dataset`: windows that tell actions apart."""
    windows = collect(dataset, config)
    require_differences(windows, dataset.name)
    return windows


def _returns(dataset: Dataset, part: Part, width: int, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """The truncated returns of a part of an episode, and which of them are exact."""
    count = part.stop - part.start
    rewards = dataset.rewards[part.start : min(part.stop + width, part.end)].astype(np.float64)
    to_go = np.asarray(lfilter([1.0], [1.0, -discount], rewards[::-1]))[::-1]  # discounted sum up to the last of them
    window = to_go[:count].copy()
    if len(to_go) > width:  # subtract what lies beyond the window
        beyond = to_go[width : width + count]
        window[: len(beyond)] -= discount**width * beyond
    exact = np.ones(count, bool)
    if dataset.truncations[part.end - 1]:
        exact[max(0, part.end - width + 1 - part.start) :] = False
    return window.astype(np.float32), exact


def _offsets(part: Part, config: Config, exact: np.ndarray) -> np.ndarray:
    """Where windows start in a part of an episode, as distances from the episode's begin."""
    first = -(-(part.start - part.begin) // config.stride) * config.stride
    offsets = np.arange(first, part.stop - part.begin, config.stride)
    if config.tail == "release":
        before_end = -(-max(0, part.end - part.begin - config.width) // config.stride)
        return offsets[offsets < config.stride * min(before_end + 1, RELEASE_WINDOWS_PER_EPISODE)]
    return offsets[exact[offsets - (part.start - part.begin)] | (offsets == 0)]


def _std(values: np.ndarray) -> float:
    if not is_mapped(values):
        return float(values.std())
    mean = sum(float(block.sum(dtype=np.float64)) for block in blocks_of(values)) / len(values)
    squares = sum(float(np.square(block - mean, dtype=np.float64).sum()) for block in blocks_of(values))
    return math.sqrt(squares / len(values))
