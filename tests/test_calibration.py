"""Calibration of levels: against closed forms, and on a model that is wrong in a known way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import norm

from qdq import calibration, quantile
from qdq.data.episodes import Metadata, from_arrays
from qdq.data.prepare import prepare
from qdq.diffusion import QBatch
from qdq.errors import DataError
from qdq.networks import ConditionalScalar
from qdq.normalisers import unit_interval
from qdq.presets import build
from qdq.q_distribution import LARGEST_Z, LevelMap, QDistribution
from qdq.training import stages
from qdq.training.display import Silent
from qdq.training.loop import train


class Normal(QDistribution):
    """Q is s + 0.5 z, whatever the network."""

    def values(self, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
        z = z if self.levels is None else self.levels(z)
        return observations[..., 0] + 0.5 * z


NETWORK = ConditionalScalar(1, 1, (32, 32), jax.random.key(0), groups=8)
NORMAL = Normal(NETWORK, unit_interval(-1.0, 1.0))


def test_positions_are_the_z_of_a_normal_distribution() -> None:
    states = jnp.linspace(-2.0, 2.0, 301)[:, None]
    z = np.linspace(-4.0, 4.0, 301)
    found = calibration.positions(NORMAL, states, states, np.asarray(states[:, 0]) + 0.5 * z)
    np.testing.assert_allclose(found, z, atol=1e-4)
    beyond = calibration.positions(NORMAL, states[:2], states[:2], np.array([-90.0, 90.0]))
    np.testing.assert_allclose(beyond, [-LARGEST_Z, LARGEST_Z])


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.3, 0.6), (-0.5, 1.7)])
def test_the_map_undoes_a_known_error(shift: float, scale: float) -> None:
    z = ndtri((np.arange(20_000) + 0.5) / 20_000)
    levels = calibration.fit(shift + scale * z)  # returns spread `scale` as wide as the model says
    grid = np.linspace(-2.5, 2.5, 51)
    np.testing.assert_allclose(levels(jnp.asarray(grid)), shift + scale * grid, atol=2e-3)


def test_calibrated_intervals_cover_new_values() -> None:
    """A model that is off centre, with values of a skewed distribution: coverage before and after."""
    random = np.random.default_rng(0)
    states = random.normal(size=(2, 4000, 1)).astype(np.float32)
    values = states[..., 0] + random.gamma(2.0, 0.4, (2, 4000))
    old, new = jnp.asarray(states)
    before = calibration.positions(NORMAL, old, old, values[0])
    model = Normal(NETWORK, NORMAL.scaler, calibration.fit(before))
    after = calibration.positions(model, new, new, values[1])
    assert calibration.inside(before, 0.8) < 0.6
    for share in (0.5, 0.8, 0.95):
        assert calibration.inside(after, share) == pytest.approx(share, abs=0.03)


def test_the_map_is_monotone_also_beyond_its_knots() -> None:
    levels = calibration.fit(np.random.default_rng(0).standard_t(2, 500).clip(-LARGEST_Z, LARGEST_Z))
    z = jnp.linspace(-9.0, 9.0, 400)
    mapped = np.asarray(levels(z))
    assert (np.diff(mapped) >= 0).all()
    assert np.abs(mapped).max() <= LARGEST_Z
    inside = LevelMap(jnp.array([-1.0, 1.0]), jnp.array([-2.0, 1.5]))
    np.testing.assert_allclose(inside(jnp.array([-2.0, -1.0, 0.0, 1.0, 1.5])), [-3.0, -2.0, -0.25, 1.5, 2.0])


def test_a_map_survives_saving_and_damage_is_noticed() -> None:
    levels = calibration.fit(np.random.default_rng(0).normal(size=500))
    content = calibration.to_json(levels)
    again = calibration.from_json(content)
    np.testing.assert_array_equal(again.mapped, levels.mapped)
    damaged = [
        [],
        3,
        {"z": [0.0, 1.0]},
        {"z": [0.0, 1.0], "mapped": [0.0]},
        {"z": [1.0, 0.0], "mapped": [0.0, 1.0]},
        {"z": [0.0, 1.0], "mapped": [1.0, 0.0]},
        {"z": [0.0, float("nan")], "mapped": [0.0, 1.0]},
        {"z": [0.0, 1.0], "mapped": [0.0, float("nan")]},
        {"z": [0.0, 1.0], "mapped": [0.0, 1e30]},
        {"z": ["a", "b"], "mapped": [0.0, 1.0]},
    ]
    for wrong in damaged:
        with pytest.raises(DataError, match="calibration"):
            calibration.from_json(wrong)


def test_whole_episodes_are_kept_back_and_few_episodes_are_not_split() -> None:
    chosen = calibration.choose_episodes(200, 0.1)
    assert len(chosen) == len(set(chosen)) == 20
    assert len(calibration.choose_episodes(10**6, 0.1)) == calibration.MOST_EPISODES
    assert len(calibration.choose_episodes(70, 0.1)) == 0


def test_levels_are_drawn_as_the_settings_say() -> None:
    for spread in (1.0, 1.5):
        config = quantile.Config(levels=4, level_spread=spread)
        level, z = quantile.draw_levels(config, jax.random.key(0), 20_000)
        np.testing.assert_allclose(level, norm.cdf(np.asarray(z)), atol=1e-6)
        assert float(jnp.std(z)) == pytest.approx(spread, rel=0.02)
        edges = spread * ndtri([0.25, 0.5, 0.75])
        assert all(((z[i] >= low) & (z[i] <= high)).all() for i, (low, high) in enumerate(
            zip([-np.inf, *edges], [*edges, np.inf], strict=True)))  # fmt: skip


def test_tail_weight_evens_out_gradients() -> None:
    """For a correct model the derivative of the loss by a quantile has variance p (1 - p); weighted by 1 it is 1/4."""
    p = np.array([0.01, 0.2, 0.5])
    weight = (4 * p * (1 - p)) ** -0.5
    np.testing.assert_allclose(weight**2 * p * (1 - p), 0.25)
    batch = QBatch(jnp.zeros((512, 1)), jnp.zeros((512, 1)), jnp.linspace(-1, 1, 512))
    plain, weighted = (
        float(quantile.loss(NETWORK, quantile.Config(tail_weight=w), batch, jax.random.key(1))[0]) for w in (0.0, 1.0)
    )
    assert weighted > plain  # no weight is below 1


class Same:
    """The same window again and again."""

    def sample(self, key: jax.Array, batch_size: int) -> QBatch:
        return QBatch(jnp.zeros((batch_size, 1)), jnp.zeros((batch_size, 1)), jnp.zeros(batch_size))


jax.tree_util.register_pytree_node(Same, lambda same: ((), None), lambda _, __: Same())


def test_the_average_is_that_of_the_steps() -> None:
    config = quantile.Config(steps=8, average_share=0.5, weight_decay=0.5, cosine_decay=False, learning_rate=0.01)
    state = quantile.init(config, jax.tree.map(jnp.array, NETWORK))
    seen = []

    def keep(step: int, state: quantile.State, metrics: object) -> None:
        seen.append(np.asarray(state.network.first.weight).copy())

    state = train(
        quantile.steps(config), state, Same(), key=jax.random.key(1), batch_size=8, stop=8, chunk=1, hooks=[keep]
    )
    expected = np.asarray(NETWORK.first.weight)
    for weight in seen:
        expected = expected + 0.25 * (weight - expected)  # a share of 0.5 of 8 steps
    np.testing.assert_allclose(state.learned.first.weight, expected, rtol=1e-5, atol=1e-7)
    assert not np.allclose(state.learned.first.weight, state.network.first.weight)


def test_weight_decay_shrinks_matrices_and_nothing_else() -> None:
    """Adam's step is the same with and without, but for the matrices: learning rate x decay x weight."""
    config = quantile.Config(steps=200, cosine_decay=False, learning_rate=1e-3)
    networks = []
    for decay in (0.0, 2.0):
        changed = quantile.Config(steps=200, cosine_decay=False, learning_rate=1e-3, weight_decay=decay)
        state = quantile.init(changed, jax.tree.map(jnp.array, NETWORK))
        step = jax.jit(quantile.steps(changed)[0])
        networks.append(step(state, Same().sample(jax.random.key(0), 8), jax.random.key(1))[0].network)
    plain, decayed = networks
    gap = np.asarray(plain.body[0].weight - decayed.body[0].weight)
    np.testing.assert_allclose(gap, config.learning_rate * 2.0 * np.asarray(NETWORK.body[0].weight), atol=1e-6)
    np.testing.assert_allclose(plain.gains[0], decayed.gains[0], atol=1e-7)


def test_a_stage_keeps_episodes_back_and_its_intervals_hold_for_new_ones(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small dataset that the learner memorises: too narrow without calibration, about right with it."""
    monkeypatch.setenv("QDQ_CACHE", str(tmp_path))

    def episodes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        states = random.uniform(-1, 1, (2 * count, 3)).astype(np.float32)
        return states, np.zeros((2 * count, 1), np.float32), random.normal(size=2 * count).astype(np.float32)

    states, actions, rewards = episodes(0, 200)
    data = from_arrays(states, actions, rewards, np.arange(400) % 2 == 1, metadata=Metadata("narrow"))
    new_states, new_actions, new_rewards = episodes(1, 2000)
    changes = ("q_dataset.width=1", "q_distribution.hidden=64,64", "q_distribution.groups=8", "quantile.steps=800")
    config, _ = build("qdq", "fast", None, (*changes, "quantile.calibration_share=0.25", "quantile.weight_decay=0"))
    prepared = prepare(data, config)
    artefact = stages.learn_distribution(prepared, data.sha256, config, Silent())
    model = stages.load_distribution(artefact.path / "model.safetensors", config, 3, 1, artefact.manifest)
    inputs = prepared.observation_normaliser.forward(jnp.asarray(new_states)), jnp.asarray(new_actions)
    bare = QDistribution(model.network, model.scaler)
    covered = [calibration.inside(calibration.positions(asked, *inputs, new_rewards), 0.8) for asked in (bare, model)]
    assert covered[0] < 0.7
    assert covered[1] == pytest.approx(0.8, abs=0.1)  # of 50 episodes
