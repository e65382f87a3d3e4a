"""Mapped datasets: the same data as every reader gives, however small the blocks, and nothing of a folder is trusted."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings

from qdq import q_dataset
from qdq.data import blocks, rows
from qdq.data.blocks import is_mapped
from qdq.data.episodes import COLUMNS, Dataset, from_arrays
from qdq.data.load import convert, load_dataset, write_dataset
from qdq.data.mapped import MappedStore, read_mapped, write_mapped
from qdq.errors import DataError, UsageError
from qdq.memory import parse_memory
from tests.data.test_episodes import random_rows

FILES = ("data.hdf5", "data.npz", "data.csv", "data.parquet", "minari:test/walk-v0")


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two or three rows."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)


@settings(max_examples=150, deadline=None)
@given(random_rows())
def test_blocks_change_nothing(drawn: tuple[dict[str, Any], bool]) -> None:
    given_rows = {key: value for key, value in drawn[0].items() if drawn[1] or key != "next_observations"}

    def outcome() -> Any:
        try:
            dataset = from_arrays(**given_rows)
        except DataError as error:
            return str(error)
        return dataset.sha256, dataset.metadata.details

    whole = outcome()
    for size in (1, 60, 150):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "BLOCK_BYTES", size)
            assert outcome() == whole


@pytest.mark.parametrize("source", FILES)
@pytest.mark.usefixtures("tiny_blocks")
def test_every_format_is_mapped_as_it_is_read(dataset: Dataset, tmp_path: Path, source: str) -> None:
    name = write_dataset(dataset, source if ":" in source else str(tmp_path / source))
    mapped = load_dataset(name, memory="1GiB")
    assert all(is_mapped(getattr(mapped, column)) for column in COLUMNS)
    assert not any(is_mapped(getattr(load_dataset(name), column)) for column in COLUMNS)
    assert mapped.sha256 == dataset.sha256
    assert mapped.metadata == load_dataset(name).metadata


@pytest.mark.usefixtures("tiny_blocks")
@pytest.mark.parametrize("name", ["hopper_medium-v0.hdf5", "antmaze-umaze-v0.hdf5", "unknown.hdf5"])
def test_ends_that_must_be_found_are_found_in_blocks(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    size = (11, 3) if name.startswith("hopper") else (29, 8)
    terminals = random.random(2500) < 0.002
    observations = np.cumsum(random.normal(size=(2500, size[0])) * 0.01, axis=0).astype(np.float32)
    observations[[700, 1900]] += 5.0
    with h5py.File(tmp_path / name, "w") as file:
        file["observations"], file["terminals"] = observations, terminals
        file["actions"] = random.uniform(-1, 1, (2500, size[1])).astype(np.float32)
        file["rewards"] = random.normal(size=2500).astype(np.float32)
    mapped = load_dataset(tmp_path / name, memory="1GiB")
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2**22)
    whole = load_dataset(tmp_path / name)
    assert mapped.sha256 == whole.sha256
    assert mapped.metadata == whole.metadata


def test_a_second_load_finds_the_first(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dataset(dataset, str(tmp_path / "a.npz"))
    load_dataset(tmp_path / "a.npz", memory="1GiB")
    (folder,) = (path for path in (tmp_path / "cache" / "datasets").iterdir() if path.is_dir())
    with monkeypatch.context() as patch:
        patch.setattr(rows.Assembler, "add", None)  # converting again would fail
        assert load_dataset(tmp_path / "a.npz", memory="1GiB").sha256 == dataset.sha256
    (folder / "rewards.npy").write_bytes(b"damaged")
    assert load_dataset(tmp_path / "a.npz", memory="1GiB").sha256 == dataset.sha256
    write_dataset(dataset.select(np.array([0, 1])), str(tmp_path / "b.npz"))
    shutil.move(tmp_path / "b.npz", tmp_path / "a.npz")
    assert load_dataset(tmp_path / "a.npz", memory="1GiB").episodes == 2
    leftovers = [path.name for path in (tmp_path / "cache" / "datasets").iterdir() if ".partial" in path.name]
    assert not leftovers


def test_a_failed_conversion_leaves_nothing(make_rows: Any, tmp_path: Path) -> None:
    given_rows = make_rows()
    given_rows["rewards"][20] = np.nan
    np.savez(tmp_path / "bad.npz", **given_rows)
    with pytest.raises(DataError, match="first in row 20"):
        load_dataset(tmp_path / "bad.npz", memory="1GiB")
    assert [path.suffix for path in (tmp_path / "cache" / "datasets").iterdir()] == [".lock"]


@pytest.mark.parametrize("source", ["data.npz", "minari:test/walk-v0", "first/"])
def test_convert_to_a_folder(dataset: Dataset, tmp_path: Path, source: str) -> None:
    name = write_dataset(dataset, source if ":" in source else str(tmp_path / source) + "/" * source.endswith("/"))
    converted, where = convert(name, f"{tmp_path}/folder/")
    assert converted.sha256 == load_dataset(where).sha256 == dataset.sha256
    assert converted.metadata.details == dataset.metadata.details
    with pytest.raises(UsageError, match="exists"):
        convert(name, f"{tmp_path}/folder/")


def damage(folder: Path, name: str, array: Any) -> None:
    np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("rewards", np.zeros(27), "float64"),
        ("rewards", np.zeros((27, 1), np.float32), "2 dimensions"),
        ("rewards", np.full(27, np.nan, np.float32), "NaN"),
        ("rewards", np.zeros(26, np.float32), "shape"),
        ("observations", np.asfortranarray(np.zeros((31, 4), np.float32)), "convert the data again"),
        ("terminals", np.full(27, 7, np.uint8).view(bool), "flags"),
        ("terminals", np.zeros(27, bool), "ends of its episodes"),
        ("truncations", np.ones(27, bool), "ends of its episodes"),
        ("lengths", np.array([6, 6, 9, 6]), "ends of its episodes"),
        ("actions", np.full((27, 2), 9.0, np.float32), "outside the declared bounds"),
        ("actions", np.array([[None]], object), "NPY"),
    ],
)
def test_a_folder_is_not_trusted(dataset: Dataset, tmp_path: Path, name: str, array: Any, words: str) -> None:
    write_mapped(dataset, tmp_path / "folder")
    damage(tmp_path / "folder", name, array)
    with pytest.raises(DataError, match=words):
        read_mapped(tmp_path / "folder")


def test_headers_that_lie_and_files_that_are_cut(dataset: Dataset, tmp_path: Path) -> None:
    write_mapped(dataset, tmp_path / "folder")
    path = tmp_path / "folder" / "observations.npy"
    content = path.read_bytes()
    for changed in (content[:-4], content + bytes(4), content[:40], b"", content.replace(b"(31, 4)", b"(99999999, 4)")):
        path.write_bytes(changed)
        with pytest.raises(DataError):
            load_dataset(tmp_path / "folder")
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(tmp_path / "folder")
    path.write_bytes(content)
    for description in ("{", "[]", json.dumps({"format": 99}), json.dumps({"format": 1, "metadata": 3})):
        (tmp_path / "folder" / "dataset.json").write_text(description)
        with pytest.raises(DataError):
            load_dataset(tmp_path / "folder")


def test_rows_and_returns_without_arrays_over_all(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.array([0, 0, 3, 6, 7, 11, 12, 20, 26])
    whole = dataset.episode_returns
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 40)
    np.testing.assert_array_equal(dataset.rows_of(index), dataset.rows[index])
    np.testing.assert_allclose(Dataset(**{name: getattr(dataset, name) for name in COLUMNS}).episode_returns, whole)


@pytest.mark.parametrize("tail", ["exact", "release"])
def test_long_episodes_in_parts(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: Any) -> None:
    config = q_dataset.Config(width=3, stride=2, tail=tail)
    whole = q_dataset.build(dataset, config)
    monkeypatch.setattr(q_dataset, "LONGEST_PART", 4)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 16)
    (tmp_path / "store").mkdir()
    parts = q_dataset.collect(dataset, config, MappedStore(tmp_path / "store"))
    for name in ("index", "rows", "exact"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    for name in ("values", "returns", "minimum", "maximum", "std", "exact_share"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-5)
    np.testing.assert_array_equal(whole.rows, dataset.rows[whole.index])


def test_amounts_of_memory() -> None:
    assert parse_memory("2GiB") == 2**31
    assert parse_memory("500MB") == 500_000_000
    assert parse_memory(" 1.5 kib ") == 1536
    assert parse_memory("12345") == parse_memory(12345) == 12345
    for wrong in ("", "much", "2 GG", "-1GB", "0", "1e9", "GiB"):
        with pytest.raises(UsageError, match="like 2GiB"):
            parse_memory(wrong)
