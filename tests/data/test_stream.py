"""Streaming: blocks against brute force, the same sequence after a stop, and a thread that never outlives its run."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdq
from qdq import presets, storage
from qdq.data import stream
from qdq.data.prepare import Prepared, prepare
from qdq.data.stream import Segments, StreamedTransitions, StreamedWindows, feed, steps_per_block
from qdq.errors import DataError, UsageError
from qdq.training.display import Silent
from qdq.training.loop import train
from tests.probes import probe_dataset
from tests.test_q_dataset import make

KEY = jax.random.key(5)
TINY = ("training.batch_size=16", "algorithm.policy_hidden=8", "q_dataset.width=4", "q_dataset.stride=2")
RUN = ("training.chunk=20", "training.checkpoint_every=40", "evaluation.every=40", *TINY)


def pair() -> tuple[Prepared, Prepared]:
    """A dataset of uneven episodes, on the device and streamed."""
    random = np.random.default_rng(1)
    lengths = [2, *random.integers(1, 30, 40).tolist(), 300]
    data = make(lengths, (random.random(42) < 0.5).tolist(), 2)
    overrides = (*TINY, "data.normalise_states=true", "data.reward_shift=0.5", "data.reward_scaling=return_range")
    config, _ = presets.build("bc", "fast", None, overrides, 1000)
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # fewer, longer segments: such small data would come in single transitions
        patch.setattr(stream, "SEGMENTS_PER_BLOCK", 8)
        return prepare(data, config), prepare(data, config, 20_000)


def same(found: Any, expected: Any) -> None:
    """Equal but for the last bit: the device multiplies by an inverse where the host divides."""
    np.testing.assert_allclose(found, expected, rtol=5e-7, atol=1e-7)


def test_every_segment_has_its_turn() -> None:
    segments = Segments(103, 10, 4)
    assert segments.number == 11
    dealt = np.concatenate([segments.block([1, 2], number) for number in range(11)])
    for turn in range(4):
        assert sorted(dealt[11 * turn : 11 * (turn + 1)].tolist()) == list(range(11))
    covered = {int(segments.start(s)) + i for s in range(11) for i in range(10)}
    assert covered == set(range(103))
    np.testing.assert_array_equal(segments.block([1, 2], 7), dealt[28:32])
    assert not np.array_equal(segments.block([1, 3], 7), dealt[28:32])


def test_steps_draw_as_many_items_as_a_block_has() -> None:
    assert steps_per_block(Segments(10**6, 100, 64), 32, 20, 1000) == 200
    assert steps_per_block(Segments(10**6, 100, 64), 32, 60, 1000) == 240
    assert steps_per_block(Segments(100, 100, 64), 32, 60, 1000) == 1000


def test_blocks_hold_the_same_transitions_as_the_device() -> None:
    whole, streamed = pair()
    data = streamed.transitions
    assert isinstance(data, StreamedTransitions)
    assert 1 < data.segments.per_block < data.segments.number
    assert data.segments.length > 5
    shapes = set()
    for number in range(5):
        chosen = data.segments.block([7], number)
        block = data.load(chosen)
        shapes.add(str(jax.tree.map(jnp.shape, block)))
        index = (data.segments.start(chosen)[:, None] + np.arange(data.segments.length)).ravel()
        for found, expected in zip(
            block.at(jnp.arange(len(index))), whole.transitions.at(jnp.asarray(index)), strict=True
        ):
            same(found, expected)
    assert len(shapes) == 1  # or every block would be compiled anew


def test_blocks_hold_the_same_windows_as_the_device() -> None:
    whole, streamed = pair()
    data, every = streamed.window_data, whole.window_data
    assert isinstance(data, StreamedWindows)
    chosen = data.segments.block([7], 1)
    block = data.load(chosen)
    index = (data.segments.start(chosen)[:, None] + np.arange(data.segments.length)).ravel()
    expected = whole.transitions.at(jnp.asarray(whole.windows.index[index]))
    same(block.observations, expected.observations)
    same(block.actions, expected.actions)
    same(block.values, every.values[index])  # type: ignore[union-attr]


def test_the_rest_of_the_preparation_is_the_same() -> None:
    whole, streamed = pair()
    index = jnp.asarray([0, 1, 1, 2, 50, 200, whole.dataset.transitions - 1])
    for found, expected in zip(streamed.transitions.at(index), whole.transitions.at(index), strict=True):
        same(found, expected)
    assert streamed.reward_range == whole.reward_range == (whole.dataset.rewards.min(), whole.dataset.rewards.max())
    assert streamed.windows.minimum == whole.windows.minimum
    assert streamed.windows.std == pytest.approx(whole.windows.std, rel=1e-5)


def count(state: jax.Array, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    state = 0.9 * state + jnp.mean(batch.actions) + jnp.mean(jax.random.normal(key, (2,)))
    return state, {"state": state}


@pytest.mark.parametrize("kind", ["transitions", "window_data"])
def test_a_split_run_gets_the_same_blocks(kind: str) -> None:
    data = getattr(pair()[1], kind)
    data.segments = Segments(data.segments.count, data.segments.length, 3)

    def run(state: Any, start: int, stop: int) -> Any:
        with feed(data, KEY, 4, 10, 100) as blocks:
            assert blocks.steps < 50
            return train((count,), state, blocks, key=KEY, batch_size=4, start=start, stop=stop, chunk=10)

    whole = run(jnp.zeros(()), 0, 100)
    for middle in (10, 30, 70):
        assert float(run(run(jnp.zeros(()), 0, middle), middle, 100)) == float(whole)


def streaming_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("qdq-stream")]


def test_errors_in_the_thread_are_errors_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pair()[1].transitions
    data.segments = Segments(data.segments.count, data.segments.length, 3)  # type: ignore[union-attr]
    load, calls = data.load, iter(range(100))  # type: ignore[union-attr]

    def failing(segments: np.ndarray) -> Any:
        if next(calls) == 2:
            raise DataError("The disk is gone.")
        return load(segments)

    monkeypatch.setattr(data, "load", failing)
    steps = []
    hooks = [lambda step, state, metrics: steps.append(step)]
    with pytest.raises(DataError, match="disk is gone"), feed(data, KEY, 4, 10, 1000) as blocks:
        train((count,), jnp.zeros(()), blocks, key=KEY, batch_size=4, stop=1000, chunk=10, hooks=hooks)
    assert steps[-1] == 2 * blocks.steps  # the two blocks before it were used
    assert not streaming_threads()


class Stop(Silent):
    """Stops the run after a number of steps, as Ctrl-C does."""

    def __init__(self, step: int):
        self.step = step

    def update(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.step:
            raise KeyboardInterrupt


def test_a_resumed_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 200, "out": tmp_path, "overrides": RUN, "memory": 40_000}
    data = probe_dataset(0.3)
    whole = qdq.train(data, "bc", name="whole", display=Silent(), **options)
    assert whole.manifest["streamed"]["memory"] == 40_000
    assert whole.manifest["streamed"]["block_transitions"] < data.transitions
    with pytest.raises(KeyboardInterrupt):
        qdq.train(data, "bc", name="split", display=Stop(100), **options)
    assert not streaming_threads()
    for wrong in (None, "1GiB", 39_000):
        with pytest.raises(UsageError, match="--memory 40000"):
            qdq.train(data, "bc", name="split", resume=True, display=Silent(), **{**options, "memory": wrong})
    split = qdq.train(data, "bc", name="split", resume=True, display=Silent(), **options)
    files = [(run.path / "seed_0" / "policy.safetensors").read_bytes() for run in (whole, split)]
    assert files[0] == files[1]
    rows = [(run.path / "seed_0" / "metrics.csv").read_text() for run in (whole, split)]
    assert rows[0] == rows[1]


def test_a_dataset_that_fits_is_trained_as_without_a_budget(tmp_path: Path) -> None:
    path = tmp_path / "probe.npz"
    from qdq.data.npz import write_npz

    write_npz(probe_dataset(0.3), path)
    options: dict[str, Any] = {"steps": 40, "out": tmp_path, "display": Silent()}
    options["overrides"] = (*RUN, "data.normalise_states=true")
    plain = qdq.train(path, "bc", name="plain", **options)
    budget = qdq.train(path, "bc", name="budget", memory="1GiB", **options)
    assert budget.manifest["streamed"] is None
    files = [(run.path / "seed_0" / "policy.safetensors").read_bytes() for run in (plain, budget)]
    assert files[0] == files[1]


def test_every_stage_streams(tmp_path: Path) -> None:
    overrides = (
        *RUN,
        "q_distribution.hidden=32,32",
        "q_distribution.groups=8",
        "quantile.steps=200",
        "behaviour.steps=200",
        "quantile.batch_size=16",
        "diffusion.batch_size=16",
        "consistency.batch_size=16",
        "algorithm.critic_hidden=8,8",
        "q_dataset.stride=1",
    )
    options: dict[str, Any] = {"steps": 40, "out": tmp_path, "overrides": overrides, "display": Silent()}
    data = probe_dataset(0.3, episodes=8000)
    run = qdq.train(data, "qdq", memory=300_000, **options)
    streamed = run.manifest["streamed"]
    assert streamed["block_windows"] < 16_000
    assert storage.read_json(run.path / "q_distribution" / "manifest.json")["identity"]["streamed"] == streamed
    assert run.uncertainty(data.current_observations[:3], data.actions[:3]).shape == (3,)
    assert (run.path / "uncertainty.png").exists()


def test_a_budget_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too small: .* need"):
        qdq.train(probe_dataset(0.3), "bc", out=tmp_path, steps=400, memory="10KB", display=Silent())
    assert not any(tmp_path.glob("probe*"))


def test_too_much_for_the_machine_is_told_about_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdq.data.prepare.physical_memory", lambda: 10_000)
    config, _ = presets.build("bc", "fast", None, TINY, 1000)
    data = probe_dataset(0.3)
    with pytest.raises(UsageError, match="--memory 2GiB"):
        prepare(replace(data), config)
