"""The AntMaze presets from data to score: PointMaze from the factory, and AntMaze as Minari stores it."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import ant_maze

from qdq.cli.main import main
from qdq.data.episodes import Dataset
from qdq.data.factory import dataset_id, plan_dataset, roll_out_plan
from qdq.data.load import load_dataset
from qdq.data.minari_format import write_minari

LOWEST = -(1 - 0.99**200) / 0.01  # a window of 200 rewards of -1
TINY = (
    "training.chunk=100", "training.checkpoint_every=200", "training.batch_size=64", "evaluation.every=200",
    "evaluation.episodes=3", "algorithm.policy_hidden=16", "algorithm.critic_hidden=16", "algorithm.value_samples=3",
    "q_distribution.hidden=32", "q_distribution.groups=8", "diffusion.steps=200", "consistency.steps=200",
    "consistency.intervals=40", "uncertainty.samples=8",
)  # fmt: skip


def train(dataset: str, preset: str, out: Path, *overrides: str) -> dict[str, Any]:
    """Run `qdq train` with tiny networks and few steps; the content of its run folder."""
    settings = [word for override in (*TINY, *overrides) for word in ("--set", override)]
    main(["train", dataset, "--preset", preset, "--steps", "400", "--out", str(out), "--name", "run", *settings])
    folder = out / "run"
    names = {"config": "config.json", "result": "result.json", "model": "q_distribution/manifest.json"}
    content: dict[str, Any] = {key: json.loads((folder / name).read_text()) for key, name in names.items()}
    with open(folder / "seed_0" / "metrics.csv", newline="") as file:
        content["metrics"] = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    lines = (folder / "seed_0" / "evaluations.jsonl").read_text().splitlines()
    content["evaluations"] = [json.loads(line) for line in lines]
    return content


def check_scores(content: dict[str, Any]) -> None:
    """Every episode scores 0 or 100, and the result is the mean of the evaluations."""
    assert content["result"]["score_unit"] == "score 0-100"
    assert [entry["step"] for entry in content["evaluations"]] == [200, 400]
    for entry in content["evaluations"]:
        assert set(entry["scores"]) <= {0.0, 100.0}
        assert entry["scores"] == [100.0 if value > 0 else 0.0 for value in entry["returns"]]
    means = [np.mean(entry["scores"]) for entry in content["evaluations"]]
    assert content["result"]["score"]["mean"] == pytest.approx(np.mean(means))


@pytest.fixture(scope="module")
def point_maze() -> Dataset:
    return roll_out_plan(plan_dataset("pointmaze-umaze", 4_000, seed=0), 1)


@pytest.mark.parametrize(
    ("preset", "override", "penalty", "objective"),
    [
        ("paper/antmaze-large-play", ("algorithm.penalty=signed",), "signed", "awr"),
        ("release/antmaze-umaze-diverse", (), "release_umaze_diverse", "eq9"),
    ],
)
def test_antmaze_presets_run_on_point_maze(
    preset: str, override: tuple[str, ...], penalty: str, objective: str, point_maze: Dataset, tmp_path: Path
) -> None:
    write_minari(point_maze, dataset_id("pointmaze-umaze"))
    content = train("pointmaze-umaze", preset, tmp_path, *override)
    config, result = content["config"], content["result"]
    assert config["data"]["reward_shift"] == -1.0
    assert (config["algorithm"]["penalty"], config["algorithm"]["objective"]) == (penalty, objective)
    assert set(result["stages"]) == {"q_dataset", "diffusion", "consistency", "training"}
    # Rewards are -1, and 0 at the goal: a wanderer's windows hold nothing else than -1.
    assert content["model"]["q_minimum"] == pytest.approx(LOWEST, abs=1e-4)
    assert LOWEST < content["model"]["q_maximum"] <= 0.0
    assert 0.0 < result["dataset"]["behaviour_score"] < 100.0
    last = content["metrics"][-1]
    assert -100.0 < last["q_mean"] < 0.0
    assert last["uncertainty"] > 0.0
    assert 0.0 < last["risk_share"] < 0.2  # beyond the 90 % quantile
    assert ("advantage_weight" in last) == (objective == "awr")
    check_scores(content)


def test_antmaze_as_minari_stores_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random walks of a few dozen steps in the real AntMaze: dictionaries in, success score out."""
    ant_maze.write_dataset("example/antmaze/umaze-v0", episodes=6, steps=60)
    dataset = load_dataset("example/antmaze/umaze-v0")
    assert dataset.lengths.tolist() == [60] * 6
    assert not dataset.terminals.any()
    assert dataset.metadata.details["observation_layout"] == [
        ["achieved_goal", 2],
        ["observation", 27],
        ["desired_goal", 2],
    ]
    # The goal is reached where, and only where, the ant's own position (columns 0 and 1) is near it (the last two).
    distance = np.linalg.norm(dataset.next_observations[:, :2] - dataset.next_observations[:, -2:], axis=1)
    np.testing.assert_array_equal(dataset.rewards, distance <= 0.45)
    assert dataset.metadata.environment_id == "AntMaze_UMaze-v4"
    assert dataset.metadata.environment_options["maze_map"] == ant_maze.EVALUATION_MAP
    assert dataset.metadata.task == "antmaze-umaze"
    assert dataset.behaviour_score == 50.0  # every second episode has a goal that it reached
    content = train("example/antmaze/umaze-v0", "paper", tmp_path, "q_dataset.width=20")
    assert content["config"]["preset"] == "paper/antmaze-umaze"
    assert -100.0 < content["metrics"][-1]["q_mean"] < 0.0
    check_scores(content)
    capsys.readouterr()
    main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--json"])
    (seed,) = json.loads(capsys.readouterr().out)["seeds"]
    assert seed["lengths"] == [60, 60]
    assert seed["score"] in (0.0, 50.0, 100.0)
