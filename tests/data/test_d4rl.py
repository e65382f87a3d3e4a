from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from qdq.data.d4rl import read_d4rl, write_d4rl
from qdq.data.episodes import Dataset
from qdq.data.load import load_dataset
from qdq.errors import DataError

HOPPER = {"sizes": (11, 3)}


def write(path: Path, rows: dict[str, Any], leave_out: tuple[str, ...] = (), **options: Any) -> Path:
    """Rows in D4RL's own layout, with the extra groups that its files have."""
    with h5py.File(path, "w") as file:
        for key, value in rows.items():
            key = "timeouts" if key == "truncations" else key
            if key not in leave_out:
                file.create_dataset(key, data=value, **options)
        file.create_dataset("infos/action_log_probs", data=np.zeros(len(rows["rewards"])))
        file.create_dataset("infos/qpos", data=np.zeros((len(rows["rewards"]), 6)))
        file.create_dataset("metadata/algorithm", data=np.bytes_("SAC"))
        file.create_dataset("metadata/policy/fc0/weight", data=np.zeros((4, 4)))
    return path


def test_time_limits_only_in_timeouts(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((30, 30, 20), (False, False, False), **HOPPER)
    dataset = read_d4rl(write(tmp_path / "hopper_medium-v2.hdf5", rows))
    assert dataset.lengths.tolist() == [30, 30, 20]
    assert not dataset.terminals.any()
    assert dataset.truncations.sum() == 3
    assert dataset.metadata.environment_id == "Hopper-v4"
    assert dataset.metadata.task == "hopper-medium"
    assert dataset.metadata.reference is not None
    assert dataset.metadata.reference.origin == "D4RL"
    assert dataset.action_low.tolist() == [-1.0] * 3
    assert dataset.complete.tolist() == [True, True, False]  # 20 steps are no time limit of Hopper


def test_without_timeouts_the_jump_ends_the_episode(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((30, 30, 20), (False, True, True), **HOPPER)
    dataset = read_d4rl(write(tmp_path / "hopper-medium-v2.hdf5", rows, leave_out=("timeouts",)))
    assert dataset.lengths.tolist() == [30, 30, 20]
    assert dataset.truncations[29]
    assert not dataset.terminals[29]


def test_without_both_the_environment_s_limit_counts(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((1000, 40, 1000, 7), (False, True, False, False), **HOPPER)
    path = write(tmp_path / "hopper_mixed.hdf5", rows, leave_out=("timeouts", "next_observations"))
    dataset = read_d4rl(path)
    assert dataset.lengths.tolist() == [999, 40, 999, 6]  # a truncated episode loses the step whose outcome is unknown
    assert dataset.metadata.task == "hopper-medium-replay"
    assert "1000 steps" in dataset.metadata.details["boundaries"]
    np.testing.assert_array_equal(dataset.observations[999], rows["observations"][999])


def test_without_any_clue_only_terminals_end_episodes(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((30, 20), (True, True))
    dataset = read_d4rl(write(tmp_path / "mine.hdf5", rows, leave_out=("timeouts", "next_observations")))
    assert dataset.lengths.tolist() == [30, 20]
    assert "terminals only" in dataset.metadata.details["boundaries"]
    assert dataset.metadata.environment_id is None


def test_a_jumping_ant_ends_the_episode_and_has_no_simulator(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((40, 40), (False, True), sizes=(29, 8))
    rows["observations"][:, :2] = np.linspace(0, 4, 80)[:, None]
    rows["observations"][40:, :2] += 10.0
    rows["truncations"][:] = False
    rows["truncations"][45] = True  # out of step, as in the v0 files
    name = "Ant_maze_big-maze_noisy_multistart_True_multigoal_True_sparse.hdf5"
    dataset = read_d4rl(write(tmp_path / name, rows, leave_out=("next_observations",)))
    assert dataset.lengths.tolist() == [39, 5, 34]
    assert dataset.metadata.task == "antmaze-medium-diverse"
    assert dataset.metadata.environment_id is None
    assert "physics" in dataset.metadata.details["note"]
    assert dataset.metadata.reference is not None
    assert dataset.metadata.reference.origin == "success"


def test_metadata_of_the_file_wins_over_its_name(make_rows: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "anything.hdf5", make_rows(**HOPPER))
    with h5py.File(path, "a") as file:
        file["metadata"].attrs.update(
            {"env_id": "Hopper-v4", "reference_min_return": 1.0, "reference_max_return": 5.0, "policies": '["a", "b"]'}
        )
    metadata = read_d4rl(path).metadata
    assert metadata.environment_id == "Hopper-v4"
    assert metadata.reference is not None
    assert (metadata.reference.random, metadata.reference.expert) == (1.0, 5.0)
    assert metadata.details["policies"] == ["a", "b"]


def test_a_borrowed_name_does_not_make_an_environment(make_rows: Any, tmp_path: Path) -> None:
    assert read_d4rl(write(tmp_path / "hopper-medium-v2.hdf5", make_rows())).metadata.task is None


def test_our_own_metadata_survives_a_change_of_name(dataset: Dataset, tmp_path: Path) -> None:
    write_d4rl(dataset, tmp_path / "hopper-medium-v2.hdf5")
    loaded = read_d4rl(tmp_path / "hopper-medium-v2.hdf5")
    assert loaded.name == "walk"
    assert loaded.metadata.environment_id is None


def test_nan_is_named_with_its_row(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows()
    rows["observations"][11, 2] = np.nan
    with pytest.raises(DataError, match="observations hold NaN or infinity, first in row 11"):
        load_dataset(write(tmp_path / "nan.hdf5", rows))


def test_truncated_in_the_middle(make_rows: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "cut.hdf5", make_rows((2000,), (True,)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="cut short"):
        load_dataset(path)


def test_a_lying_header_allocates_nothing(make_rows: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "lie.hdf5", make_rows(), leave_out=("observations",))
    with h5py.File(path, "a") as file:
        file.create_dataset("observations", shape=(27, 10**12), dtype="f4", chunks=(27, 4))
    with pytest.raises(DataError, match="claims 250000000000 chunks, but 0 are stored"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        del file["observations"]
        part = file.create_dataset("observations", shape=(10**6, 4), dtype="f4", chunks=(1000, 4), compression="gzip")
        part[:1000] = 1.0
    with pytest.raises(DataError, match="claims 1000 chunks, but 1 are stored"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_dataset("observations", shape=(10**6, 4), dtype="f4")
    with pytest.raises(DataError, match="only 0 are stored"):
        load_dataset(path)


def test_a_shape_changed_in_the_bytes_is_noticed(make_rows: Any, tmp_path: Path) -> None:
    rows = make_rows((1237,), (True,))
    path = write(tmp_path / "patched.hdf5", rows, leave_out=("next_observations", "timeouts"))
    content = path.read_bytes()
    assert content.count((1237).to_bytes(8, "little")) >= 4
    path.write_bytes(content.replace((1237).to_bytes(8, "little"), (123_700).to_bytes(8, "little")))
    with pytest.raises(DataError):
        load_dataset(path)


def test_links_and_foreign_storage_are_refused(make_rows: Any, tmp_path: Path) -> None:
    write(tmp_path / "other.hdf5", make_rows())
    path = write(tmp_path / "links.hdf5", make_rows(), leave_out=("rewards",))
    with h5py.File(path, "a") as file:
        file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
    with pytest.raises(DataError, match="link to elsewhere"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file["rewards"] = h5py.SoftLink("/actions")
    with pytest.raises(DataError, match="link to elsewhere"):
        load_dataset(path)
    (tmp_path / "raw.bin").write_bytes(np.zeros(27, np.float32).tobytes())
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_dataset("rewards", (27,), "f4", external=[(str(tmp_path / "raw.bin"), 0, 108)])
    with pytest.raises(DataError, match="another file"):
        load_dataset(path)


def test_text_groups_and_missing_arrays_are_named(make_rows: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "odd.hdf5", make_rows(), leave_out=("rewards", "terminals"))
    with pytest.raises(DataError, match="lacks rewards, terminals"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        file["rewards"] = [b"x"] * 27
    with pytest.raises(DataError, match="numbers are needed"):
        load_dataset(path)
    with h5py.File(path, "a") as file:
        del file["rewards"]
        file.create_group("rewards")
    with pytest.raises(DataError, match="group where an array"):
        load_dataset(path)
