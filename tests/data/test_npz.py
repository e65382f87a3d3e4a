import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.data.load import load_dataset
from qdq.errors import DataError


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def member(shape: tuple[int, ...], dtype: str = "<f4", body: bytes = b"") -> bytes:
    """An array file whose header may not be true."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + body


def test_plain_arrays_load(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows()
    rows["timeouts"] = rows.pop("truncations")
    dataset = load_dataset(save(tmp_path / "mine.npz", **rows))
    assert dataset.lengths.tolist() == [7, 5, 9, 6]
    assert dataset.name == "mine"
    assert dataset.metadata.source == "npz"


def test_without_next_observations_truncated_episodes_lose_a_step(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows()
    del rows["next_observations"]
    assert load_dataset(save(tmp_path / "mine.npz", **rows)).lengths.tolist() == [7, 4, 9, 5]


def test_pickles_are_never_loaded(make_rows: Any, tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "executed",))

    rows = make_rows()
    rows["rewards"] = np.array([Harmful()] * 27, dtype=object)
    with pytest.raises(DataError, match="never loaded"):
        load_dataset(save(tmp_path / "harm.npz", **rows))
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("rewards.npy", pickle.dumps(Harmful()))
    with pytest.raises(DataError):
        load_dataset(tmp_path / "raw.npz")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("shape", [(10**15,), (10**6, 10**6), (2**40, 2**40)])
def test_a_lying_header_allocates_nothing(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("rewards.npy", member(shape, body=bytes(400)))
    with pytest.raises(DataError, match="claims"):
        load_dataset(tmp_path / "lie.npz")


def test_a_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rewards.npy", member((10**6,), body=bytes(10**6)))
    with pytest.raises(DataError, match="claims 4000000 bytes, but 1000000 are stored"):
        load_dataset(tmp_path / "bomb.npz")
    content = bytearray((tmp_path / "bomb.npz").read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (2**32 - 2).to_bytes(4, "little")  # the directory now claims 4 GiB
    (tmp_path / "bomb.npz").write_bytes(content)
    with pytest.raises(DataError, match="claims 4294967294 bytes"):
        load_dataset(tmp_path / "bomb.npz")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rewards": None}, "lacks rewards"),
        ({"timeouts": np.zeros(27)}, "two names of one thing"),
        ({"metadata": np.zeros(3)}, "one JSON text"),
        ({"metadata": np.array("{")}, "unusable metadata"),
        ({"metadata": np.array('{"name": 5}')}, "name is not of type str"),
        ({"metadata": np.array('{"reference": {"random": 1, "expert": 1, "origin": "x"}}')}, "two different numbers"),
        ({"metadata": np.array('{"reference": {"random": 1}}')}, "unusable metadata"),
    ],
)
def test_bad_content_is_named(make_rows: Any, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    rows = {key: value for key, value in {**make_rows(), **changes}.items() if value is not None}
    with pytest.raises(DataError, match=words):
        load_dataset(save(tmp_path / "bad.npz", **rows))
