from pathlib import Path

import pytest

from qdq.data.episodes import Dataset
from qdq.data.load import load_dataset, locate, write_dataset
from qdq.data.tasks import PAPER_TASKS, recognise
from qdq.errors import DataError, UsageError


def test_factory_names_are_local_minari_ids(dataset: Dataset) -> None:
    with pytest.raises(UsageError, match='run "qdq data make hopper-medium" first'):
        load_dataset("hopper-medium")
    write_dataset(dataset, "minari:qdq/hopper/medium-v0")
    assert load_dataset("hopper-medium").sha256 == dataset.sha256
    assert locate("hopper-medium") == locate("qdq/hopper/medium-v0") == locate("minari:qdq/hopper/medium-v0")


def test_folders_and_the_files_inside_are_minari_datasets(dataset: Dataset, tmp_path: Path) -> None:
    folder = Path(write_dataset(dataset, "minari:test/walk-v0"))
    for name in (folder, folder / "data", folder / "data" / "main_data.hdf5"):
        assert load_dataset(name).sha256 == dataset.sha256
    with pytest.raises(DataError, match="not that of a Minari dataset"):
        load_dataset(tmp_path)


def test_content_counts_more_than_the_ending(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(dataset, str(tmp_path / "a.npz"))
    (tmp_path / "a.npz").rename(tmp_path / "a.hdf5")
    assert load_dataset(tmp_path / "a.hdf5").sha256 == dataset.sha256
    (tmp_path / "b.npz").write_bytes(b"")
    with pytest.raises(DataError, match="by its content"):
        load_dataset(tmp_path / "b.npz")
    (tmp_path / "notes.md").write_text("hello")
    with pytest.raises(DataError, match="neither HDF5"):
        load_dataset(tmp_path / "notes.md")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("hoper-medium", UsageError, "did you mean 'hopper-medium'"),
        ("hopper-medium-v2", UsageError, "write d4rl:hopper-medium-v2"),
        ("./missing.npz", DataError, "does not exist"),
        ("missing.hdf5", DataError, "does not exist"),
        ("minari:not an id", UsageError, "not a Minari id"),
        ("d4rl:nothing", UsageError, "D4RL has no dataset"),
        ("zzz", UsageError, "known: hopper-random"),
    ],
)
def test_unknown_names(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load_dataset(name)


def test_columns_are_for_tables(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(dataset, str(tmp_path / "a.npz"))
    with pytest.raises(UsageError, match="--columns describes"):
        load_dataset(tmp_path / "a.npz", columns=tmp_path / "c.toml")
    (tmp_path / "b.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"b\.toml exists"):
        write_dataset(dataset, str(tmp_path / "b.csv"))
    with pytest.raises(UsageError, match="format of"):
        write_dataset(dataset, str(tmp_path / "a.xyz"))


def test_where_things_are(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(dataset, str(tmp_path / "a.npz"))
    assert locate(str(tmp_path / "a.npz")) == tmp_path / "a.npz"
    with pytest.raises(DataError, match="would be stored as"):
        locate("d4rl:hopper-medium-v2")
    with pytest.raises(DataError, match="would be stored in"):
        locate("minari:mujoco/hopper/medium-v0")
    with pytest.raises(UsageError, match="has not been made"):
        locate("walker2d-expert")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("hopper-medium-v2", "hopper-medium"),
        ("halfcheetah_medium-v2.hdf5", "halfcheetah-medium"),
        ("walker_mixed", "walker2d-medium-replay"),
        ("hopper_medium_expert-v2", "hopper-medium-expert"),
        ("antmaze-umaze-diverse-v0", "antmaze-umaze-diverse"),
        ("Ant_maze_u-maze_noisy_multistart_False_multigoal_False_sparse", "antmaze-umaze"),
        ("hopper-mediumish", None),
        ("my data", None),
    ],
)
def test_tasks_are_recognised(name: str, task: str | None) -> None:
    found = recognise(name)
    assert (found.name if found else None) == task


def test_the_paper_has_fifteen_tasks() -> None:
    assert len(PAPER_TASKS) == 15
    assert all(recognise(task) for task in PAPER_TASKS)
