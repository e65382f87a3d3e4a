"""Files: atomic, exact, and refused when they do not fit."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from qdq import storage
from qdq.errors import DataError


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    storage.write_json(path, {"a": 1})

    def interrupted() -> None:
        with storage.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert storage.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]


@pytest.fixture
def full_disk() -> Iterator[None]:
    """The kernel refuses to write more than 100 bytes into a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("write", [storage.write_text, storage.append])
def test_a_full_disk_is_one_sentence(write: Callable[[Path, str], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, "a" * 60)
    with pytest.raises(DataError, match=r"file could not be written .*what was saved before is intact"):
        write(path, "b" * 101)
    assert path.read_text().startswith("a" * 60)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    storage.write_json(tmp_path / "x.json", {"a": [float("nan"), float("inf"), 1.5]})
    assert storage.read_json(tmp_path / "x.json") == {"a": [None, None, 1.5]}


def test_pytrees_round_trip_exactly(tmp_path: Path) -> None:
    tree = {"a": jnp.arange(3.0), "b": (jnp.ones((2, 2)), jnp.asarray(7, jnp.int32))}
    storage.save_pytree(tmp_path / "t.safetensors", tree, {"step": "5"})
    loaded, metadata = storage.load_pytree(
        tmp_path / "t.safetensors", {"a": jnp.zeros(3), "b": (jnp.zeros((2, 2)), jnp.asarray(0, jnp.int32))}
    )
    assert metadata["step"] == "5"
    np.testing.assert_array_equal(loaded["b"][0], tree["b"][0])
    assert int(loaded["b"][1]) == 7


@pytest.mark.parametrize("like", [{"a": jnp.zeros(4)}, {"b": jnp.zeros(3)}, {"a": jnp.zeros(3), "c": jnp.zeros(1)}, {}])
def test_a_tree_that_does_not_fit_is_refused(tmp_path: Path, like: dict) -> None:
    storage.save_pytree(tmp_path / "t.safetensors", {"a": jnp.arange(3.0)})
    with pytest.raises(DataError):
        storage.load_pytree(tmp_path / "t.safetensors", like)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(DataError, match=r"t\.safetensors"):
        storage.load_arrays(path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json"):
        storage.read_json(tmp_path / "x.json")


def test_hash_ignores_the_order_of_keys() -> None:
    assert storage.content_hash({"a": 1, "b": [1, 2]}) == storage.content_hash({"b": [1, 2], "a": 1})
    assert storage.content_hash({"a": 1}) != storage.content_hash({"a": 2})
