import copy
import json
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.load import load_dataset
from qdq.data.minari_format import installed, minari_path, read_minari, write_minari
from qdq.data.references import d4rl_reference
from qdq.errors import DataError, UsageError


def create(identifier: str, observation_space: Any, episodes: list[dict[str, Any]], **options: Any) -> None:
    """A dataset written by Minari itself."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            identifier,
            [EpisodeBuffer(**episode) for episode in episodes],
            observation_space=observation_space,
            action_space=spaces.Box(-1.0, 1.0, (2,), np.float32),
            **options,
        )


def episode(length: int, observations: Any, terminal_at: int | None = None, truncated: bool = True) -> dict[str, Any]:
    random = np.random.default_rng(length)
    terminations = [step == terminal_at for step in range(length)]
    return {
        "observations": observations,
        "actions": random.uniform(-1, 1, (length, 2)).astype(np.float32),
        "rewards": random.normal(size=length),
        "terminations": terminations,
        "truncations": [step == length - 1 and truncated and not terminations[-1] for step in range(length)],
    }


def vectors(length: int, size: int = 3) -> np.ndarray:
    return np.random.default_rng(length + size).normal(size=(length + 1, size))


BOX = spaces.Box(-np.inf, np.inf, (3,), np.float64)


def test_minari_reads_what_we_write(make_rows: Any) -> None:
    import minari

    metadata = Metadata(name="hop", environment_id="Hopper-v4", reference=d4rl_reference("Hopper-v4"))
    dataset = from_arrays(**make_rows(sizes=(11, 3)), action_low=-1, action_high=1, metadata=metadata)
    write_minari(dataset, "test/hop-v0", description="for a test")
    loaded = minari.load_dataset("test/hop-v0")
    assert (loaded.total_steps, loaded.total_episodes) == (dataset.transitions, dataset.episodes)
    first = next(iter(loaded.iterate_episodes()))
    np.testing.assert_array_equal(first.observations, dataset.observations[: dataset.lengths[0] + 1])
    np.testing.assert_array_equal(first.terminations, dataset.terminals[: dataset.lengths[0]])
    assert minari.get_normalized_score(loaded, np.array([3234.3]))[0] == pytest.approx(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = loaded.recover_environment()
    assert environment.spec is not None
    assert environment.spec.id == "Hopper-v4"
    environment.close()
    assert "test/hop-v0" in minari.list_local_datasets()
    assert installed() == ["test/hop-v0"]
    assert load_dataset("test/hop-v0").metadata.reference == metadata.reference


def test_maze_dictionaries_are_flattened_with_their_goal() -> None:
    def box(size: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (size,), np.float64)

    for name, width, expected in (("ant", 27, 31), ("point", 4, 6)):
        space = spaces.Dict({"achieved_goal": box(2), "desired_goal": box(2), "observation": box(width)})
        parts = {
            "achieved_goal": vectors(6, 2),
            "desired_goal": vectors(5, 2)[[0] * 7],
            "observation": vectors(6, width),
        }
        create(f"test/{name}-v0", space, [episode(6, parts)])
        dataset = read_minari(f"test/{name}-v0")
        assert dataset.observation_size == expected
        np.testing.assert_array_equal(dataset.observations[:, -2:], parts["desired_goal"].astype(np.float32))
        start = 2 if name == "ant" else 0
        np.testing.assert_array_equal(
            dataset.observations[:, start : start + width], parts["observation"].astype(np.float32)
        )
        layout = dataset.metadata.details["observation_layout"]
        assert layout == ([["achieved_goal", 2]] if name == "ant" else []) + [
            ["observation", width],
            ["desired_goal", 2],
        ]


def test_a_dictionary_of_one_part_is_read_too() -> None:
    create("test/one-v0", spaces.Dict({"observation": BOX}), [episode(6, {"observation": vectors(6)})])
    np.testing.assert_array_equal(read_minari("test/one-v0").observations, vectors(6).astype(np.float32))


def test_the_environment_and_its_options_are_recorded() -> None:
    import gymnasium

    specification = copy.deepcopy(gymnasium.spec("HalfCheetah-v5"))
    specification.kwargs["reset_noise_scale"] = 0.2
    specification.max_episode_steps = 50
    create("test/env-v0", BOX, [episode(6, vectors(6))], env=specification, ref_min_score=1.0, ref_max_score=3.0)
    metadata = read_minari("test/env-v0").metadata
    assert metadata.environment_id == "HalfCheetah-v5"
    assert metadata.environment_options == {"reset_noise_scale": 0.2, "max_episode_steps": 50}
    assert metadata.reference is not None
    assert (metadata.reference.random, metadata.reference.expert, metadata.reference.origin) == (1.0, 3.0, "Minari")


@pytest.mark.parametrize(
    ("identifier", "environment", "task"),
    [
        ("test/hopper/medium-v0", "Hopper-v5", "hopper-medium"),
        ("test/hopper/medium-v1", "HalfCheetah-v5", None),
        ("test/hopper/medium-v2", None, None),
        ("test/hopper/simple-v0", "Hopper-v5", None),
    ],
)
def test_an_id_that_names_a_task_of_the_paper_brings_it_along(
    identifier: str, environment: str | None, task: str | None
) -> None:
    create(identifier, BOX, [episode(6, vectors(6))], env=environment)
    assert read_minari(identifier).metadata.task == task


def test_ends_inside_an_episode_split_it_and_an_open_end_is_a_truncation() -> None:
    create("test/ends-v0", BOX, [episode(6, vectors(6), terminal_at=2), episode(5, vectors(5), truncated=False)])
    dataset = read_minari("test/ends-v0")
    assert dataset.lengths.tolist() == [3, 3, 5]
    assert dataset.terminals.nonzero()[0].tolist() == [2]
    assert dataset.truncations.nonzero()[0].tolist() == [5, 10]
    np.testing.assert_array_equal(dataset.observations[3], vectors(6)[3].astype(np.float32))


def test_an_interrupted_write_leaves_no_dataset(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from qdq.data import minari_format

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(minari_format, "_write_episodes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_minari(dataset, "test/half-v0")
    assert installed() == []
    assert list((tmp_path / "minari" / "test").glob("*half*")) == []


def test_an_existing_dataset_is_kept_unless_forced(dataset: Dataset, make_rows: Any) -> None:
    write_minari(dataset, "test/walk-v0")
    other = from_arrays(**make_rows(seed=5))
    with pytest.raises(UsageError, match="already exists"):
        write_minari(other, "test/walk-v0")
    write_minari(other, "test/walk-v0", force=True)
    assert read_minari("test/walk-v0").sha256 == other.sha256


@pytest.mark.parametrize("identifier", ["../outside-v0", "/etc/passwd", "noversion", "a b-v0", ""])
def test_ids_cannot_leave_the_folder(identifier: str) -> None:
    with pytest.raises(UsageError, match="not a Minari id"):
        minari_path(identifier)


def test_broken_folders_are_named(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="minari download"):
        read_minari("test/absent-v0")
    folder = write_minari(dataset, "test/walk-v0") / "data"
    header = json.loads((folder / "metadata.json").read_text())

    def expect(words: str, **changes: Any) -> None:
        (folder / "metadata.json").write_text(json.dumps({**header, **changes}))
        with pytest.raises(DataError, match=words):
            read_minari("test/walk-v0")

    expect("announces 9 episodes", total_episodes=9)
    expect("'arrow'", data_format="arrow")
    expect("observation_space", observation_space=None)
    discrete = '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 3}'
    expect("continuous action vectors", action_space=discrete)
    expect("only vectors", observation_space=discrete)
    expect("unusable metadata", qdq="[]")
    (folder / "metadata.json").write_text(json.dumps(header))
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_1/rewards"]
        file["episode_1/rewards"] = np.zeros(3)
    with pytest.raises(DataError, match=r"episode_1 has .* n steps needs"):
        read_minari("test/walk-v0")
