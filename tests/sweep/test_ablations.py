"""Ablations: every variant is a run that can be planned, and the controls that need plumbing run."""

from pathlib import Path
from typing import Any

import pytest

import qdq
from qdq import presets
from qdq.data.npz import write_npz
from qdq.errors import UsageError
from qdq.sweep.ablations import ABLATIONS, DATASETS, variants
from qdq.sweep.plan import Source, make_plan
from qdq.sweep.study import EngineSettings, Study
from qdq.training.display import Silent
from tests.probes import probe_dataset
from tests.sweep.common import TINY, Place


@pytest.mark.parametrize("preset", ["fast", "paper", "release"])
@pytest.mark.parametrize("over", list(ABLATIONS))
def test_every_variant_differs_from_every_other(over: str, preset: str) -> None:
    chosen = tuple(variants(over, preset, None, ("training.batch_size=64",)))
    study = Study("ablation", Path("out"), ("data",), chosen, (0, 1), EngineSettings())
    task = "antmaze-umaze-diverse" if (over, preset) == ("uncertainty", "paper") else "hopper-medium"
    plan = make_plan(study, [Source("data", "data", task, "0" * 64)])  # refuses two runs that are the same
    training = [job for job in plan if job.folder is not None]
    assert len(training) == 2 * len(ABLATIONS[over])
    assert {job.method for job in training} == {f"qdq {name}" for name in ABLATIONS[over]}
    assert all("training.batch_size=64" in job.arguments for job in training)
    if over == "uncertainty":
        waiting = {job.method for job in training if job.needs}
        own = {
            "qdq surprise",
            "qdq surprise shuffled",
            "qdq no penalty",
            "qdq matched discount",
        }  # asked what may follow
        assert waiting == {"qdq H", "qdq H shuffled", "qdq teacher"} | (own if preset == "fast" else set())


@pytest.mark.parametrize(("preset", "penalty"), [("fast", "signed"), ("paper", "paper"), ("release", "paper")])
@pytest.mark.parametrize("over", ["alpha", "beta", "entropy", "quadrature"])
def test_what_is_varied_takes_part_in_training(over: str, preset: str, penalty: str) -> None:
    for variant in variants(over, preset, None, ()):
        config, _ = presets.build("qdq", variant.preset, "hopper-medium", variant.overrides, variant.steps)
        assert config.algorithm.penalty == penalty  # without one alpha, beta and H change nothing
        assert config.algorithm.uncertainty == "q_distribution"


@pytest.mark.parametrize("preset", ["fast", "demo", "paper", "release"])
def test_without_a_penalty_nothing_else_is_changed(preset: str) -> None:
    plain, _ = presets.build("qdq", preset, "hopper-medium")
    without = {}
    for variant in variants("uncertainty", preset, None, ()):
        if variant.name in ("no penalty", "matched discount"):
            config, _ = presets.build("qdq", preset, "hopper-medium", variant.overrides)
            changed = {
                key for key in vars(plain.algorithm) if getattr(plain.algorithm, key) != getattr(config.algorithm, key)
            }
            ours = preset in presets.OURS
            own = {"risk_weight"} if ours else {"penalty"}
            assert changed == own | ({"penalty"} if variant.name == "matched discount" else set())
            assert config.algorithm.risk_weight == (0.0 if ours else plain.algorithm.risk_weight)
            without[variant.name] = config.algorithm
    assert without["no penalty"].penalty == "none"
    assert without["matched discount"].penalty == "discount"


def test_an_unknown_ablation_is_named() -> None:
    with pytest.raises(UsageError, match="no ablation over 'alfa'; did you mean 'alpha'"):
        variants("alfa", "fast", None, ())
    assert len(DATASETS) == 4


@pytest.mark.parametrize("change", ["nearest", "teacher"])
def test_controls_that_need_more_than_a_batch_run(change: str, tmp_path: Path) -> None:
    overrides = (
        *TINY,
        "behaviour.steps=200",
        "algorithm.critic_hidden=16,16",
        "diffusion.steps=200",
        "q_dataset.stride=1",
        *ABLATIONS["uncertainty"][change],
    )
    options: dict[str, Any] = {"steps": 200, "out": tmp_path, "overrides": overrides, "display": Silent()}
    run = qdq.train(probe_dataset(0.3, episodes=100), "qdq", **options)
    last = (run.path / "seed_0" / "metrics.csv").read_text().splitlines()
    row = dict(zip(last[0].split(","), map(float, last[-1].split(",")), strict=True))
    assert row["policy_distance"] > 0.0
    assert 0.0 <= row["risk_share"] <= 1.0
    assert not run.watches_actions
    if change == "teacher":
        data = probe_dataset(0.3, episodes=3)
        assert (run.uncertainty(data.current_observations, data.actions) > 0.0).all()


def test_the_command_compares_variants(tmp_path: Path) -> None:
    place = Place(tmp_path)
    write_npz(probe_dataset(0.3, episodes=50), tmp_path / "probe.npz")
    tiny = [
        word
        for setting in (*TINY, "behaviour.steps=200", "algorithm.critic_hidden=16,16")
        for word in ("--set", setting)
    ]
    chosen = ["--only", "no penalty", "--only", "matched discount"]
    asked = ["probe.npz", "--over", "uncertainty", "--seeds", "1", "--steps", "200", *chosen, *tiny]
    shown, _ = place.run("ablate", *asked)
    assert "qdq no penalty" in shown
    assert "qdq matched discount" in shown
    assert (tmp_path / "studies" / "ablation-uncertainty" / "report" / "index.html").exists()
    _, errors = place.run("ablate", "probe.npz", "--over", "uncertainty", "--only", "no penalt", expect=2)
    assert errors == "qdq: The ablation over uncertainty has no variant 'no penalt'; did you mean 'no penalty'?\n"
