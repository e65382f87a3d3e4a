"""Run folders as values: what belongs together, what is finished, and what cannot be read."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdq
from qdq import presets, storage
from qdq.errors import DataError, UsageError
from qdq.report import methods, plots, reproduce
from qdq.report.methods import Evidence, gather
from qdq.report.page import build
from qdq.report.runs import PANEL_ARRAYS, SURPRISE_ARRAYS, find_runs, mean_curve, read_metrics
from qdq.training.display import Silent
from tests.algorithms.test_contract import overrides
from tests.report.conftest import HOSTILE, MORE, pendulum


def test_runs_are_sorted_into_tasks_and_methods(evidence: Evidence) -> None:
    assert evidence.tasks == [HOSTILE, "hopper-medium"]
    names = {(row.task, row.method) for row in evidence.rows}
    assert names == {
        (HOSTILE, "BC (batch_size=64)"),
        ("hopper-medium", "QDQ"),
        ("hopper-medium", "QDQ (alpha=0.9)"),
        ("hopper-medium", "BC (batch_size=64)"),
        ("hopper-medium", "BC (batch_size=32)"),
    }


def test_seeds_of_several_folders_are_one_row(evidence: Evidence) -> None:
    row = evidence.row("hopper-medium", "QDQ")
    assert row is not None
    assert [seed.number for seed in row.seeds] == [0, 1, 2]
    assert [run.name for run in row.runs] == ["qdq", "qdq-more"]
    assert row.summary is not None
    finals = [seed["final_score"] for run in row.runs if run.result for seed in run.result["seeds"]]
    assert row.summary["mean"] == pytest.approx(np.mean(finals))
    assert row.summary["seeds"] == 3
    assert row.state == ""


def test_the_same_seed_twice_counts_once(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bc", tmp_path / "copy")
    evidence = gather(find_runs([runs / "bc", tmp_path, runs / "bc"]))
    assert len(evidence.runs) == 2
    assert [seed.number for seed in evidence.rows[0].seeds] == [0, 1]


def test_an_unfinished_run_says_so(evidence: Evidence) -> None:
    row = evidence.row("hopper-medium", "BC (batch_size=32)")
    assert row is not None
    assert row.state == "unfinished: 1 of 2 seeds finished, one at step 200"
    assert len(row.scores) == 1
    assert not row.first.finished
    assert [step for step, _ in row.unfinished[0].evaluations] == [100, 200]  # the torn line is left out
    assert row.first.behaviour_score is not None  # from its data card


def test_data_without_a_simulator_has_no_score(evidence: Evidence) -> None:
    row = evidence.row(HOSTILE, "BC (batch_size=64)")
    assert row is not None
    assert row.finished
    assert row.summary is None
    assert evidence.comparable == (
        ["QDQ", "QDQ (alpha=0.9)", "BC (batch_size=32)", "BC (batch_size=64)"],
        ["hopper-medium"],
    )


def test_what_training_saves_for_the_pictures(evidence: Evidence) -> None:
    row = evidence.row("hopper-medium", "QDQ")
    assert row is not None
    panels = row.first.panels
    assert panels is not None
    assert set(panels) == {*PANEL_ARRAYS, *SURPRISE_ARRAYS}
    run = qdq.load_run(row.first.path)
    assert panels["surprise_border"] == pytest.approx(run.surprise_border)
    data = pendulum()
    states, actions = data.current_observations, data.actions
    np.testing.assert_allclose(panels["recorded_surprise"], run.surprise(states, actions), rtol=1e-4, atol=1e-4)
    ours = run.surprise(states, run.policy(states))
    np.testing.assert_allclose(panels["policy_surprise"], ours, rtol=1e-3, atol=1e-3)
    assert len(panels["window_returns"]) == len(panels["window_samples"])
    assert ((panels["return_ranks"] > 0) & (panels["return_ranks"] < 1)).all()
    assert (panels["recorded_uncertainty"] > 0).all()
    card = row.first.data_card
    assert card is not None
    assert card["transitions"] == 2400
    assert card["q_dataset"]["width"] == 20


def test_mean_curve_keeps_common_steps_only(evidence: Evidence) -> None:
    row = evidence.row("hopper-medium", "BC (batch_size=32)")
    assert row is not None
    steps, scores = mean_curve(row.seeds)
    assert steps.tolist() == [100, 200]
    assert scores.shape == (2, 2)


def test_the_command_of_a_row_makes_the_same_configuration(evidence: Evidence) -> None:
    for row in evidence.rows:
        line = reproduce.commands(row)[-1]
        words = shlex.split(line)
        assert words[:3] == ["qdq", "train", row.first.dataset]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        changes = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        config, _ = presets.build(
            options["--algorithm"], options["--preset"], row.first.task, tuple(changes), int(options["--steps"])
        )
        assert config.to_dict() == row.first.config
        assert int(options["--seeds"]) == len(row.seeds)


def test_commands_name_the_place_the_data_came_from(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bc", tmp_path / "bc")
    manifest = storage.read_json(tmp_path / "bc" / "manifest.json")
    assert manifest["dataset_argument"] is None  # made from arrays in Python
    for argument, lines in (("hopper-medium", 2), ("logs/mine.csv --columns 'my columns.toml'", 1)):
        storage.write_json(tmp_path / "bc" / "manifest.json", manifest | {"dataset_argument": argument})
        row = gather(find_runs([tmp_path])).rows[0]
        made = reproduce.commands(row)
        assert len(made) == lines
        assert made[-1].startswith(f"qdq train {argument} --algorithm bc")
        assert "stands in" not in " ".join(reproduce.remarks(row))
    assert reproduce._ranges([3, 4, 5, 9, 0]) == [(0, 1), (3, 3), (9, 1)]


def test_labels_spell_out_what_short_ones_would_confuse() -> None:
    plain = methods.Method("qdq", "fast", ())
    one, two = (methods.Method("qdq", "fast", (f"{section}.steps=200",)) for section in ("quantile", "diffusion"))
    labels = methods._labels([plain, one, two])
    assert len(set(labels.values())) == 3
    assert methods._labels([plain, methods.Method("bc", "fast", ())])[plain] == "QDQ"
    assert methods._labels([plain, methods.Method("qdq", "paper", ())])[plain] == "QDQ (fast)"


def test_differences_between_configurations() -> None:
    configs = {
        "one": {"preset": "fast", "training": {"steps": 5, "chunk": 2}},
        "two": {"preset": "fast", "training": {"steps": 6, "chunk": 2}, "algorithm": {"alpha": 0.5}},
    }
    assert methods.differences(configs) == {
        "training.steps": {"one": "5", "two": "6"},
        "algorithm.alpha": {"one": "", "two": "0.5"},
    }


@pytest.mark.parametrize(
    "damage", ["manifest.json", "config.json", "result.json", "seed_0/outcome.json", "data_card.json"]
)
def test_a_damaged_folder_is_one_sentence(damage: str, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bc", tmp_path / "bc")
    (tmp_path / "bc" / damage).write_text("{")
    with pytest.raises(DataError, match="may be damaged"):
        _ = [run.data_card for run in find_runs([tmp_path / "bc"])]


def test_progress_that_is_no_object_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "nested" / "stopped", tmp_path / "stopped")
    (tmp_path / "stopped" / "seed_1" / "progress.json").write_text("null")
    with pytest.raises(DataError, match="is damaged; remove it"):
        find_runs([tmp_path / "stopped"])


def test_a_folder_of_another_shape_is_one_sentence(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "bc", tmp_path / "bc")
    config = json.loads((tmp_path / "bc" / "config.json").read_text())
    (tmp_path / "bc" / "config.json").write_text(json.dumps(config | {"training": "none"}))
    with pytest.raises(DataError, match="this version can read"):
        find_runs([tmp_path])
    (tmp_path / "bc" / "config.json").write_text(json.dumps(config))
    result = json.loads((tmp_path / "bc" / "result.json").read_text())
    (tmp_path / "bc" / "result.json").write_text(json.dumps(result | {"stages": None}))
    with pytest.raises(DataError, match="has no table of stages"):
        find_runs([tmp_path])
    with pytest.raises(DataError, match="no run folder"):
        find_runs([runs / "bc" / "seed_0"])
    with pytest.raises(DataError, match="not a folder"):
        find_runs([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    "arrays",
    [
        {"window_returns": np.zeros(3)},
        {name: np.ones(3) for name in (*PANEL_ARRAYS, "recorded_surprise")},
        {name: np.ones(3) for name in (*PANEL_ARRAYS, *SURPRISE_ARRAYS)},  # three borders
        {name: np.full(1, np.nan) for name in (*PANEL_ARRAYS, *SURPRISE_ARRAYS)},
        {name: np.full(1, -1e308) for name in (*PANEL_ARRAYS, *SURPRISE_ARRAYS)},
        {name: np.full(1, "text") for name in PANEL_ARRAYS},
    ],
)
def test_damaged_panels_are_one_sentence(arrays: dict[str, np.ndarray], runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "qdq-more", tmp_path / "run")
    np.savez(tmp_path / "run" / "q_distribution" / "panels.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="--resume"):
        _ = find_runs([tmp_path])[0].panels


def test_panels_of_runs_without_a_surprise_still_draw(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "qdq-more", tmp_path / "run")
    path = tmp_path / "run" / "q_distribution" / "panels.npz"
    with np.load(path) as saved:
        old = {name: saved[name] for name in PANEL_ARRAYS}
    np.savez(path, **old)  # type: ignore[arg-type]
    [run] = find_runs([tmp_path])
    assert [len(chart.panels) for chart in plots.run_charts(run) if chart.name == "uncertainty"] == [1]
    page, _ = build(gather([run]))
    assert not any(chart.name.startswith("surprise-") for chart in page.charts)
    page, _ = build(gather(find_runs([runs / "qdq-more"])))
    assert any(chart.name.startswith("surprise-") for chart in page.charts)


RECORD = (
    "config.json",
    "manifest.json",
    "result.json",
    "data_card.json",
    "quality.json",
    "fqe.json",
    "q_distribution/panels.npz",
    "seed_0/metrics.csv",
    "seed_0/outcome.json",
    "seed_0/evaluations.jsonl",
)
WEIGHTS = (
    "uncertainty.png",
    "q_distribution/model.safetensors",
    "q_distribution/metrics.csv",
    "behaviour/model.safetensors",
    "seed_0/policy.safetensors",
    "seed_0/checkpoints/000000400.safetensors",
    "seed_0/policies/step_000000100.safetensors",
)


def test_what_a_page_needs_is_kept_of_a_record_and_weights_are_not(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed, so nobody can say what it ignores")
    shutil.copy(Path(__file__).parents[2] / ".gitignore", tmp_path)
    for name in (*RECORD, *WEIGHTS):
        path = tmp_path / "studies" / "runs" / "one" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    listed = ["git", "ls-files", "--others", "--exclude-standard", "studies"]
    kept = subprocess.run(listed, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split()
    assert sorted(kept) == sorted(f"studies/runs/one/{name}" for name in RECORD)


def bare_record(run: Path, record: Path) -> None:
    """Copy of a run what is kept of a record."""
    for name in RECORD:
        if (run / name).exists():
            (record / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / name, record / name)


def test_a_record_without_weights_fills_the_page(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "qdq-more", tmp_path / "whole" / "run")
    (tmp_path / "whole" / "run" / "seed_2").rename(tmp_path / "whole" / "run" / "seed_0")
    manifest = storage.read_json(tmp_path / "whole" / "run" / "manifest.json")
    storage.write_json(tmp_path / "whole" / "run" / "manifest.json", manifest | {"seeds": [0]})
    bare_record(tmp_path / "whole" / "run", tmp_path / "bare" / "run")
    assert not list((tmp_path / "bare").rglob("*.safetensors"))
    pages = [build(gather(find_runs([tmp_path / place])))[1] for place in ("whole", "bare")]
    assert pages[0] == pages[1]


def test_nothing_is_promised_about_a_record_without_weights(runs: Path, tmp_path: Path) -> None:
    bare_record(runs / "bc", tmp_path / "bc")
    before = sorted(tmp_path.rglob("*"))
    manifest = storage.read_json(tmp_path / "bc" / "manifest.json")
    storage.write_json(tmp_path / "bc" / "manifest.json", manifest | {"seeds": [0]})
    changed = (*overrides("bc"), *MORE)
    options: dict[str, Any] = {"steps": 400, "out": tmp_path, "name": "bc", "overrides": changed, "display": Silent()}
    with pytest.raises(
        UsageError, match="record of a finished run without its weights, so there is nothing to go on with"
    ):
        qdq.train(pendulum(), "bc", "fast", [0], resume=True, **options)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(DataError, match="record of a finished run without its weights; copy the whole"):
        qdq.load_run(tmp_path / "bc")
    more = qdq.train(pendulum(), "bc", "fast", [1], resume=True, **options)  # another seed is trained beside the record
    assert more.seeds == [1]
    assert [entry["seed"] for entry in more.result["seeds"]] == [0, 1]


def test_half_written_metrics_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n100,0.5\n200,0.25\n300")
    metrics = read_metrics(tmp_path / "metrics.csv")
    assert metrics["step"].tolist() == [100, 200]
    assert read_metrics(tmp_path / "none.csv") == {}
