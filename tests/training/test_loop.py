"""The loop: a scanned chunk equals a plain Python loop, and stopping in the middle changes nothing."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq.training.loop import train


class Numbers(eqx.Module):
    values: jax.Array

    def sample(self, key: jax.Array, batch_size: int) -> jax.Array:
        return self.values[jax.random.randint(key, (batch_size,), 0, len(self.values))]


DATA = Numbers(jnp.arange(50.0))
KEY = jax.random.key(7)


def first(state: jax.Array, batch: jax.Array, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    state = 0.9 * state + jnp.mean(batch) + jax.random.normal(key)
    return state, {"mean": jnp.mean(batch)}


def second(state: jax.Array, batch: jax.Array, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return state - 0.5 * jnp.max(batch), {"maximum": jnp.max(batch)}


def test_scan_equals_a_naive_loop() -> None:
    rows = []
    final = train(
        (first, second),
        jnp.zeros(()),
        DATA,
        key=KEY,
        batch_size=4,
        stop=20,
        chunk=10,
        hooks=[lambda n, s, m: rows.append((n, m))],
    )
    state, means = jnp.zeros(()), []
    for number in range(20):
        batch_key, step_key = jax.random.split(jax.random.fold_in(KEY, number))
        state, metrics = (first, second)[number % 2](state, DATA.sample(batch_key, 4), step_key)
        means.append(metrics)
    np.testing.assert_allclose(final, state, rtol=1e-6)
    assert [n for n, _ in rows] == [10, 20]
    expected = np.mean([m["mean"] for m in means[:10] if "mean" in m])
    assert rows[0][1]["mean"] == pytest.approx(float(expected), rel=1e-6)


def test_a_split_run_equals_a_whole_one() -> None:
    whole = train((first,), jnp.zeros(()), DATA, key=KEY, batch_size=4, stop=40, chunk=10)
    half = train((first,), jnp.zeros(()), DATA, key=KEY, batch_size=4, stop=20, chunk=10)
    rest = train((first,), half, DATA, key=KEY, batch_size=4, start=20, stop=40, chunk=10)
    assert float(whole) == float(rest)


def test_lengths_must_divide() -> None:
    with pytest.raises(ValueError, match="divide evenly"):
        train((first, second), jnp.zeros(()), DATA, key=KEY, batch_size=4, stop=20, chunk=5)
