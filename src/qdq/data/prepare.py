"""From a dataset to what the stages train on: shifted and scaled rewards, normalised states, arrays on the device.

Data that needs more than a given budget of memory stays on disk and is streamed (`qdq.data.stream`); what is computed for
each transition then lies in mapped columns in the cache folder, where the next run with the same settings finds it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdq import algorithms, normalisers, q_dataset, q_distribution, storage
from qdq.algorithms.problem import state_shapes
from qdq.config import Config
from qdq.data import stream
from qdq.data.batches import TransitionData, WindowData
from qdq.data.blocks import blocks_of
from qdq.data.episodes import Dataset
from qdq.data.mapped import MappedStore, open_column
from qdq.errors import DataError, UsageError
from qdq.memory import describe_memory, physical_memory
from qdq.normalisers import Affine
from qdq.settings import to_dict

FORMAT = 1
KINDS: dict[str, Any] = {  # columns that are computed for a streamed dataset
    "rewards": np.float32,
    "index": np.int64,
    "rows": np.int64,
    "values": np.float32,
    "returns": np.float32,
    "exact": np.bool_,
}
SUMMARY = ("minimum", "maximum", "std", "exact_share")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A dataset ready for training, with everything needed to undo the preparation."""

    dataset: Dataset  # with shifted and scaled rewards
    windows: q_dataset.QDataset
    observation_normaliser: Affine
    action_scaler: Affine
    transitions: TransitionData | stream.StreamedTransitions
    streamed_windows: stream.StreamedWindows | None = None
    streamed: dict[str, int] | None = None  # what decides the blocks, if the data is streamed

    @cached_property
    def window_data(self) -> WindowData | stream.StreamedWindows:
        """The windows with values scaled to [-1, 1], on the device or streamed, for the stages of the Q distribution."""
        if not isinstance(self.transitions, TransitionData):
            assert self.streamed_windows is not None, "streamed transitions come with streamed windows"
            return self.streamed_windows
        scale = normalisers.unit_interval(self.windows.minimum, self.windows.maximum)
        values = scale.forward(jnp.asarray(self.windows.values))
        return WindowData(self.transitions, jnp.asarray(self.windows.index, jnp.int32), values)

    @property
    def reward_range(self) -> tuple[float, float]:
        """The smallest and the largest reward."""
        rewards = self.dataset.rewards
        return min(float(b.min()) for b in blocks_of(rewards)), max(float(b.max()) for b in blocks_of(rewards))


def prepare(dataset: Dataset, config: Config, memory: int | None = None) -> Prepared:
    """Apply the `data` and `q_dataset` sections of a configuration; stream what needs more than `memory` bytes."""
    needed = stream.transition_bytes(dataset) * dataset.transitions + 4 * dataset.observation_size * dataset.episodes
    if memory is not None and needed > memory:
        return _streamed(dataset, config, memory)
    if needed > physical_memory():
        raise UsageError(
            f"Dataset {dataset.name!r} needs {describe_memory(needed)}, more than the {describe_memory(physical_memory())} "
            "of memory; stream it with a budget, such as --memory 2GiB."
        )
    dataset = replace(dataset, rewards=np.concatenate(list(_rewards(dataset, config))))
    windows = _checked(dataset, q_dataset.collect(dataset, config.q_dataset), config)
    normaliser, scaler = _normalisers(dataset, config)
    transitions = TransitionData(
        normaliser.forward(jnp.asarray(dataset.observations)),
        jnp.asarray(dataset.rows, jnp.int32),
        jnp.clip(scaler.forward(jnp.asarray(dataset.actions)), -1.0, 1.0),
        jnp.asarray(dataset.rewards),
        jnp.asarray(dataset.terminals, jnp.float32),
        jnp.asarray(windows.returns),
        jnp.asarray(windows.exact, jnp.float32),
    )
    return Prepared(dataset, windows, normaliser, scaler, transitions)


def _streamed(dataset: Dataset, config: Config, memory: int) -> Prepared:
    """The same with the data on disk."""
    block_bytes = _block_bytes(dataset, config, memory)
    dataset, windows = _computed_columns(dataset, config)
    _checked(dataset, windows, config)
    normaliser, scaler = _normalisers(dataset, config)
    transitions = stream.StreamedTransitions(dataset, windows, normaliser, scaler, block_bytes)
    window_data = stream.StreamedWindows(dataset, windows, normaliser, scaler, block_bytes)
    streamed = {
        "memory": memory,
        "block_transitions": transitions.segments.items,
        "segment_transitions": transitions.segments.length,
        "block_windows": window_data.segments.items,
        "segment_windows": window_data.segments.length,
    }
    return Prepared(dataset, windows, normaliser, scaler, transitions, window_data, streamed)


def _block_bytes(dataset: Dataset, config: Config, memory: int) -> int:
    """How large a block may be: what the networks leave, shared by all blocks that exist at one time."""
    networks = _network_bytes(dataset, config)
    batch_sizes = [config.training.batch_size]
    if config.algorithm_name in algorithms.USES_Q_DISTRIBUTION:
        batch_sizes += [config.quantile.batch_size, config.diffusion.batch_size, config.consistency.batch_size]
    smallest = max(batch_sizes) * (stream.transition_bytes(dataset) + 4 * dataset.observation_size)
    needed = networks + stream.BLOCKS_AT_ONCE * smallest
    if memory < needed:
        raise UsageError(
            f"A memory budget of {describe_memory(memory)} is too small: the networks and the smallest blocks of data need "
            f"{describe_memory(needed)}; give several times that."
        )
    return (memory - networks) // stream.BLOCKS_AT_ONCE


def _network_bytes(dataset: Dataset, config: Config) -> int:
    """The networks with their optimisers, and as much again for gradients."""
    sizes = dataset.observation_size, dataset.action_size
    trees = [state_shapes(config, *sizes)]
    if config.algorithm_name in algorithms.USES_Q_DISTRIBUTION:
        network = jax.eval_shape(
            lambda key: q_distribution.build_network(config.q_distribution, *sizes, key), jax.random.key(0)
        )
        trees += 4 * [network]  # with a slow copy and Adam's two moments
    return 2 * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trees) if hasattr(leaf, "size"))


def _computed_columns(dataset: Dataset, config: Config) -> tuple[Dataset, q_dataset.QDataset]:
    """The dataset with its final rewards, and its Q dataset, both mapped: computed now, or found from before."""
    identity = {
        "format": FORMAT,
        "dataset_sha256": dataset.sha256,
        "data": to_dict(config.data),
        "q_dataset": to_dict(config.q_dataset),
    }
    folder = storage.cache_directory() / "prepared" / storage.content_hash(identity)[:24]
    with storage.exclusive(folder.with_suffix(".lock")):
        if not folder.exists():
            with storage.atomic_folder(folder) as temporary:
                store = MappedStore(temporary)
                for rewards in _rewards(dataset, config):
                    store.append("rewards", rewards)
                final = replace(dataset, rewards=store.finish()["rewards"])
                windows = q_dataset.collect(final, config.q_dataset, MappedStore(temporary))
                storage.write_json(temporary / "summary.json", {key: getattr(windows, key) for key in SUMMARY})
    columns = {name: open_column(folder, name, kind, 1) for name, kind in KINDS.items()}
    summary = storage.read_json(folder / "summary.json")
    dataset = replace(dataset, rewards=columns.pop("rewards"))
    return dataset, q_dataset.QDataset(**columns, **{key: summary[key] for key in SUMMARY})


def _checked(dataset: Dataset, windows: q_dataset.QDataset, config: Config) -> q_dataset.QDataset:
    if config.algorithm_name in algorithms.USES_Q_DISTRIBUTION:  # others take data on which all windows are the same
        q_dataset.require_differences(windows, dataset.name)
    if getattr(config.algorithm, "extraction_share", 0.0) > 0 and windows.exact_share < q_dataset.FEWEST_EXACT:
        width = q_dataset.fitting_width(dataset, config.q_dataset.width)
        raise DataError(
            f"Dataset {dataset.name!r} has episodes that are cut by a time limit before a window of {config.q_dataset.width} "
            f"steps is full; use a shorter one, such as --set q_dataset.width={width}."
        )
    return windows


def _normalisers(dataset: Dataset, config: Config) -> tuple[Affine, Affine]:
    size = dataset.observation_size
    normaliser = (
        normalisers.standard(dataset.observations) if config.data.normalise_states else normalisers.identity(size)
    )
    return normaliser, normalisers.unit_interval(dataset.action_low, dataset.action_high)


def _rewards(dataset: Dataset, config: Config) -> Iterator[np.ndarray]:
    """The shifted and scaled rewards, in blocks."""
    scale = np.float32(1.0)
    if config.data.reward_scaling == "return_range":
        complete = dataset.episode_returns[dataset.complete]
        spread = float(complete.max() - complete.min()) if len(complete) else 0.0
        if spread <= 0:
            raise DataError(
                f"Dataset {dataset.name!r} has the same return in every episode, so rewards cannot be scaled by their range; "
                "use --set data.reward_scaling=none."
            )
        scale = np.float32(1000.0 / spread)
    for rewards in blocks_of(dataset.rewards):
        yield rewards * scale + np.float32(config.data.reward_shift)
