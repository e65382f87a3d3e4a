"""The training loop: a Python loop over chunks, a `lax.scan` inside each chunk, hooks in between.

A step is a pure function `step(state, batch, key) -> (state, metrics)`. A method gives a *cycle* of steps, run in turn:
one step for most, two for methods that update their policy every second time. Random keys depend only on the stage's
key and the step's number, so a run that stops and goes on draws the same batches as one that never stopped. With a
layout the same steps serve several seeds at once: states, keys and metrics have one row per seed.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from qdq.training.layout import Layout

Metrics = dict[str, Array]
Step = Callable[[Any, Any, Array], tuple[Any, Metrics]]


class Data(Protocol):
    """Training data on the device: a pytree that can draw a batch."""

    def sample(self, key: Array, batch_size: int) -> Any: ...


Hook = Callable[[int, Any, Any], None]


def compile_chunk(
    cycle: Sequence[Step], batch_size: int, length: int, layout: Layout | None = None
) -> Callable[..., tuple[Any, Metrics]]:
    """A jitted `chunk(state, data, key, first) -> (state, mean metrics)` of `length` steps that reuses the state's memory."""

    def chunk(state: Any, data: Data, key: Array, first: Array) -> tuple[Any, Metrics]:
        def body(state: Any, number: Array) -> tuple[Any, Metrics]:
            merged: Metrics = {}
            for offset, step in enumerate(cycle):
                batch_key, step_key = jax.random.split(jax.random.fold_in(key, number + offset))
                batch = data.sample(batch_key, batch_size)
                state, metrics = step(state, batch if layout is None else layout.split(batch), step_key)
                merged |= metrics
            return state, merged

        numbers = first + len(cycle) * jnp.arange(length // len(cycle))
        state, metrics = jax.lax.scan(body, state, numbers)
        return state, jax.tree.map(jnp.mean, metrics)

    if layout is None:
        return jax.jit(chunk, donate_argnums=0)

    def member(state: Any, data: Data, key_data: Array, first: Array) -> tuple[Any, Metrics]:
        return chunk(state, data, jax.random.wrap_key_data(key_data), first)

    together = jax.vmap(member, in_axes=(0, None, 0, None), spmd_axis_name="seed")
    return jax.jit(together, donate_argnums=0, out_shardings=(layout.by_seed, layout.by_seed))


def train(
    cycle: Sequence[Step],
    state: Any,
    data: Data | Callable[[int, Any], Data],
    *,
    key: Array,
    batch_size: int,
    stop: int,
    chunk: int,
    start: int = 0,
    hooks: Sequence[Hook] = (),
    layout: Layout | None = None,
) -> Any:
    """Run steps `start` to `stop` and return the final state.

    `data` is fixed, or a function `data(step, state)` called before each chunk (an online run collects there,
    a stream hands out its next block).
    Hooks are called after each chunk with the number of steps done, the state and the chunk's mean metrics; they must
    not keep the state, whose memory the next chunk reuses. With a `layout`, state and data are laid out by it, `key` is
    the laid-out data of one key per seed, and hooks get the stacked metrics as they lie on the devices.
    """
    if chunk % len(cycle) or (stop - start) % chunk:
        raise ValueError(f"{stop - start} steps, chunks of {chunk} and a cycle of {len(cycle)} must divide evenly")
    run = compile_chunk(cycle, batch_size, chunk, layout)
    for first in range(start, stop, chunk):
        # No name keeps the data: a stream frees a block before it makes another.
        state, metrics = run(state, data(first, state) if callable(data) else data, key, jnp.asarray(first))
        if layout is None:
            metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
        for hook in hooks:
            hook(first + chunk, state, metrics)
    return state
