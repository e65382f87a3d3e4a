"""Choosing levels on a synthetic learning curve, and the packed file."""

from pathlib import Path

import numpy as np
import pytest

from qdq.cli.online import snapshots
from qdq.errors import DataError, UsageError
from qdq.online import snapshots as snapshots_module
from qdq.online.acting import TanhGaussianBehaviour, make_environment
from qdq.online.records import RunRecords
from qdq.online.run import RunConfig
from qdq.online.snapshots import (
    RECIPES,
    load_snapshot,
    load_snapshots,
    pack_snapshots,
    read_snapshot_set,
    save_snapshot,
    select_levels,
)
from qdq.storage import write_json


def curve(scores: list[float]) -> list[tuple[int, float]]:
    return [(10_000 * number, score) for number, score in enumerate(scores)]


def test_levels_of_a_rising_curve():
    evaluations = curve([3.0 * number for number in range(31)])
    truth = dict(evaluations)
    levels = select_levels(evaluations, lambda step: truth[step], replay_count=10)
    assert levels.expert == 300_000
    assert levels.medium == 100_000
    assert levels.replay == tuple(10_000 * number for number in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10))


def test_expert_is_the_best_by_measurement_not_by_the_noisy_log():
    evaluations = curve([3.0 * number for number in range(31)])
    truth = dict(evaluations) | {300_000: 40.0}  # the last snapshot only looked good
    levels = select_levels(evaluations, lambda step: truth[step], replay_count=10)
    assert levels.expert == 290_000


def test_medium_is_taken_before_the_expert_level_and_not_from_a_later_collapse():
    scores = [float(number) for number in range(0, 60, 4)] + [90.0, 91.0, 30.0, 30.0, 92.0]
    evaluations = curve(scores)
    truth = dict(evaluations)
    levels = select_levels(evaluations, lambda step: truth[step], replay_count=5)
    assert levels.expert == 10_000 * (len(scores) - 1)
    assert levels.medium == 80_000  # score 32, the nearest to 92 / 3 before 90 is reached
    assert len(set(levels.replay)) == 5
    assert (levels.replay[0], levels.replay[-1]) == (0, levels.medium)


def test_replay_snapshots_are_distinct_and_in_order_even_where_learning_is_quick():
    evaluations = curve([0.0, 50.0, 80.0] + [100.0] * 20)
    levels = select_levels(evaluations, lambda step: dict(evaluations)[step], replay_count=10)
    assert list(levels.replay) == sorted(set(levels.replay))
    assert len(levels.replay) == 10


def test_a_short_run_is_refused():
    with pytest.raises(DataError, match="train longer"):
        select_levels(curve([1.0] * 5), lambda step: 0.0, replay_count=12)


@pytest.fixture
def fake_run(tmp_path: Path) -> Path:
    """A run folder with random policies and a rising log."""
    folder = tmp_path / "runs" / RECIPES["hopper"].folder
    write_json(folder / "config.json", {"run": vars(RunConfig("Hopper-v4"))})
    random = np.random.default_rng(0)
    records = RunRecords(folder, None)
    for number in range(14):
        sizes = ((11, 4), (4, 6))
        layers = [(random.standard_normal(size), random.standard_normal(size[1])) for size in sizes]
        row = records.evaluation(10_000 * number, np.full(1, float(number)), [])
        save_snapshot(folder, layers, {**row})
    lines = (folder / "evaluations.jsonl").read_text().replace('"score": null', '"score": 1.0')
    (folder / "evaluations.jsonl").write_text(lines)
    return folder


def test_pack_round_trip(fake_run: Path, tmp_path: Path):
    packed = pack_snapshots(fake_run, tmp_path / "hopper.safetensors", 12, report=lambda line: None)
    again = read_snapshot_set(tmp_path / "hopper.safetensors")
    assert again.levels == packed.levels
    assert (again.environment_id, again.algorithm, again.seed) == ("Hopper-v4", "sac", 1)
    assert set(again.versions) == {"gymnasium", "mujoco"}
    assert len(again.levels.replay) >= 10
    expert = again.snapshots[again.levels.expert]
    original = TanhGaussianBehaviour(load_snapshot(fake_run, again.levels.expert))
    observation = make_environment("Hopper-v4").reset(seed=0)[0]
    np.testing.assert_array_equal(expert.policy("sac").act(observation, None), original.act(observation, None))
    assert np.isfinite([snapshot.score for snapshot in again.snapshots.values()]).all()


def test_command_selects_from_existing_runs(fake_run: Path, tmp_path: Path, monkeypatch, capsys):
    snapshots(("hopper",), tmp_path / "out", from_runs=fake_run.parent)
    assert "hopper expert: score" in capsys.readouterr().out
    monkeypatch.setenv("QDQ_SNAPSHOTS", str(tmp_path / "out"))
    assert load_snapshots("hopper").environment_id == "Hopper-v4"
    with pytest.raises(DataError, match="qdq snapshots"):
        load_snapshots("walker2d")


def test_unknown_family_and_foreign_file(tmp_path: Path):
    with pytest.raises(UsageError, match="hopper"):
        load_snapshots("hoper")
    save_snapshot(tmp_path, [(np.zeros((2, 2)), np.zeros(2))], {"environment_steps": 0})
    with pytest.raises(DataError, match="not a set of snapshots"):
        read_snapshot_set(tmp_path / "snapshots" / "00000000.safetensors")


def test_shipped_sets_are_small_and_complete():
    folder = Path(snapshots_module.__file__).parents[1] / "data" / "snapshots"
    paths = sorted(folder.glob("*.safetensors"))
    assert {path.stem for path in paths} == set(RECIPES)
    assert sum(path.stat().st_size for path in paths) < 5_000_000
    for path in paths:
        packed = read_snapshot_set(path)
        assert packed.environment_id == RECIPES[path.stem].environment_id
        assert path.stat().st_size < 1_000_000
        assert len(set(packed.levels.replay)) >= 10
        assert packed.levels.replay[-1] == packed.levels.medium
        expert, medium = (packed.snapshots[step].score for step in (packed.levels.expert, packed.levels.medium))
        assert 0.2 < medium / expert < 0.5
        # By the ten episodes of their choice; over whole datasets they score 92.9, 85.1 and 70.3 (docs/datasets.md).
        assert expert >= {"hopper": 80.0, "walker2d": 80.0, "halfcheetah": 60.0}[path.stem]
