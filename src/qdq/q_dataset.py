"""Stage 1, the truncated Q dataset (Eq. 5): what really followed a state and an action, within a window.

    Q_T(s_i, a_i) = sum over m = i .. i+T-1 of discount^(m-i) * r_m

Windows start at 0, k, 2k, ... in every episode and never cross its end. A window cut by a terminal is exact. A window
cut by a time limit is too low: `tail="exact"` drops it, but keeps the first window of each episode so that no episode
vanishes. `tail="release"` follows the released code: an episode no longer than T gives its first window, a longer one
gives windows up to and including the first that reaches the end, at most 100.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.signal import lfilter

from qdq.data.episodes import Dataset
from qdq.errors import DataError
from qdq.settings import PAPER_TABLE_4, setting

RELEASE_WINDOWS_PER_EPISODE = 100


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
    """Window starts with their truncated returns."""

    index: np.ndarray  # (windows,), the transition at which each window starts
    values: np.ndarray  # (windows,), float32, in reward units
    minimum: float
    maximum: float

    @property
    def constant(self) -> bool:
        """Whether all values are the same."""
        return self.maximum - self.minimum <= 1e-6 * max(abs(self.minimum), abs(self.maximum))


def truncated_returns(dataset: Dataset, width: int, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """For every transition its truncated return, and whether that is exact rather than cut by a time limit."""
    returns = np.empty(dataset.transitions)
    exact = np.ones(dataset.transitions, bool)
    for start, length in zip(dataset.starts, dataset.lengths, strict=True):
        rewards = dataset.rewards[start : start + length].astype(np.float64)
        to_go = np.asarray(lfilter([1.0], [1.0, -discount], rewards[::-1]))[
            ::-1
        ]  # discounted sum up to the episode's end
        window = to_go.copy()
        if length > width:  # subtract what lies beyond the window
            window[:-width] -= discount**width * to_go[width:]
        returns[start : start + length] = window
        if dataset.truncations[start + length - 1]:
            exact[max(start, start + length - width + 1) : start + length] = False
    return returns.astype(np.float32), exact


def collect(dataset: Dataset, config: Config) -> QDataset:
    """The windows of `dataset`, whatever their values."""
    returns, exact = truncated_returns(dataset, config.width, config.discount)
    pieces = []
    for start, length in zip(dataset.starts, dataset.lengths, strict=True):
        offsets = np.arange(0, length, config.stride)
        if config.tail == "release":
            before_end = int(np.sum(offsets + config.width < length))
            offsets = offsets[: min(before_end + 1, RELEASE_WINDOWS_PER_EPISODE)]
        else:
            offsets = offsets[exact[start + offsets] | (offsets == 0)]
        pieces.append(start + offsets)
    index = np.concatenate(pieces)
    values = returns[index]
    return QDataset(index, values, float(values.min()), float(values.max()))


def build(dataset: Dataset, config: Config) -> QDataset:
    """The Q dataset of `dataset`: windows that tell actions apart."""
    windows = collect(dataset, config)
    if windows.constant:
        raise DataError(
            f"Dataset {dataset.name!r} has the same truncated return {windows.maximum:.6g} everywhere, so no action can be "
            "told from another; check the rewards, use a longer window (q_dataset.width), or imitate with --algorithm bc."
        )
    return windows
