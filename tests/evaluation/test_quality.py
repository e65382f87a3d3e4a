"""The quality of the uncertainty of a small real run: measured, printed, reported; and H beside the critic's true error."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdq
from qdq import algorithms, presets, storage
from qdq.algorithms.problem import Problem
from qdq.data.npz import write_npz
from qdq.errors import DataError, UsageError
from qdq.evaluation import quality
from qdq.evaluation.measures import spearman
from qdq.report.methods import gather
from qdq.report.page import build
from qdq.report.quality import section
from qdq.report.runs import PANEL_ARRAYS, PANELS, find_runs
from qdq.training.display import Silent
from qdq.training.run import execute
from qdq.training.seeds import Saved
from tests.algorithms.test_contract import overrides
from tests.cli.test_commands import qdq as command
from tests.cli.test_commands import sentence
from tests.probes import optimal_values, probe_dataset, uneven_probe

HOSTILE = "<script>alert('x')</script>"
STEPS = 600
STATES = 256  # the same everywhere, so that every program is compiled once
CHANGES = (
    *overrides("qdq"),
    "quantile.steps=600",
    "behaviour.steps=400",
    "algorithm.critic_learning_rate=0.001",
    "algorithm.extraction_share=0",
)


def fit(path: Path) -> qdq.Run:
    """A run without its pictures."""
    config, _ = presets.build("qdq", "fast", None, CHANGES, STEPS)
    execute(uneven_probe(name=HOSTILE), config, [0], path, display=Silent())
    return qdq.load_run(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the run `one`, its dataset, and the cache of both."""
    path = tmp_path_factory.mktemp("quality")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDQ_CACHE", str(path / "cache"))
        fit(path / "one")
        write_npz(uneven_probe(name=HOSTILE), path / "data.npz")
        yield path


@pytest.fixture(autouse=True)
def shared_cache(folder: Path, isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of the module's run, so that nothing is learned twice."""
    monkeypatch.setenv("QDQ_CACHE", str(folder / "cache"))


class Corner:
    """A policy that always does the largest action."""

    def act(self, observation: Any, noise: np.random.Generator | None) -> np.ndarray:
        return np.ones((len(observation), 1), np.float32)


def measure(folder: Path) -> dict[str, Any]:
    other = quality.OtherPolicy(HOSTILE, Corner())
    return quality.quality(qdq.load_run(folder / "one"), uneven_probe(name=HOSTILE), other, states=STATES)


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    return measure(folder)


def test_everything_is_measured_twice_and_the_same_each_time(folder: Path, measured: dict[str, Any]) -> None:
    found = measured
    assert found == measure(folder)
    kinds = {"random", "noise_0.05", "noise_0.1", "noise_0.2", "noise_0.5", "noise_1", "other_policy", "policy"}
    for part in (found["in_sample"], found["held_out"]):
        assert set(part["auroc"]) == kinds
        assert all(0.0 <= value <= 1.0 for value in part["auroc"].values())
        assert 0.0 <= part["action_share"] <= 1.0
        assert sum(part["calibration"]["pit_histogram"]) == pytest.approx(1.0)
        # Three quarters of the variance of these returns come from step and action: no forecast of that is far off.
        assert part["calibration"]["crps_skill"] > 0.3
    assert abs(found["in_sample"]["auroc"]["noise_0.05"] - 0.5) < 0.1
    assert found["held_out"]["calibration"]["episodes"] == 80
    assert found["held_out"]["calibration"]["windows"] == 160  # two of each episode, with stride 1
    assert found["in_sample"]["calibration"]["windows"] == STATES


def test_h_of_the_same_numbers_as_the_interface(folder: Path) -> None:
    run, data = qdq.load_run(folder / "one"), uneven_probe(name=HOSTILE)
    recorded, random = quality.recorded_and_random(run, data, data.transitions, 0)
    np.testing.assert_allclose(recorded, run.uncertainty(data.current_observations, data.actions), rtol=1e-4)
    assert len(random) == data.transitions


@pytest.mark.parametrize("episodes", [2, 7, 10, 100, 803])
def test_held_out_episodes_are_a_tenth_and_never_learned_from(episodes: int) -> None:
    split = quality.hold_out(episodes, 3)
    assert split is not None
    kept, held = split
    assert sorted([*kept, *held]) == list(range(episodes))
    assert len(held) == max(1, round(0.1 * episodes))
    assert quality.hold_out(1, 3) is None


def test_other_policies_come_from_the_factory() -> None:
    hopper = probe_dataset(0.3, environment_id="Hopper-v4")
    with pytest.raises(UsageError, match="another environment"):  # two observations, not eleven
        quality.find_other_policy(hopper)
    with pytest.raises(UsageError, match="did you mean 'hopper-expert'"):
        quality.find_other_policy(hopper, "hopper-expart")
    assert quality.find_other_policy(probe_dataset(0.3)) is None
    wide = qdq.from_arrays(
        np.zeros((4, 11), np.float32),
        np.zeros((4, 3), np.float32),
        np.zeros(4),
        np.array([False, True, False, True]),
        metadata=qdq.Metadata("hopper-expert", environment_id="Hopper-v4"),
    )
    other = quality.find_other_policy(wide)
    assert other is not None
    assert other.name == "hopper-medium"  # not the policy behind the data itself
    assert other.policy.act(wide.current_observations, np.random.default_rng(0)).shape == (4, 3)


def test_the_commands(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    shown = command("quality", "one", folder / "data.npz", "--states", STATES, cwd=tmp_path).stdout
    assert "random actions" in shown
    assert "CRPS skill" in shown
    assert "another policy" in shown  # not measured here, and said so
    saved = json.loads((tmp_path / "one" / "quality.json").read_text())
    assert saved["states"] == STATES
    assert saved["other_policy"] is None

    assert "other_policy" not in saved["held_out"]["auroc"]
    write_npz(probe_dataset(0.3), tmp_path / "else.npz")
    assert "was not trained on dataset 'probe'" in sentence(
        command("quality", "one", "else.npz", cwd=tmp_path, expect=2)
    )


def test_beta_from_what_a_run_saved(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    assert "give its dataset as well" in sentence(command("suggest-beta", "one", cwd=tmp_path, expect=3))
    arrays = dict.fromkeys(PANEL_ARRAYS, np.linspace(0.0, 1.0, 1001, dtype=np.float32))
    arrays["random_uncertainty"] = arrays["recorded_uncertainty"] * np.float32(0.95 / 0.8)
    np.savez(tmp_path / "one" / PANELS, **arrays)  # type: ignore[arg-type]
    found = json.loads(command("suggest-beta", "one", "--json", cwd=tmp_path).stdout)
    assert found["beta"] == 0.8
    assert found["auroc"] == pytest.approx(1 - 0.5 * 0.8 / 0.95, abs=0.01)  # of two uniform distributions
    assert "algorithm.beta=0.8" in command("suggest-beta", "one", cwd=tmp_path).stdout
    assert "not a run folder" in sentence(command("suggest-beta", "nowhere", cwd=tmp_path, expect=3))


def test_the_report_shows_what_was_measured(folder: Path, measured: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    text, charts = section(gather(find_runs([tmp_path / "one"])))
    assert "Not measured" in text
    assert not charts
    found = copy.deepcopy(measured)
    found["in_sample"]["auroc"][HOSTILE] = 0.375
    storage.write_json(tmp_path / "one" / "quality.json", found)
    made, page = build(gather(find_runs([tmp_path / "one"])))
    assert "<h2>Quality of the uncertainty</h2>" in page
    assert "Not measured" not in page
    assert "alert('x')</script>" not in page
    assert f'data-value="{found["held_out"]["calibration"]["crps_skill"]}"' in page
    assert any(chart.name.startswith("pit-") for chart in made.charts)
    found["held_out"]["calibration"]["pit_histogram"] = [1.0]
    storage.write_json(tmp_path / "one" / "quality.json", found)
    with pytest.raises(DataError, match="measure it again"):
        section(gather(find_runs([tmp_path / "one"])))


def true_error_correlation(run: qdq.Run, observations: np.ndarray, actions: np.ndarray) -> float:
    """Spearman correlation of H and |Q - Q*| over states and actions."""
    module = algorithms.get("qdq")
    like = module.init(run.config.algorithm, Problem(2, 1, STEPS, 0.0, 1.0), jax.random.key(0))
    deployed = run.deployed_policy()
    key = jax.random.key_data(jax.random.key(0))
    saved = Saved(like, key, deployed.observation_normaliser, deployed.action_scaler)
    newest = max((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    critics = storage.load_pytree(newest, saved)[0].state.critics
    scaled = deployed.observation_normaliser.forward(jnp.asarray(observations))
    q = np.asarray(critics(scaled, jnp.asarray(actions))).mean(axis=0)
    error = np.abs(q - optimal_values(observations, actions, run.config.algorithm.discount))
    return spearman(run.uncertainty(observations, actions), error)


def test_h_beside_the_true_error_of_the_critic(folder: Path, tmp_path: Path) -> None:
    """No threshold: whether H knows the critic's error is what is asked. The numbers are in docs/uncertainty.md."""
    s, a, step = (axis.ravel() for axis in np.meshgrid(*2 * [np.linspace(-0.95, 0.95, 20)], [0.0, 1.0]))
    grid = np.stack([s, step], axis=1).astype(np.float32), a[:, None].astype(np.float32)
    data = uneven_probe()
    run = qdq.load_run(folder / "one")
    everywhere = true_error_correlation(run, *grid)
    recorded = true_error_correlation(run, data.current_observations, data.actions)
    print(f"Spearman correlation of H and |Q - Q*|: {everywhere:.3f} on a grid, {recorded:.3f} at recorded actions")
    assert -1.0 <= recorded <= 1.0
