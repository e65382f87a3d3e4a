"""The same data in every format: identical arrays, identical hash, and only our own errors on damaged files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.data.episodes import Dataset, from_arrays
from qdq.data.load import load_dataset, write_dataset
from qdq.errors import QDQError, UsageError

FILES = ("data.hdf5", "data.h5", "data.npz", "data.csv", "data.parquet")


@pytest.mark.parametrize("destination", [*FILES, "minari:test/walk-v0"])
def test_every_format_returns_identical_arrays(dataset: Dataset, tmp_path: Path, destination: str) -> None:
    where = destination if ":" in destination else str(tmp_path / destination)
    write_dataset(dataset, where)
    loaded = load_dataset(where)
    for name in (
        "observations",
        "actions",
        "rewards",
        "terminals",
        "truncations",
        "lengths",
        "action_low",
        "action_high",
    ):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(dataset, name), err_msg=name)
        assert getattr(loaded, name).dtype == getattr(dataset, name).dtype
    assert loaded.sha256 == dataset.sha256
    if destination != "data.csv":  # a table has no room for free details
        assert loaded.name == "walk"
        assert loaded.metadata.details == dataset.metadata.details
    with pytest.raises(UsageError, match="exists"):
        write_dataset(dataset, where)


@pytest.mark.parametrize("destination", FILES)
def test_extreme_numbers_survive(make_rows: Any, tmp_path: Path, destination: str) -> None:
    rows = make_rows()
    rows["rewards"][:4] = np.array([np.float32(1e-45), np.finfo(np.float32).max, -0.0, 1 / 3], np.float32)
    dataset = from_arrays(**rows)
    write_dataset(dataset, str(tmp_path / destination))
    loaded = load_dataset(tmp_path / destination)
    assert loaded.rewards.tobytes() == dataset.rewards.tobytes()


def _flip(content: bytes, random: np.random.Generator) -> bytes:
    damaged = bytearray(content)
    for position in random.integers(0, len(damaged), random.integers(1, 12)):
        damaged[position] = random.integers(256)
    return bytes(damaged)


def _cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: random.integers(0, len(content))]


def _splice(content: bytes, random: np.random.Generator) -> bytes:
    a, b = sorted(random.integers(0, len(content), 2))
    return content[:a] + content[b:] if random.random() < 0.5 else content[:b] + content[a:]


def _message(name: str | Path) -> str:
    """What loading says, empty when it works; anything but our own errors escapes."""
    try:
        load_dataset(name)
    except QDQError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["data.hdf5", "data.npz", "data.csv", "data.parquet"])
def test_only_our_errors_escape_damaged_files(dataset: Dataset, tmp_path: Path, name: str) -> None:
    write_dataset(dataset, str(tmp_path / name))
    (tmp_path / "data.toml").unlink(missing_ok=True)
    content, target = (tmp_path / name).read_bytes(), tmp_path / f"damaged{Path(name).suffix}"
    random = np.random.default_rng(0)
    changes: tuple[Callable[[bytes, np.random.Generator], bytes], ...] = (_flip, _flip, _cut, _splice)
    outcomes = []
    for trial in range(240):
        target.write_bytes(changes[trial % len(changes)](content, random))
        outcomes.append(_message(target))
    assert any(outcomes)
    assert not any("\n" in message for message in outcomes)


def test_only_our_errors_escape_damaged_minari_folders(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(dataset, "minari:test/walk-v0")
    folder = tmp_path / "minari" / "test" / "walk-v0" / "data"
    random = np.random.default_rng(1)
    for name in ("metadata.json", "main_data.hdf5"):
        content = (folder / name).read_bytes()
        for trial in range(150):
            (folder / name).write_bytes((_flip, _cut, _splice)[trial % 3](content, random))
            assert "\n" not in _message("test/walk-v0")
        (folder / name).write_bytes(content)
    assert load_dataset("test/walk-v0").sha256 == dataset.sha256
