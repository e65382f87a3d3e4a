"""Training data that does not fit on the device: shuffled blocks of it, one in use and the next one on its way.

A column is cut into short segments of neighbours. A block is a random selection of segments, without repetition until
every segment has had its turn; the order depends on the stage's key alone, so a run that stops and goes on gets the same
blocks. A block serves for about as many draws as it has items, so that the data is passed over as often as if all of it
were on the device. The next block is read, normalised and sent by a thread of its own while this one is in use.
"""

import contextlib
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from qdq.data.batches import LoggedTransitions, TransitionData, WindowBlock
from qdq.data.blocks import release, take
from qdq.data.episodes import Dataset
from qdq.normalisers import Affine, unit_interval
from qdq.q_dataset import QDataset

BLOCKS_AT_ONCE = 4  # one in use, one on its way, and room for what turns it into arrays of the device
SEGMENTS_PER_BLOCK = 256
LONGEST_SEGMENT = 4096


class Segments:
    """`count` items in segments of equal length (the last one begins early), so many of them in a block."""

    def __init__(self, count: int, length: int, per_block: int):
        self.count, self.length = count, length
        self.number = -(-count // length)
        self.per_block = min(per_block, self.number)

    @property
    def items(self) -> int:
        """How many items a block has."""
        return self.per_block * self.length

    def start(self, segment: Any) -> Any:
        """The first item of a segment, or of each of several."""
        return np.minimum(segment * self.length, self.count - self.length)

    def block(self, seed: list[int], number: int) -> np.ndarray:
        """The segments of a block: those that come next in one random order of all of them after the other."""
        turns = np.arange(number * self.per_block, (number + 1) * self.per_block)
        orders = {int(turn): self._order(seed, int(turn)) for turn in np.unique(turns // self.number)}
        return np.array([orders[turn // self.number][turn % self.number] for turn in turns.tolist()])

    def _order(self, seed: list[int], turn: int) -> np.ndarray:
        return np.random.default_rng([*seed, turn]).permutation(self.number)


def segment_length(count: int, item_bytes: int, block_bytes: int) -> int:
    """Segments so long that a block has a few hundred of them, but no longer than is needed to read them in one go."""
    return max(1, min(count, LONGEST_SEGMENT, block_bytes // item_bytes // SEGMENTS_PER_BLOCK))


class Streamed(Protocol):
    """Data that comes in blocks."""

    segments: Segments

    def load(self, segments: np.ndarray) -> Any: ...


class StreamedTransitions:
    """The transitions of a dataset, in blocks that are sampled like all of them on the device."""

    def __init__(self, dataset: Dataset, windows: QDataset, normaliser: Affine, scaler: Affine, block_bytes: int):
        self.dataset, self.windows = dataset, windows
        self.normalise, self.scale = _on_host(normaliser), _on_host(scaler)
        count, item_bytes = dataset.transitions, transition_bytes(dataset)
        length = segment_length(count, item_bytes, block_bytes)
        cut = Segments(count, length, 1)
        starts = cut.start(np.arange(cut.number))
        self.first_rows = dataset.rows_of(starts)
        # Rows of observations: one more than transitions for each episode that a segment touches; room for the most.
        self.room = int((dataset.rows_of(starts + length - 1) + 2 - self.first_rows).max())
        size = length * (item_bytes - 4 * dataset.observation_size) + self.room * 4 * dataset.observation_size
        self.segments = Segments(count, length, max(1, block_bytes // size))

    def load(self, segments: np.ndarray) -> TransitionData:
        """A block on the device."""
        data, length = self.dataset, self.segments.length
        shape = (len(segments), length)
        observations = np.zeros((len(segments), self.room, data.observation_size), np.float32)
        actions = np.empty((*shape, data.action_size), np.float32)
        rewards, terminals, returns, exact = (np.empty(shape, np.float32) for _ in range(4))
        rows = np.empty(shape, np.int32)
        columns = (data.rewards, data.terminals, self.windows.returns, self.windows.exact)
        for i, segment in enumerate(segments.tolist()):
            start = int(self.segments.start(segment))
            span = slice(start, start + length)
            for target, column in zip((rewards, terminals, returns, exact), columns, strict=True):
                target[i] = column[span]
            actions[i] = np.clip(self.scale(data.actions[span]), -1.0, 1.0)
            ends = data.terminals[span] | data.truncations[span]
            local = np.arange(length) + np.cumsum(ends) - ends  # an episode's last observation has no transition
            rows[i] = i * self.room + local
            first, needed = self.first_rows[segment], local[-1] + 2
            observations[i, :needed] = self.normalise(data.observations[first : first + needed])
            release(data.observations, data.actions, data.truncations, *columns)
        arrays = [observations, rows, actions, rewards, terminals, returns, exact]
        del observations, rows, actions, rewards, terminals, returns, exact
        return TransitionData(*_sent(arrays))

    def at(self, index: Any) -> LoggedTransitions:
        """The transitions at `index`, which ascends."""
        data = self.dataset
        index = np.minimum(np.asarray(index, np.int64), data.transitions - 1)
        rows = data.rows_of(index)
        arrays = (
            self.normalise(take(data.observations, rows)),
            np.clip(self.scale(take(data.actions, index)), -1.0, 1.0),
            take(data.rewards, index),
            self.normalise(take(data.observations, rows + 1)),
            take(data.terminals, index).astype(np.float32),
            take(self.windows.returns, index),
            take(self.windows.exact, index).astype(np.float32),
        )
        return LoggedTransitions(*map(jnp.asarray, arrays))


class StreamedWindows:
    """The windows of the Q dataset, in blocks."""

    def __init__(self, dataset: Dataset, windows: QDataset, normaliser: Affine, scaler: Affine, block_bytes: int):
        self.dataset, self.windows = dataset, windows
        self.normalise, self.scale = _on_host(normaliser), _on_host(scaler)
        self.unit = _on_host(unit_interval(windows.minimum, windows.maximum))
        count, size = len(windows.index), window_bytes(dataset)
        length = segment_length(count, size, block_bytes)
        self.segments = Segments(count, length, max(1, block_bytes // size // length))

    def load(self, segments: np.ndarray) -> WindowBlock:
        """A block on the device."""
        data, windows, length = self.dataset, self.windows, self.segments.length
        observations = np.empty((len(segments), length, data.observation_size), np.float32)
        actions = np.empty((len(segments), length, data.action_size), np.float32)
        values = np.empty((len(segments), length), np.float32)
        for i, segment in enumerate(segments.tolist()):
            start = int(self.segments.start(segment))
            span = slice(start, start + length)
            observations[i] = self.normalise(take(data.observations, windows.rows[span]))
            actions[i] = np.clip(self.scale(take(data.actions, windows.index[span])), -1.0, 1.0)
            values[i] = self.unit(windows.values[span])
            release(windows.rows, windows.index, windows.values)
        arrays = [observations, actions, values]
        del observations, actions, values
        return WindowBlock(*_sent(arrays))


class Blocks:
    """The blocks of one training: `blocks(step, state)` is the one for that step, and the next is being made."""

    def __init__(self, data: Streamed, key: Array, steps: int, stop: int):
        self.data, self.steps, self.stop = data, steps, stop
        self.seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        self.number = -1
        self.current: Any = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="qdq-stream")
        self.coming: tuple[int, Future[Any]] | None = None

    def __call__(self, step: int, state: Any) -> Any:
        number = step // self.steps
        if number != self.number:
            self.current = None  # this block goes before the one after the next is made
            if self.coming is None or self.coming[0] != number:
                self.coming = self._make(number)
            self.current, self.number = self.coming[1].result(), number  # raises what went wrong in the thread
            self.coming = self._make(number + 1) if (number + 1) * self.steps < self.stop else None
        return self.current

    def _make(self, number: int) -> tuple[int, Future[Any]]:
        return number, self.thread.submit(lambda: self.data.load(self.data.segments.block(self.seed, number)))

    def close(self) -> None:
        """End the thread, after the block it is making."""
        self.thread.shutdown(wait=True, cancel_futures=True)
        self.current = self.coming = None


def steps_per_block(segments: Segments, batch_size: int, chunk: int, stop: int) -> int:
    """Whole chunks in which about as many items are drawn as a block has; all steps, if a block has everything."""
    if segments.per_block == segments.number:
        return max(stop, chunk)
    return chunk * max(1, math.ceil(segments.items / batch_size / chunk))


@contextlib.contextmanager
def feed(data: Any, key: Array, batch_size: int, chunk: int, stop: int) -> Iterator[Any]:
    """What `train` takes as data: that on the device as it is, or a stream's blocks, whose thread ends with the context."""
    if not isinstance(data, StreamedTransitions | StreamedWindows):
        yield data
        return
    blocks = Blocks(data, key, steps_per_block(data.segments, batch_size, chunk, stop), stop)
    try:
        yield blocks
    finally:
        blocks.close()


def transition_bytes(dataset: Dataset) -> int:
    """The bytes that a transition takes on the device, without what episodes add."""
    return 4 * (dataset.observation_size + dataset.action_size + 5)


def window_bytes(dataset: Dataset) -> int:
    """The bytes that a window takes on the device."""
    return 4 * (dataset.observation_size + dataset.action_size + 1)


def _on_host(affine: Affine) -> Any:
    """The same map for arrays in the memory of the process."""
    shift, scale = np.asarray(affine.shift), np.asarray(affine.scale)
    return lambda values: (values - shift) / scale


def _sent(arrays: list[np.ndarray]) -> Iterator[Array]:
    """Arrays of (segments, items, ...) as (items, ...) on the device; each leaves the host before the next is sent."""
    while arrays:
        array = arrays.pop(0)
        yield jax.device_put(array.reshape(-1, *array.shape[2:]))
