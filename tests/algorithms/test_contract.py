"""One contract for all algorithms: fit, act, save, load, and solve a problem whose answer is known."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdq
from qdq import algorithms, storage
from qdq.algorithms.problem import Problem
from qdq.data.prepare import prepare
from qdq.errors import DataError
from qdq.training.averaging import averaging
from qdq.training.display import Silent
from qdq.training.seeds import Saved
from tests.probes import probe_dataset

TINY = (
    "training.chunk=100",
    "training.checkpoint_every=200",
    "evaluation.every=200",
    "training.batch_size=64",
    "algorithm.policy_hidden=32,32",
    "q_dataset.stride=1",
    "training.average_rate=0.01",
)
TINY_QDQ = (
    "q_distribution.hidden=32,32",
    "q_distribution.groups=8",
    "quantile.steps=200",
    "algorithm.critic_hidden=32,32",
    "algorithm.extraction_share=0.5",
    "behaviour.steps=200",
    "behaviour.hidden=32,32",
)


def overrides(algorithm: str) -> tuple[str, ...]:
    extra = {"qdq": TINY_QDQ, "bc": ()}.get(algorithm, ("algorithm.critic_hidden=32,32",))
    return (*TINY, *extra, *(("data.reward_scaling=none",) if algorithm == "iql" else ()))


def states(count: int) -> np.ndarray:
    """Observations of the probe's first step."""
    s = np.linspace(-0.9, 0.9, count, dtype=np.float32)
    return np.stack([s, np.zeros_like(s)], axis=1)


def fit(algorithm: str, data: qdq.Dataset, out: Path, steps: int, *more: str) -> qdq.Run:
    options: dict[str, Any] = {
        "steps": steps,
        "out": out,
        "overrides": (*overrides(algorithm), *more),
        "display": Silent(),
    }
    return qdq.train(data, algorithm, "fast", [0], **options)


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_fit_act_save_load(algorithm: str, tmp_path: Path) -> None:
    data = probe_dataset(0.3)
    run = fit(algorithm, data, tmp_path, 400)
    observations = states(7)
    actions = run.policy(observations)
    assert actions.shape == (7, 1)
    assert (np.abs(actions) <= 1.0).all()
    assert run.policy(observations[0]).shape == (1,)
    moved = qdq.load_run(run.save(tmp_path / "elsewhere"))
    np.testing.assert_array_equal(moved.policy(observations), actions)
    metrics = (run.path / "seed_0" / "metrics.csv").read_text().splitlines()
    assert len(metrics) == 1 + 400 // 100
    if algorithm in algorithms.USES_Q_DISTRIBUTION:
        assert moved.uncertainty(observations, actions).shape == (7,)
        assert moved.q_samples(observations, actions, 5).shape == (5, 7)


def test_a_held_policy_brings_what_holds_it(tmp_path: Path) -> None:
    """It acts the same after loading, and nowhere further from the recorded actions' mean than it may."""
    run = fit("qdq", probe_dataset(0.3), tmp_path, 400, "algorithm.largest_deviation=0.5", "algorithm.risk_stiffness=1")
    observations = states(19)
    actions = run.policy(observations)
    moved = qdq.load_run(run.save(tmp_path / "elsewhere"))
    np.testing.assert_array_equal(moved.policy(observations), actions)
    policy = moved.deployed_policy()
    mean, std = moved.behaviour.centre(policy.observation_normaliser.forward(jnp.asarray(observations)))
    scaled = policy.action_scaler.forward(jnp.asarray(actions))
    assert bool(jnp.all(jnp.abs(jnp.arctanh(scaled) - mean) <= 0.5 * std + 1e-4))


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_data_without_differences_in_reward(algorithm: str, tmp_path: Path) -> None:
    """Only what learns from differences between windows refuses data that has none."""
    data = probe_dataset(0.3)
    data = dataclasses.replace(data, rewards=np.zeros_like(data.rewards))
    if algorithm in algorithms.USES_Q_DISTRIBUTION:
        with pytest.raises(DataError, match="same truncated return"):
            fit(algorithm, data, tmp_path, 200)
    else:
        assert np.isfinite(fit(algorithm, data, tmp_path, 200).policy(states(3))).all()


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_every_parameter_moves(algorithm: str, tmp_path: Path) -> None:
    run = fit(
        algorithm,
        probe_dataset(0.3),
        tmp_path,
        400,
        *(("algorithm.extraction_share=0.75",) if algorithm == "qdq" else ()),
    )
    checkpoints = sorted((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    before, after = (storage.load_arrays(path)[0] for path in checkpoints[-2:])
    weights = [name for name in before if name.endswith(".weight") and "optimiser" not in name]
    weights = [
        name for name in weights if ".model." not in name
    ]  # of the recorded actions, in the policy that it holds
    assert weights
    still = [name for name in weights if np.array_equal(before[name], after[name])]
    assert not still


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_near_optimal_data_is_solved(algorithm: str, tmp_path: Path) -> None:
    run = fit(
        algorithm,
        probe_dataset(0.2),
        tmp_path,
        1_500,
        "algorithm.policy_learning_rate=0.001" if algorithm in ("qdq", "td3-bc") else "algorithm.learning_rate=0.001",
    )
    observations = states(19)
    np.testing.assert_allclose(run.policy(observations), 0.5 * observations[:, :1], atol=0.15)


@pytest.mark.parametrize("algorithm", ["qdq", "td3-bc", "iql"])
def test_learners_beat_imitation_on_broad_data(algorithm: str, tmp_path: Path) -> None:
    """Recorded actions are too high by 0.3 on average, but the best ones are among them."""
    data = probe_dataset(0.5, bias=0.3)
    observations = states(19)
    more = {
        "qdq": (
            "algorithm.advantage_temperature=5",
            "algorithm.policy_learning_rate=0.001",
            "algorithm.critic_learning_rate=0.001",
            "behaviour.steps=1000",
        ),
        "td3-bc": ("algorithm.policy_learning_rate=0.001", "algorithm.critic_learning_rate=0.001"),
        "iql": ("algorithm.advantage_temperature=10", "algorithm.learning_rate=0.001"),
    }[algorithm]
    learned = fit(algorithm, data, tmp_path, 2_000, *more).policy(observations)
    imitated = fit("bc", data, tmp_path, 2_000).policy(observations)

    def regret(actions: np.ndarray) -> float:
        return float(np.mean(np.square(actions - 0.5 * observations[:, :1])))

    assert regret(learned) < 0.6 * regret(imitated), (regret(learned), regret(imitated))


@pytest.mark.parametrize("algorithm", ["qdq", "td3-bc", "iql"])
def test_critics_learn_the_known_values(algorithm: str, tmp_path: Path) -> None:
    """At the last step Q is the reward; at the first it is the reward plus the discounted value of near-optimal behaviour."""
    more = ("algorithm.critic_learning_rate=0.001",) if algorithm != "iql" else ("algorithm.learning_rate=0.001",)
    run = fit(algorithm, probe_dataset(0.2), tmp_path, 1_500, *more)
    module = averaging(algorithms.get(algorithm), run.config.training.average_rate)
    windows = prepare(probe_dataset(0.2), run.config).windows
    problem = Problem(
        2, 1, 1_500, 0.0, windows.std, windows.mean, behaviour=run.behaviour if run.watches_actions else None
    )
    like = module.init(run.config.algorithm, problem, jax.random.key(0))
    newest = max((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    deployed = run.deployed_policy()
    key = jax.random.key_data(jax.random.key(0))
    saved = Saved(like, key, deployed.observation_normaliser, deployed.action_scaler)
    state = storage.load_pytree(newest, saved)[0].state.state
    data = probe_dataset(0.2, seed=1)
    s = run.deployed_policy().observation_normaliser.forward(jnp.asarray(data.current_observations))
    q = np.asarray(state.critics(s, jnp.asarray(data.actions))).mean(axis=0)
    truth = data.rewards + np.where(data.terminals, 0.0, run.config.algorithm.discount * 1.0)
    assert np.sqrt(np.mean(np.square(q - truth))) < 0.1
