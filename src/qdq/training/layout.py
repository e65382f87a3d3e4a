"""Seeds side by side in one program, spread over the devices; where devices are left over, they share each batch.

The devices form a grid with the axes `seed` and `batch`. States are stacked over seeds and cut along `seed`; the dataset
lies whole on every device; every batch is cut along `batch`, and the compiler adds the sums over devices that gradients
then need. The algorithms know nothing of it. The devices may belong to several processes of one `jax.distributed` run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Layout:
    """A grid of devices for `seeds` seeds."""

    mesh: Mesh
    seeds: int

    def place(self, members: Sequence[Any]) -> Any:
        """One tree per seed, stacked and laid out over the devices."""
        return jax.tree.map(lambda *leaves: self._put(np.stack(leaves), PartitionSpec("seed")), *members)

    def replicate(self, tree: Any) -> Any:
        """A tree that every device needs whole."""
        return jax.tree.map(lambda leaf: self._put(np.asarray(leaf), PartitionSpec()), tree)

    def split(self, batch: Any) -> Any:
        """Inside a program: the rows of a batch over the devices that share it."""
        rows = NamedSharding(self.mesh, PartitionSpec("batch"))
        return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, rows), batch)

    @property
    def by_seed(self) -> NamedSharding:
        """Where stacked states and metrics lie."""
        return NamedSharding(self.mesh, PartitionSpec("seed"))

    def owns(self, member: int) -> bool:
        """Whether this process writes the files of a seed: the first device of its row is one of its own."""
        row = member * self.mesh.devices.shape[0] // self.seeds
        return self.mesh.devices[row, 0].process_index == jax.process_index()

    def member(self, tree: Any, member: int) -> Any:
        """One seed's part of a stacked tree, in the memory of the process; only for a seed that it owns."""
        return jax.tree.map(lambda leaf: _part(leaf, member), tree)

    def _put(self, values: np.ndarray, specification: PartitionSpec) -> jax.Array:
        sharding = NamedSharding(self.mesh, specification)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _part(leaf: jax.Array, member: int) -> np.ndarray:
    for shard in leaf.addressable_shards:
        rows = shard.index[0]
        first = rows.start or 0
        if first <= member < (leaf.shape[0] if rows.stop is None else rows.stop):
            return np.asarray(shard.data)[member - first]
    raise ValueError(f"seed {member} lies on the devices of another process")


def leading() -> bool:
    """Whether this process writes what belongs to the run as a whole."""
    return jax.process_index() == 0


def meet(name: str) -> None:
    """Wait until every process of a distributed run is here."""
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        sync_global_devices(name)


def anywhere(flag: bool) -> bool:
    """Whether `flag` is true in any process of a distributed run."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental.multihost_utils import process_allgather

    return bool(np.any(process_allgather(np.array(flag))))


def grid(seeds: int, batch_size: int, devices: int) -> tuple[int, int]:
    """Rows that divide the seeds and columns that divide the batch, using as many devices as that allows."""
    rows = math.gcd(seeds, devices)
    return rows, math.gcd(batch_size, devices // rows)


def choose(seeds: int, batch_size: int) -> Layout | None:
    """The layout of so many seeds over all devices; one seed on one device needs none."""
    rows, columns = grid(seeds, batch_size, len(jax.devices()))
    if seeds == rows * columns == 1:
        return None
    devices = np.array(jax.devices()[: rows * columns]).reshape(rows, columns)
    return Layout(Mesh(devices, ("seed", "batch")), seeds)
