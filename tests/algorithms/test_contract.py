"""One contract for all algorithms: fit, act, save, load, and solve a problem whose answer is known."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdq
from qdq import algorithms, storage
from qdq.training.display import Silent
from tests.probes import probe_dataset

TINY = (
    "training.chunk=100",
    "training.checkpoint_every=200",
    "evaluation.every=200",
    "training.batch_size=64",
    "algorithm.policy_hidden=32,32",
    "q_dataset.stride=1",
)
TINY_QDQ = (
    "q_distribution.hidden=32,32",
    "quantile.steps=200",
    "algorithm.critic_hidden=32,32",
    "algorithm.extraction_steps=200",
    "algorithm.average_rate=0.01",
)


def overrides(algorithm: str) -> tuple[str, ...]:
    extra = {"qdq": TINY_QDQ, "bc": ()}.get(algorithm, ("algorithm.critic_hidden=32,32",))
    return (*TINY, *extra, *(("data.reward_scaling=none",) if algorithm == "iql" else ()))


def fit(algorithm: str, data: qdq.Dataset, out: Path, steps: int, *more: str) -> qdq.Run:
    options: dict[str, Any] = {"steps": steps, "out": out, "overrides": (*overrides(algorithm), *more), "display": Silent()}
    return qdq.train(data, algorithm, "fast", [0], **options)


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_fit_act_save_load(algorithm: str, tmp_path: Path) -> None:
    data = probe_dataset(0.3)
    run = fit(algorithm, data, tmp_path, 400)
    observations = np.linspace(-1, 1, 7, dtype=np.float32)[:, None]
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


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_every_parameter_moves(algorithm: str, tmp_path: Path) -> None:
    run = fit(algorithm, probe_dataset(0.3), tmp_path, 400, *(("algorithm.extraction_steps=100",) if algorithm == "qdq" else ()))
    checkpoints = sorted((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    before, after = (storage.load_arrays(path)[0] for path in checkpoints[-2:])
    weights = [name for name in before if name.endswith(".weight") and "optimiser" not in name]
    assert weights
    still = [name for name in weights if np.array_equal(before[name], after[name])]
    assert not still


@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_near_optimal_data_is_solved(algorithm: str, tmp_path: Path) -> None:
    run = fit(algorithm, probe_dataset(0.2), tmp_path, 1_500, "algorithm.policy_learning_rate=0.001" if algorithm in ("qdq", "td3-bc") else "algorithm.learning_rate=0.001")
    observations = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    np.testing.assert_allclose(run.policy(observations), 0.5 * observations, atol=0.12)


@pytest.mark.parametrize("algorithm", ["qdq", "td3-bc", "iql"])
def test_learners_beat_imitation_on_broad_data(algorithm: str, tmp_path: Path) -> None:
    """Recorded actions scatter by +-0.8, cut at the bounds, so their mean is not the best action; better ones are in the data."""
    data = probe_dataset(0.9, episodes=800)
    observations = np.linspace(-0.9, 0.9, 19, dtype=np.float32)[:, None]
    more = {
        "qdq": ("algorithm.advantage_temperature=5", "algorithm.policy_learning_rate=0.001", "algorithm.critic_learning_rate=0.001"),
        "td3-bc": ("algorithm.policy_learning_rate=0.001", "algorithm.critic_learning_rate=0.001"),
        "iql": ("algorithm.advantage_temperature=10", "algorithm.learning_rate=0.001"),
    }[algorithm]
    learned = fit(algorithm, data, tmp_path, 2_000, *more).policy(observations)
    imitated = fit("bc", data, tmp_path, 2_000).policy(observations)

    def regret(actions: np.ndarray) -> float:
        return float(np.mean(np.square(actions - 0.5 * observations)))

    assert regret(learned) < 0.6 * regret(imitated)


@pytest.mark.parametrize("algorithm", ["qdq", "td3-bc", "iql"])
def test_critics_learn_the_known_values(algorithm: str, tmp_path: Path) -> None:
    """For near-optimal behaviour Q(s, a) is -(a - s/2)^2 plus a future that is nearly zero."""
    more = ("algorithm.critic_learning_rate=0.001",) if algorithm != "iql" else ("algorithm.learning_rate=0.001",)
    run = fit(algorithm, probe_dataset(0.2), tmp_path, 1_500, *more)
    module = algorithms.get(algorithm)
    problem = algorithms.problem.Problem(1, 1, 1_500, 0.0, 1.0)
    like = module.init(run.config.algorithm, problem, jax.random.key(0))
    newest = max((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    state, _ = storage.load_pytree(newest, like)
    data = probe_dataset(0.2, seed=1)
    policy = run.deployed_policy()
    s = policy.observation_normaliser.forward(jnp.asarray(data.observations[data.rows]))
    q = np.asarray(state.critics(s, jnp.asarray(data.actions))).mean(axis=0)
    truth = -np.square(data.actions[:, 0] - 0.5 * data.observations[data.rows, 0])
    assert np.sqrt(np.mean(np.square(q - truth))) < 0.08
