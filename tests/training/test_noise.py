"""Noise on states: the same before and after a step, of the asked spread, and nothing else is touched."""

import jax
import jax.numpy as jnp
import numpy as np

from qdq.data.batches import LoggedTransitions
from qdq.training.noise import perturbed, with_state_noise


def rows(count: int) -> LoggedTransitions:
    random = np.random.default_rng(0)
    states, following = (jnp.asarray(random.normal(size=(count, 2)), jnp.float32) for _ in range(2))
    ones = jnp.ones(count)
    return LoggedTransitions(states, ones[:, None], ones, following, ones, ones, ones)


def test_noise_moves_both_states_of_a_step_by_the_same_amount() -> None:
    batch = rows(4000)
    noisy = perturbed(batch, 0.25, jax.random.key(1))
    moved = np.asarray(noisy.observations - batch.observations)
    np.testing.assert_allclose(noisy.next_observations - batch.next_observations, moved, atol=1e-6)
    np.testing.assert_allclose(moved.std(axis=0), 0.25, rtol=0.05)
    np.testing.assert_allclose(moved.mean(axis=0), 0.0, atol=0.02)
    for name in set(batch._fields) - {"observations", "next_observations"}:
        assert getattr(noisy, name) is getattr(batch, name)


def test_every_step_of_a_cycle_sees_noise_of_its_own_key_and_keeps_the_key() -> None:
    def first(state: jax.Array, batch: LoggedTransitions, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return state + 1, {"seen": batch.observations, "draw": jax.random.normal(key)}

    def second(state: jax.Array, batch: LoggedTransitions, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return state * 10, {"seen": batch.observations, "draw": jax.random.normal(key)}

    batch, keys = rows(3), jax.random.split(jax.random.key(0))
    cycle = with_state_noise((first, second), 0.3)
    seen = []
    for step, plain, result in zip(cycle, (first, second), (3, 20), strict=True):
        for key in keys:
            state, metrics = step(jnp.asarray(2), batch, key)
            assert int(state) == result
            assert metrics["draw"] == plain(jnp.asarray(2), batch, key)[1]["draw"]
            np.testing.assert_array_equal(metrics["seen"], step(jnp.asarray(2), batch, key)[1]["seen"])
            seen.append(np.asarray(metrics["seen"]))
    assert not np.array_equal(seen[0], batch.observations)
    assert not np.array_equal(seen[0], seen[1])
    assert with_state_noise((first, second), 0.0) == (first, second)
