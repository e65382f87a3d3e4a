"""Data for the readers' tests: small, seeded, in a folder of its own, never from the network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.data.episodes import Dataset, Metadata, from_arrays


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari datasets and caches of a test go to its own folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("QDQ_CACHE", str(tmp_path / "cache"))


def _rows(
    lengths: tuple[int, ...] = (7, 5, 9, 6),
    terminal: tuple[bool, ...] = (True, False, True, False),
    seed: int = 0,
    sizes: tuple[int, int] = (4, 2),
) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "next_observations", "terminals", "truncations")}
    for length, ends_in_terminal in zip(lengths, terminal, strict=True):
        states = np.cumsum(random.normal(size=(length + 1, sizes[0])), axis=0).astype(np.float32)
        final = np.arange(length) == length - 1
        rows["observations"].append(states[:-1])
        rows["next_observations"].append(states[1:])
        rows["terminals"].append(final & ends_in_terminal)
        rows["truncations"].append(final & (not ends_in_terminal))
    arrays: dict[str, Any] = {key: np.concatenate(value) for key, value in rows.items()}
    arrays["actions"] = random.uniform(-1, 1, (sum(lengths), sizes[1])).astype(np.float32)
    arrays["rewards"] = random.normal(size=sum(lengths)).astype(np.float32)
    return arrays


@pytest.fixture
def make_rows() -> Callable[..., dict[str, Any]]:
    """Makes rows of random-walk episodes: one array per column, as a reader would find them."""
    return _rows


@pytest.fixture
def dataset() -> Dataset:
    """A small dataset with both kinds of ends, and bounds that are not the default."""
    metadata = Metadata(name="walk", details={"how": "random walk"})
    return from_arrays(**_rows(), action_low=[-1.5, -1.25], action_high=[1.5, 2.0], metadata=metadata)
