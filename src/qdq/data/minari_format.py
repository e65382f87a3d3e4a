"""Minari datasets: a folder with `data/metadata.json` and one HDF5 group per episode.

Read directly, so that every array is checked before it is allocated and no environment is built. Dict observations are
flattened by `qdq.data.flatten`, and the layout is kept in `metadata.details["observation_layout"]`: AntMaze is
achieved_goal (2), observation (27), desired_goal (2); PointMaze is observation (4), desired_goal (2).

Written as flat vectors with explicit spaces, so that `minari.load_dataset` and whatever builds on it read them as they
are; reference returns and the environment's spec are stored as Minari stores them.
"""

import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdq.data import hdf5
from qdq.data.blocks import rows_per_block
from qdq.data.episodes import Dataset, Metadata, assemble
from qdq.data.flatten import ObservationLayout, flatten_observation, layout_of
from qdq.data.guard import check_memory, reading
from qdq.data.metadata import metadata_from_json, metadata_to_json
from qdq.data.references import Reference, d4rl_reference
from qdq.data.rows import ArrayStore, Assembler, Rows, Store, as_numbers, join
from qdq.data.specification import environment_of, specification_of
from qdq.data.tasks import PAPER_TASKS, recognise
from qdq.errors import DataError, UsageError
from qdq.storage import read_json

IDENTIFIER = re.compile(r"[-\w]+(?:/[-\w]+)*-v\d+")
MAIN_FILE = "main_data.hdf5"


def minari_root() -> Path:
    """The folder of installed Minari datasets: MINARI_DATASETS_PATH, else Minari's default."""
    return Path(os.environ.get("MINARI_DATASETS_PATH", "~/.minari/datasets")).expanduser()


def minari_path(identifier: str) -> Path:
    """Where a Minari dataset of this id is, or would be, installed."""
    if not IDENTIFIER.fullmatch(identifier):
        raise UsageError(f"{identifier!r} is not a Minari id; ids look like 'mujoco/hopper/medium-v0'.")
    return minari_root() / identifier


def is_minari_folder(path: Path) -> bool:
    """Whether `path` is the folder of a Minari dataset."""
    return (Path(path) / "data" / "metadata.json").is_file()


def installed() -> list[str]:
    """The ids of all installed Minari datasets, sorted."""
    root = minari_root()
    if not root.is_dir():
        return []
    return sorted(str(found.parent.parent.relative_to(root)) for found in root.glob("**/data/metadata.json"))


def read_minari(identifier_or_path: str | Path, store: Store | None = None) -> Dataset:
    """The dataset of an installed Minari id, or in a Minari folder; `store` is where its columns grow."""
    path = Path(identifier_or_path)
    if not is_minari_folder(path):
        path = minari_path(str(identifier_or_path))
    if not is_minari_folder(path):
        raise DataError(
            f"No Minari dataset is installed at {path}; fetch it with 'minari download {identifier_or_path}'."
        )
    header = read_json(path / "data" / "metadata.json")
    if not isinstance(header, dict):
        raise DataError(f"{path}/data/metadata.json does not describe a dataset.")
    name = header.get("dataset_id") if isinstance(header.get("dataset_id"), str) else path.name
    layout, low, high = _spaces(path, header)
    if store is None:
        with reading(path / "data" / MAIN_FILE, "HDF5"):
            check_memory(path, "the data", (path / "data" / MAIN_FILE).stat().st_size)
    metadata = _describe(path, str(name), header, layout)
    assembler = Assembler(metadata.name, store or ArrayStore())
    for rows in _gathered(metadata.name, _episodes(path, header, layout), len(low)):
        assembler.add(rows)
    if assembler.waiting is None:
        raise DataError(f"{path} has no episodes.")
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())  # an unbounded space declares nothing
    dataset = assemble(assembler, low if bounded else None, high if bounded else None, metadata)
    if "qdq_sha256" in header and header["qdq_sha256"] != dataset.sha256:
        raise DataError(f"{path} does not match the checksum it was written with; it is damaged, so make it again.")
    return dataset


def download_minari(identifier: str) -> Path:
    """Fetch a Minari dataset from Farama's server unless it is installed."""
    path = minari_path(identifier)
    if is_minari_folder(path):
        return path
    import minari

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            minari.download_dataset(identifier)
    except Exception as error:  # the remote storages raise errors of their own libraries
        raise DataError(
            f"Minari dataset {identifier!r} could not be downloaded ({_first_line(error)}); "
            f"when offline, copy its folder to {path}."
        ) from error
    return path


def write_minari(dataset: Dataset, identifier: str, *, description: str | None = None, force: bool = False) -> Path:
    """Install `dataset` as the Minari dataset `identifier` and return its folder; `force` replaces an existing one."""
    from gymnasium.spaces import Box
    from minari.dataset.minari_storage import MinariStorage

    path = minari_path(identifier)
    if path.exists() and not force:
        raise UsageError(
            f"Minari dataset {identifier!r} already exists at {path}; choose another id or remove it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _register_namespace(identifier)
    # Built beside its place and renamed, so that an interrupted write never looks like a dataset.
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        (temporary / "data").mkdir()
        storage = MinariStorage.new(
            temporary / "data",
            observation_space=Box(-np.inf, np.inf, (dataset.observation_size,), np.float32),
            action_space=Box(dataset.action_low, dataset.action_high, dtype=np.float32),
            env_spec=specification_of(dataset.metadata),
        )
        storage.update_metadata(_header(dataset, identifier, description))
        _write_episodes(dataset, temporary / "data" / MAIN_FILE)
        totals = {"total_episodes": dataset.episodes, "total_steps": dataset.transitions}
        storage.update_metadata({**totals, "dataset_size": float(storage.get_size())})
        temporary.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return path


def _header(dataset: Dataset, identifier: str, description: str | None) -> dict[str, Any]:
    from importlib.metadata import version

    header: dict[str, Any] = {
        "dataset_id": identifier,
        "minari_version": version("minari"),
        "author": {"qdq"},
        "algorithm_name": str(dataset.metadata.details.get("behaviour", dataset.metadata.source)),
        "description": description or f"{dataset.name}, written by qdq from {dataset.metadata.source}.",
        "qdq": metadata_to_json(dataset.metadata),
        "qdq_sha256": dataset.sha256,
    }
    if dataset.metadata.reference is not None:
        header["ref_min_score"] = dataset.metadata.reference.random
        header["ref_max_score"] = dataset.metadata.reference.expert
    return header


def _write_episodes(dataset: Dataset, path: Path) -> None:
    """The groups that Minari's own storage writes, in a third of the time and space where episodes are short."""
    with h5py.File(path, "w", track_order=True) as file:
        for episode, (start, length) in enumerate(zip(dataset.starts, dataset.lengths, strict=True)):
            steps = slice(start, start + length)
            arrays = {
                "observations": dataset.observations[start + episode : start + episode + length + 1],
                "actions": dataset.actions[steps],
                "rewards": dataset.rewards[steps],
                "terminations": dataset.terminals[steps],
                "truncations": dataset.truncations[steps],
            }
            hdf5.write_group(file, f"episode_{episode}", arrays, {"id": episode, "total_steps": int(length)})


def _register_namespace(identifier: str) -> None:
    from minari.namespace import create_namespace, list_local_namespaces

    namespace = identifier.rpartition("/")[0]
    if namespace and namespace not in list_local_namespaces():
        create_namespace(namespace)


def _spaces(path: Path, header: dict[str, Any]) -> tuple[ObservationLayout, np.ndarray, np.ndarray]:
    from gymnasium.spaces import Box
    from minari.serialization import deserialize_space

    found = []
    for key in ("observation_space", "action_space"):
        text = header.get(key)
        if not isinstance(text, str):
            raise DataError(f"{path} does not say its {key}; it was written by a Minari too old to read.")
        with reading(path / "data" / "metadata.json", "Minari"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium comments on infinite or float64 bounds
            found.append(deserialize_space(text))
    observations, actions = found
    if not isinstance(actions, Box) or len(actions.shape) != 1:
        raise DataError(
            f"{path} has actions in {actions}; only continuous action vectors (one-dimensional Box) are supported."
        )
    with np.errstate(over="ignore"):
        return layout_of(observations), actions.low.astype(np.float32), actions.high.astype(np.float32)


Episode = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _episodes(path: Path, header: dict[str, Any], layout: ObservationLayout) -> Iterator[Episode]:
    """Observations, actions, rewards, terminals and truncations of each episode in order."""
    if header.get("data_format", "hdf5") != "hdf5":
        raise DataError(f"{path} is stored as {header['data_format']!r}; only Minari's default format, hdf5, is read.")
    main = path / "data" / MAIN_FILE
    with hdf5.open_hdf5(main) as file:
        count = len(file)
        if header.get("total_episodes") not in (None, count):
            raise DataError(
                f"{path} announces {header['total_episodes']} episodes but stores {count}; it is incomplete."
            )
        for number in range(count):
            group = hdf5.member(main, file, f"episode_{number}")
            if group is None or not hasattr(group, "keys"):
                raise DataError(f"{main} lacks episode_{number} of {count}; the file is incomplete.")
            arrays = [
                hdf5.read_array(main, group, key) for key in ("actions", "rewards", "terminations", "truncations")
            ]
            if any(array is None for array in arrays):
                raise DataError(f"{main}: episode_{number} lacks actions, rewards, terminations or truncations.")
            item = hdf5.member(main, group, "observations") if layout.parts[0][0] else None  # named parts: a group
            if item is not None and hasattr(item, "keys"):
                parts = {name: hdf5.read_array(main, item, name) for name, _ in layout.parts}
                observations = flatten_observation({k: v for k, v in parts.items() if v is not None}, layout)
            else:
                observations = flatten_observation(hdf5.read_array(main, group, "observations"), layout)
            yield _checked(f"{main}: episode_{number}", observations, arrays)


def _checked(label: str, observations: np.ndarray, arrays: list[Any]) -> Episode:
    actions = as_numbers(label, "actions", arrays[0], 2)
    rewards = as_numbers(label, "rewards", arrays[1], 1)
    observations = as_numbers(label, "observations", observations, 2)
    terminals, truncations = (np.atleast_1d(np.asarray(array)) for array in arrays[2:])
    count = len(rewards)
    if count == 0 or {len(actions), len(terminals), len(truncations), len(observations) - 1} != {count}:
        raise DataError(
            f"{label} has {len(observations)} observations, {len(actions)} actions and {count} rewards; an episode "
            "of n steps needs n + 1, n and n."
        )
    if terminals.ndim != 1 or truncations.ndim != 1:
        raise DataError(f"{label} has flags of more than one dimension.")
    return observations, actions, rewards, terminals.astype(bool), truncations.astype(bool)


def _gathered(name: str, episodes: Iterator[Episode], action_size: int) -> Iterator[Rows]:
    """The episodes as rows, many short ones or one long one at a time; an end inside an episode splits it."""
    gathered: list[Rows] = []
    count, size = 0, 0
    for observations, actions, rewards, terminals, truncations in episodes:
        size = size or observations.shape[1]
        if observations.shape[1] != size or actions.shape[1] != action_size:
            raise DataError(f"Dataset {name!r} has episodes of different widths, or other actions than it declares.")
        truncations = truncations.copy()
        truncations[-1] |= ~terminals[-1]
        gathered.append(Rows(observations[:-1], actions, rewards, terminals, truncations, observations[1:]))
        count += len(rewards)
        if count >= rows_per_block(8 * (size + action_size)):
            yield join(gathered)
            gathered, count = [], 0
    if gathered:
        yield join(gathered)


def _describe(path: Path, name: str, header: dict[str, Any], layout: ObservationLayout) -> Metadata:
    if "qdq" in header:
        return metadata_from_json(header["qdq"], path, "minari")
    environment_id, options = environment_of(header)
    reference = d4rl_reference(environment_id)
    maze = reference is not None and reference.origin == "success" and options.get("reward_type") != "dense"
    low, high = header.get("ref_min_score"), header.get("ref_max_score")
    numbers = all(isinstance(value, int | float) and abs(value) < 1e300 for value in (low, high))
    if not maze and numbers and low != high:
        reference = Reference(float(low), float(high), origin="Minari")  # type: ignore[arg-type]
    details = {
        key: header[key]
        for key in ("author", "algorithm_name", "description", "code_permalink", "minari_version")
        if isinstance(header.get(key), str | list)
    }
    if len(layout.parts) > 1:
        details["observation_layout"] = layout.to_json()
    return Metadata(name, "minari", environment_id, options, _paper_task(name, environment_id), reference, details)


def _paper_task(name: str, environment_id: str | None) -> str | None:
    """The paper's task that an id such as D4RL/antmaze/umaze-v1 speaks of, where its environment agrees."""
    task = recognise(name.replace("/", "-"))
    if task is None or task.name not in PAPER_TASKS:
        return None
    body = task.name.partition("-")[0]
    return task.name if (environment_id or "").lower().startswith(body) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
