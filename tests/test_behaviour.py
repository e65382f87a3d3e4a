"""The model of recorded actions: a density, learned, whose border keeps its promise on new episodes."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from qdq import behaviour, presets
from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.prepare import prepare
from qdq.networks import MLP
from qdq.training import stages
from qdq.training.display import Silent

SMALL = behaviour.Config(steps=1_200, components=3, hidden=(32, 32), learning_rate=3e-3)


def model(action_size: int = 1, seed: int = 0) -> behaviour.BehaviourModel:
    made = behaviour.BehaviourModel(2, action_size, SMALL, jax.random.key(seed))
    return eqx.tree_at(
        lambda m: m.network.layers[-1].bias, made, replace_fn=lambda bias: 3.0 * jnp.sin(7.0 * jnp.arange(len(bias)))
    )


def two_ways(episodes: int, seed: int, length: int = 10) -> Dataset:
    """At state s the recorded action is near 0.7 s or near -0.7 s, with standard deviation 0.05."""
    random = np.random.default_rng(seed)
    count = episodes * length
    s = random.uniform(0.4, 1.0, count)
    way = np.where(random.uniform(size=count) < 0.5, 0.7, -0.7)
    actions = way * s + 0.05 * random.normal(size=count)
    ends = np.arange(count) % length == length - 1
    observations = np.stack([s, random.normal(size=count)], axis=1).astype(np.float32)
    return from_arrays(observations, actions[:, None].astype(np.float32), s, ends, metadata=Metadata("two-ways"))


def test_density_integrates_to_one_and_equals_scipy() -> None:
    made = model()
    state = jnp.array([[0.3, -0.2]])

    def density(action: float) -> float:
        return float(np.exp(-made.surprise(state, jnp.array([[action]], jnp.float32))[0]))

    weights, means, log_stds = (np.asarray(part)[0] for part in made._moments(state))
    for action in (-0.9, -0.2, 0.4, 0.97):
        u = np.arctanh(action)
        brute = sum(
            np.exp(w) * stats.norm.pdf(u, m[0], np.exp(s[0])) for w, m, s in zip(weights, means, log_stds, strict=True)
        ) / (1.0 - action**2)
        assert density(action) == pytest.approx(brute, rel=1e-3)
    grid = np.linspace(-12.0, 12.0, 200_001)  # before the squashing, where every peak is at least 0.018 wide
    inside = np.tanh(grid)
    densities = np.exp(
        -np.asarray(made.surprise(jnp.broadcast_to(state, (len(grid), 2)), jnp.asarray(inside)[:, None]))
    )
    kept = np.abs(inside) < behaviour.LARGEST_ACTION
    assert np.sum(densities[kept] * (1.0 - inside[kept] ** 2)) * (grid[1] - grid[0]) == pytest.approx(1.0, abs=0.01)


@given(st.lists(st.floats(-1.0, 1.0, width=32), min_size=3, max_size=3), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_any_action_of_the_range_has_a_finite_surprise_and_gradient(action: list[float], seed: int) -> None:
    made, state = model(3, seed), jnp.zeros((1, 2))

    def both(a: jax.Array) -> jax.Array:
        return jnp.sum(made.surprise(state, a) + made.distance(state, a))

    value, gradient = jax.value_and_grad(both)(jnp.array([action], jnp.float32))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_distance_is_half_the_squared_distance_for_one_gaussian() -> None:
    config = dataclasses.replace(SMALL, components=1)
    made = behaviour.BehaviourModel(2, 2, config, jax.random.key(1))
    state, action = jnp.array([[0.5, -0.5]]), jnp.array([[0.3, -0.6]])
    _, means, log_stds = (np.asarray(part)[0] for part in made._moments(state))
    z = (np.arctanh(np.array([0.3, -0.6])) - means[0]) / np.exp(log_stds[0])
    assert float(made.distance(state, action)[0]) == pytest.approx(0.5 * np.sum(z**2), rel=1e-4)


def test_both_ways_are_learned_and_the_middle_is_surprising() -> None:
    """The mean of two modes is an action that nobody took."""
    config = dataclasses.replace(presets.build("qdq", "fast")[0], behaviour=SMALL)
    data = two_ways(200, 0)
    prepared = prepare(data, config)
    artefact = stages.learn_behaviour(prepared, data.sha256, config, Silent())
    learned = stages.load_behaviour(artefact.path / "model.safetensors", config, 2, 1)
    fresh = two_ways(200, 1)
    states = prepared.observation_normaliser.forward(jnp.asarray(fresh.current_observations))
    scaled = prepared.action_scaler.forward
    recorded = np.asarray(learned.surprise(states, scaled(jnp.asarray(fresh.actions))))
    middle = np.asarray(learned.surprise(states, scaled(jnp.zeros_like(jnp.asarray(fresh.actions)))))
    border = artefact.manifest["surprise_border"]
    assert artefact.manifest["calibrated_on_held_out_episodes"]
    assert np.mean(recorded > border) < 0.09  # 5 % promised, on 100 held-out actions
    assert np.mean(middle > border) > 0.99


@given(st.integers(1, 400), st.floats(0.01, 0.5), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_the_border_keeps_its_promise_for_exchangeable_numbers(count: int, share: float, seed: int) -> None:
    """Of count + 1 distinct numbers, each as likely to be the new one, at most that share exceeds the others' border."""
    numbers = np.random.default_rng(seed).permutation(count + 1).astype(float)
    each = np.arange(count)
    exceed = sum(numbers[i] > behaviour.conformal_border(np.delete(numbers, i), each, share) for i in range(count + 1))
    if (count + 1) * share >= 1.0:  # with fewer no finite border can promise it
        assert exceed <= share * (count + 1) + 1e-9


def test_the_border_keeps_its_promise_where_episodes_differ() -> None:
    """40 episodes that differ as much as actions within them: one border of six flags too many of all episodes, because so
    few episodes tell little of their own spread; the plain quantile, which takes actions for independent, flags too many
    in more than half of all cases."""
    too_many = {"ours": 0, "plain": 0}
    for seed in range(200):
        random = np.random.default_rng(seed)
        levels = random.normal(size=40)  # new episodes: N(0, 1) for the level, N(0, 1) within, so N(0, 2) in all
        surprises = np.repeat(levels, 50) + random.normal(size=2000)
        borders = {
            "ours": behaviour.conformal_border(surprises, np.repeat(np.arange(40), 50), 0.05),
            "plain": float(np.sort(surprises)[int(np.ceil(2001 * 0.95)) - 1]),
        }
        for name, border in borders.items():
            too_many[name] += bool(stats.norm.sf(border, scale=np.sqrt(2.0)) > 0.05)
    assert too_many["plain"] > 100
    assert too_many["ours"] < 45
    assert behaviour.conformal_border(np.arange(100.0), np.zeros(100), 0.05) == 95.0  # one episode: no margin to be had


def test_few_episodes_are_not_split() -> None:
    assert not behaviour.held_out_episodes(19, SMALL).any()
    flags = behaviour.held_out_episodes(200, SMALL)
    assert flags.sum() == 10
    np.testing.assert_array_equal(flags, behaviour.held_out_episodes(200, SMALL))


def test_centre_is_the_mean_and_spread_of_what_the_model_draws() -> None:
    made, state, random = model(), jnp.array([[0.3, -0.2]]), np.random.default_rng(0)
    weights, means, log_stds = (np.asarray(part, np.float64)[0] for part in made._moments(state))
    component = random.choice(3, 400_000, p=np.exp(weights) / np.exp(weights).sum())
    drawn = means[component, 0] + np.exp(log_stds[component, 0]) * random.normal(size=len(component))
    mean, std = (float(part[0, 0]) for part in made.centre(state))
    assert mean == pytest.approx(drawn.mean(), abs=0.02 * drawn.std())
    assert std == pytest.approx(drawn.std(), rel=0.02)


@given(st.integers(0, 1000), st.floats(0.1, 3.0), st.floats(0.0, 100.0))
@settings(max_examples=40, deadline=None)
def test_a_held_policy_never_leaves_the_recorded_actions(seed: int, largest: float, size: float) -> None:
    """Whatever its network says; and where it says nothing it acts as their mean."""
    made, keys = model(2, seed), jax.random.split(jax.random.key(seed), 3)
    held = behaviour.HeldPolicy(made, MLP(2, 2, (8,), keys[0]), largest)
    observations = 3.0 * jax.random.normal(keys[1], (16, 2))
    mean, std = made.centre(observations)
    np.testing.assert_allclose(held(observations), jnp.tanh(mean), atol=1e-6)
    loud = eqx.tree_at(lambda p: p.network.layers[-1].bias, held, size * jax.random.normal(keys[2], (2,)))
    low, high = jnp.tanh(mean - largest * std), jnp.tanh(mean + largest * std)
    actions = loud(observations)
    assert bool(jnp.all((actions >= low - 1e-5) & (actions <= high + 1e-5)))
