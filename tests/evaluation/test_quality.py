"""The quality of the uncertainty of a small real run: measured, printed, reported; and H beside the critic's true error."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm, rankdata

import qdq
from qdq import algorithms, presets, storage
from qdq.algorithms.problem import Problem
from qdq.data.episodes import from_arrays
from qdq.data.npz import write_npz
from qdq.data.prepare import prepare
from qdq.errors import DataError, UsageError
from qdq.evaluation import quality
from qdq.evaluation.measures import describe_correlation, spearman
from qdq.report.methods import gather
from qdq.report.page import build
from qdq.report.quality import checked, section
from qdq.report.runs import PANEL_ARRAYS, PANELS, find_runs
from qdq.training.averaging import averaging
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
    "behaviour.steps=600",
    "evaluation.keep_policies=true",
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
    run = qdq.load_run(folder / "one")
    return quality.quality(run, uneven_probe(name=HOSTILE), other, states=STATES, checkpoints=True)


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


def test_the_surprise_tells_what_nobody_did(measured: dict[str, Any]) -> None:
    """Recorded actions are uniform within 0.5 of s / 2, and nine states in ten are negative: the corner is far outside."""
    for name in ("in_sample", "held_out"):
        found = measured[name]["surprise"]
        assert set(found["auroc"]) == set(measured[name]["auroc"])
        assert set(found["flagged"]) == {"recorded", *found["auroc"]}
        assert found["border_from_unseen"] is True
        assert found["auroc"]["other_policy"] > 0.9
        assert found["auroc"]["other_policy"] > measured[name]["auroc"]["other_policy"]
        assert 0.6 < found["auroc"]["random"] < 0.9  # 0.75 by the true density: half of them lie inside
        assert found["flagged"]["other_policy"] > 0.7
        assert found["flagged"]["recorded"] < 0.15  # 0.05 and three standard deviations of 72 actions
        assert found["action_share"] > 0.5
    assert measured["held_out"]["collecting_policy"] is None  # nobody says who collected the probe


class Ruler(eqx.Module):
    """A model of recorded actions whose surprise is the distance of the action to half the first observation."""

    state_only: bool = eqx.field(static=True, default=False)

    def surprise(self, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return observations[..., 0] if self.state_only else jnp.abs(actions[..., 0] - 0.5 * observations[..., 0])


def view_of(model: Any, border: float = 0.3) -> quality.View:
    """A view of 64 states s, evenly spread, and recorded actions at s / 2 + 0.2, with a model whose answers are known."""
    s = np.linspace(-1.0, 1.0, 64, dtype=np.float32)
    states, actions = np.stack([s, 0.0 * s], axis=1), 0.5 * s[:, None] + np.float32(0.2)
    data = from_arrays(states, actions, s, np.arange(64) % 2 == 1, metadata=qdq.Metadata("ruler"))
    config, _ = presets.build("qdq", "fast", None, ("data.normalise_states=false",), 400)
    nothing: Any = None
    empty = np.zeros((0, 1))
    watch = quality.Watch(model, border, True)
    some, all_of_them = (states, actions, empty, empty, empty), (states, actions)
    return quality.View(nothing, watch, prepare(data, config), empty, *some, *all_of_them, 32)


def test_what_is_measured_of_a_known_surprise() -> None:
    view = view_of(Ruler())
    assert view.watch is not None
    s = view.observations[:, :1]
    kinds = {
        "nearer": 0.5 * s + 0.1,
        "mixed": 0.5 * s + np.where(np.arange(64)[:, None] < 16, 0.4, 0.0),
        "same": view.actions,
    }
    found = quality.measure_surprise(view, view.watch, {name: a.astype(np.float32) for name, a in kinds.items()}, 0)
    assert found["auroc"] == {"nearer": 0.0, "mixed": 0.25, "same": 0.5}
    assert found["flagged"] == {"recorded": 0.0, "nearer": 0.0, "mixed": 0.25, "same": 0.0}
    assert found["border"] == 0.3
    # False alarms are asked of every recorded action, also of those that were not drawn: here one more, far off.
    more = dataclasses.replace(
        view,
        all_observations=np.append(view.observations, s[:1] * [[1, 0]], axis=0),
        all_actions=np.append(view.actions, [[1.0]], axis=0),
    )
    assert quality.measure_surprise(more, view.watch, {}, 0)["flagged"] == {"recorded": 1 / 65}
    # With c = s / 2, |a - c| of a uniform action has the mean (1 + c^2) / 2 and the second moment 1/3 + c^2.
    within = 1 / 3 + 1 / 12 - (1 + 1 / 6 + 1 / 80) / 4
    between = (1 / 80 - 1 / 144) / 4
    assert found["action_share"] == pytest.approx(within / (within + between), abs=0.1)
    still = view_of(Ruler(state_only=True))
    assert still.watch is not None
    assert quality.measure_surprise(still, still.watch, {}, 0)["action_share"] == 0.0


class Bell:
    """A policy whose actions are standard normal around a centre."""

    def __init__(self, centre: float):
        self.centre = centre

    def log_density(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return norm.logpdf(actions[:, 0], self.centre)


def test_the_yardstick_is_the_mixture_of_all_that_collected() -> None:
    actions = np.linspace(-2.0, 2.0, 9)[:, None]
    mixture = quality.mixture_log_density([Bell(-1.0), Bell(1.0)], np.zeros((9, 2)), actions)
    by_hand = np.log(0.5 * norm.pdf(actions[:, 0], -1.0) + 0.5 * norm.pdf(actions[:, 0], 1.0))
    np.testing.assert_allclose(mixture, by_hand)
    view = view_of(Ruler())
    far = np.where(np.arange(64)[:, None] < 16, 5.0, view.actions)
    found = quality._yardstick(view, [Bell(0.0)], {"far": far, "same": view.actions})
    densities = -norm.logpdf(view.actions[:, 0]), -norm.logpdf(far[:, 0])
    brute = np.mean([(b > a) + 0.5 * (a == b) for a in densities[0] for b in densities[1]])
    assert found == {"policies": 1, "auroc": {"far": pytest.approx(brute), "same": 0.5}}
    assert quality._yardstick(view, [], {"same": view.actions}) is None


def test_kept_policies_beside_their_distance_to_the_data(folder: Path, measured: dict[str, Any]) -> None:
    found, run, data = measured["checkpoints"], qdq.load_run(folder / "one"), uneven_probe(name=HOSTILE)
    assert [row["step"] for row in found["policies"]] == [200, 400, 600]
    prepared = prepare(data, run.config)
    view = quality._view(run.distribution, None, prepared, prepared, data, np.arange(800), STATES, 0)
    states = np.asarray(prepared.observation_normaliser.forward(jnp.asarray(data.current_observations)))
    pairs = np.concatenate([states, np.asarray(data.actions)], axis=1)  # fewer than 4,096, so all of them
    spread = pairs.std(axis=0)
    for row, policy in zip(found["policies"], run.kept_policies(0).values(), strict=True):
        actions = np.asarray(policy(view.observations))
        assert row["surprise"] == pytest.approx(run.surprise(view.observations, actions).mean(), rel=1e-4)
        assert row["flagged"] == pytest.approx(run.risky(view.observations, actions).mean())
        assert row["uncertainty"] == pytest.approx(run.uncertainty(view.observations, actions).mean(), rel=1e-4)
        asked = np.asarray(prepared.observation_normaliser.forward(jnp.asarray(view.observations)))
        gaps = (np.concatenate([asked, actions], axis=1)[:, None] - pairs[None]) / spread
        assert row["distance"] == pytest.approx(np.sqrt((gaps**2).sum(axis=-1)).min(axis=1).mean(), rel=0.02)
    for name, value in found["spearman"].items():
        ranks = [rankdata([row[key] for row in found["policies"]]) for key in (name, "distance")]
        assert value == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_a_run_without_the_model_or_without_kept_policies(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "plain")
    shutil.rmtree(tmp_path / "plain" / "behaviour")
    run, data = qdq.load_run(tmp_path / "plain"), uneven_probe(name=HOSTILE)
    found = quality.quality(run, data, states=STATES, checkpoints=True)
    assert found["in_sample"]["surprise"] is None
    assert found["held_out"]["surprise"] is None
    assert [row["surprise"] for row in found["checkpoints"]["policies"]] == 3 * [None]
    assert found["checkpoints"]["spearman"]["surprise"] is None
    assert "of the mean H" in describe_correlation(found["checkpoints"])
    assert "surprise" not in describe_correlation(found["checkpoints"])
    shutil.rmtree(tmp_path / "plain" / "seed_0" / "policies")
    with pytest.raises(
        UsageError, match=r"kept no policies along the way; train it with --set evaluation.keep_policies"
    ):
        quality.quality(run, data, states=STATES, checkpoints=True)


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

    assert "AUROC of the surprise" in shown
    assert "recorded actions (false alarms)" in shown
    assert saved["checkpoints"] is None
    kept = command("quality", "one", folder / "data.npz", "--states", STATES, "--checkpoints", cwd=tmp_path).stdout
    assert "Rank correlation with the distance to the nearest recorded pair, over 3 kept policies: of the mean" in kept
    assert len(json.loads((tmp_path / "one" / "quality.json").read_text())["checkpoints"]["policies"]) == 3

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
    shown = command("suggest-beta", "one", cwd=tmp_path).stdout
    assert "algorithm.beta=0.8" in shown
    assert "beta changes nothing in it" in shown  # the run goes by the surprise
    assert "not a run folder" in sentence(command("suggest-beta", "nowhere", cwd=tmp_path, expect=3))


def test_the_report_shows_what_was_measured(folder: Path, measured: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    text, charts = section(gather(find_runs([tmp_path / "one"])))
    assert "Not measured" in text
    assert not charts
    found = copy.deepcopy(measured)
    found["in_sample"]["auroc"][HOSTILE] = 0.375
    found["held_out"]["collecting_policy"] = {"policies": 2, "auroc": {"random": 0.8125}}
    storage.write_json(tmp_path / "one" / "quality.json", found)
    made, page = build(gather(find_runs([tmp_path / "one"])))
    assert "<h2>Quality of the uncertainty</h2>" in page
    assert "Not measured" not in page
    assert "alert('x')</script>" not in page
    assert f'data-value="{found["held_out"]["calibration"]["crps_skill"]}"' in page
    assert any(chart.name.startswith("pit-") for chart in made.charts)
    assert "density of the collecting policy itself" in page
    shown = (
        found["held_out"]["surprise"]["flagged"]["recorded"],
        found["in_sample"]["surprise"]["auroc"]["random"],
        found["held_out"]["collecting_policy"]["auroc"]["random"],
        found["checkpoints"]["policies"][1]["distance"],
    )
    for number in shown:
        assert f'data-value="{number}"' in page
    assert "over 3 kept policies" in page


def test_the_report_reads_what_was_measured_before_there_was_a_surprise(
    folder: Path, measured: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(folder / "one", tmp_path / "one")
    found = copy.deepcopy(measured)
    for part in (found["in_sample"], found["held_out"]):
        del part["surprise"]
    del found["held_out"]["collecting_policy"], found["checkpoints"]
    storage.write_json(tmp_path / "one" / "quality.json", found)
    text, charts = section(gather(find_runs([tmp_path / "one"])))
    assert charts
    assert "flagged" not in text


DAMAGE: dict[str, Callable[[Any], Any]] = {
    "histogram": lambda found: found["held_out"]["calibration"].update(pit_histogram=[1.0]),
    "surprise": lambda found: found["held_out"].update(surprise={"auroc": {}}),
    "flags": lambda found: found["in_sample"]["surprise"]["flagged"].update(recorded=1.5),
    "text": lambda found: found["in_sample"]["surprise"]["flagged"].update(recorded=HOSTILE),
    "border": lambda found: found["in_sample"]["surprise"].update(border="high"),
    "collecting": lambda found: found["held_out"].update(collecting_policy=[1]),
    "checkpoints": lambda found: found["checkpoints"]["policies"][0].update(step=None),
    "rows": lambda found: found["checkpoints"].update(policies={"step": 3}),
    "correlation": lambda found: found["checkpoints"]["spearman"].update(surprise=2.0),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damaged_measurements_are_one_sentence(
    damage: str, folder: Path, measured: dict[str, Any], tmp_path: Path
) -> None:
    found = json.loads(json.dumps(measured))
    assert checked(copy.deepcopy(found), tmp_path)
    DAMAGE[damage](found)
    with pytest.raises(DataError, match="measure it again"):
        checked(found, tmp_path)


def true_error_correlation(run: qdq.Run, observations: np.ndarray, actions: np.ndarray) -> float:
    """Spearman correlation of H and |Q - Q*| over states and actions."""
    module = averaging(algorithms.get("qdq"), run.config.training.average_rate)
    windows = prepare(uneven_probe(), run.config).windows
    problem = Problem(2, 1, STEPS, 0.0, windows.std, windows.mean, behaviour=run.behaviour)
    like = module.init(run.config.algorithm, problem, jax.random.key(0))
    deployed = run.deployed_policy()
    key = jax.random.key_data(jax.random.key(0))
    saved = Saved(like, key, deployed.observation_normaliser, deployed.action_scaler)
    newest = max((run.path / "seed_0" / "checkpoints").glob("*.safetensors"))
    critics = storage.load_pytree(newest, saved)[0].state.state.critics
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
