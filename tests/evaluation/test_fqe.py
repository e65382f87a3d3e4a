"""Fitted Q evaluation on data whose answers are known in closed form."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdq.data.batches import LoggedTransitions
from qdq.data.episodes import Dataset, from_arrays
from qdq.errors import DataError, UsageError
from qdq.evaluation import fqe
from qdq.normalisers import Affine, identity, unit_interval
from qdq.training.deployed import DeployedPolicy
from tests.probes import probe_dataset

QUICK = fqe.Config(steps=800, hidden=(64, 64), learning_rate=1e-3, target_rate=0.1, discount=0.9)


class Line(eqx.Module):
    """Stands where a policy's network stands: slope * s + offset."""

    slope: jax.Array
    offset: jax.Array

    def __call__(self, observations: jax.Array) -> jax.Array:
        return self.slope * observations[..., :1] + self.offset


def line(slope: float, offset: float = 0.0, scaler: Affine | None = None) -> DeployedPolicy:
    return DeployedPolicy(Line(jnp.asarray(slope), jnp.asarray(offset)), identity(2), scaler or identity(1))


def true_value(slope: float, offset: float, discount: float) -> float:
    """Two steps of 1 - (a - s/2)^2 with s uniform in [-1, 1]."""
    return (1 + discount) * (1 - (slope - 0.5) ** 2 / 3 - offset**2)


def value_from(starts: np.ndarray, slope: float, offset: float, discount: float) -> float:
    """The same where the first s is known."""
    first = 1 - np.square((slope - 0.5) * starts + offset)
    return float(first.mean()) + discount * true_value(slope, offset, 0.0)


@pytest.fixture(scope="module")
def evaluated() -> dict[tuple[float, float], fqe.Estimate]:
    """The best policy, a middling one and a bad one, in one evaluation."""
    lines = [(0.5, 0.0), (0.0, 0.0), (-0.4, 0.3)]
    result = fqe.evaluate(probe_dataset(1.0), [line(*parameters) for parameters in lines], QUICK)
    assert (result.trained_episodes, result.held_out_episodes) == (640, 160)
    return dict(zip(lines, result.estimates, strict=True))


def test_values_are_near_the_closed_form(evaluated: dict[tuple[float, float], fqe.Estimate]) -> None:
    _, held = fqe.split(probe_dataset(1.0), QUICK)
    starts = held.observations[held.rows[held.starts], 0]
    for parameters, estimate in evaluated.items():
        assert estimate.value == pytest.approx(value_from(starts, *parameters, QUICK.discount), abs=0.02)
        assert estimate.value == pytest.approx(np.mean(estimate.fits))


def test_a_better_policy_gets_a_higher_estimate(evaluated: dict[tuple[float, float], fqe.Estimate]) -> None:
    best, middling, bad = (estimate.value for estimate in evaluated.values())
    assert best > middling + 0.05 > bad + 0.1


def test_the_interval_contains_the_truth_and_says_something(
    evaluated: dict[tuple[float, float], fqe.Estimate],
) -> None:
    for parameters in ((0.0, 0.0), (-0.4, 0.3)):  # the best policy is worth the same everywhere, so it has no spread
        interval = evaluated[parameters].interval_95
        assert interval is not None
        assert interval[0] <= true_value(*parameters, QUICK.discount) <= interval[1]
        assert 0.005 < interval[1] - interval[0] < 0.15


def test_actions_and_observations_in_any_unit(evaluated: dict[tuple[float, float], fqe.Estimate]) -> None:
    """Actions in [-3, 5], and a policy that was trained on observations divided by four."""
    data = probe_dataset(1.0)
    bounds = np.array([-3.0], np.float32), np.array([5.0], np.float32)
    data = replace(data, actions=4 * data.actions + 1, action_low=bounds[0], action_high=bounds[1])
    policy = line(-1.6, 0.3, unit_interval(*bounds))
    policy = eqx.tree_at(lambda p: p.observation_normaliser.scale, policy, jnp.full(2, 4.0))
    estimate = fqe.evaluate(data, [policy], QUICK).estimates[0]  # alone, and yet as in company
    assert estimate.value == pytest.approx(evaluated[-0.4, 0.3].value, abs=0.02)


def repeated(terminal: bool) -> Dataset:
    """Forty episodes of four steps with reward 1 at a state that tells nothing but whether it is the first."""
    last = np.tile(np.arange(4) == 3, 40)
    observations = np.tile([[1.0], [0.0], [0.0], [0.0]], (40, 1)) if not terminal else np.tile(np.eye(4), (40, 1))
    actions = np.random.default_rng(0).uniform(-1, 1, (160, 1))
    flags = (last, ~last & last) if terminal else (~last & last, last)
    following = None if terminal else np.zeros((160, 1))
    return from_arrays(observations, actions, np.ones(160), *flags, next_observations=following)


@pytest.mark.parametrize(("terminal", "value"), [(True, (1 - 0.8**4) / 0.2), (False, 1 / 0.2)])
def test_the_value_goes_on_beyond_a_time_limit_and_not_beyond_a_terminal(terminal: bool, value: float) -> None:
    data = repeated(terminal)
    size = data.observation_size
    policy = DeployedPolicy(Line(jnp.zeros(()), jnp.zeros(())), identity(size), identity(1))
    config = replace(QUICK, steps=400, discount=0.8, batch_size=64)
    result = fqe.evaluate(data, [policy], config)
    assert result.estimates[0].value == pytest.approx(value, abs=0.05)
    assert result.recorded == pytest.approx((1 - 0.8**4) / 0.2, abs=1e-4)  # what was seen ends with the recording


def test_targets_by_hand() -> None:
    class Constant(eqx.Module):
        def __call__(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
            return jnp.stack([jnp.full(len(observations), 2.0), jnp.full(len(observations), 50.0)])

    scales = fqe.Scales(identity(2), Affine(jnp.asarray(1.0), jnp.asarray(3.0)), jnp.asarray(0.0), jnp.asarray(10.0))
    zeros = jnp.zeros((2, 2))
    batch = LoggedTransitions(
        zeros, zeros[:, :1], jnp.array([1.0, 1.0]), zeros, jnp.array([0.0, 1.0]), zeros[0], zeros[0]
    )
    target = fqe.bellman_target(Constant(), line(0.5), scales, QUICK, batch)  # type: ignore[arg-type]
    # 2 stands for 2 * 3 + 1 = 7; 151 is more than any policy can get, 10
    np.testing.assert_allclose(target, [[1 + 0.9 * 7, 1.0], [1 + 0.9 * 10, 1.0]], rtol=1e-6)


def test_rank_agreement_by_hand() -> None:
    found = fqe.rank_agreement([1.0, 2.0, 3.0, 4.0], [10.0, 30.0, 40.0, 20.0])
    assert found["spearman"] == pytest.approx(0.4)
    assert found["regret_at_1"] == 20.0
    assert found["range_of_returns"] == 30.0
    assert found["interval_95"][0] < 0.4 < found["interval_95"][1]
    assert fqe.rank_agreement([1.0, 1.0], [1.0, 2.0])["spearman"] is None


def test_what_cannot_work_is_refused() -> None:
    single = probe_dataset(1.0, episodes=1)
    with pytest.raises(DataError, match="single episode"):
        fqe.evaluate(single, [line(0.5)], QUICK)
    for wrong in (replace(QUICK, steps=350), replace(QUICK, steps=0), replace(QUICK, discount=1.0)):
        with pytest.raises(UsageError, match="must"):
            fqe.evaluate(single, [line(0.5)], wrong)


def test_episodes_are_split_by_the_seed_and_never_shared() -> None:
    data = probe_dataset(1.0, episodes=20)
    trained, held = fqe.split(data, QUICK)
    assert (trained.episodes, held.episodes) == (16, 4)
    rows = [{tuple(row) for row in part.observations.tolist()} for part in (trained, held)]
    assert not {row for row in rows[0] if row[0]} & {row for row in rows[1] if row[0]}  # apart from empty last rows
    assert fqe.split(data, QUICK)[1].sha256 == held.sha256
    assert fqe.split(data, replace(QUICK, seed=1))[1].sha256 != held.sha256
