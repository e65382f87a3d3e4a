"""Policies kept along the way, and `qdq evaluate --ope fqe` as a person meets it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdq
from qdq.cli.main import main
from qdq.cli.offline import describe
from qdq.data.npz import write_npz
from qdq.training import seeds
from qdq.training.display import Silent
from qdq.training.hooks import CsvLog
from tests.cli.test_commands import qdq as command
from tests.cli.test_commands import sentence
from tests.probes import probe_dataset

SMALL = (
    "training.chunk=100",
    "training.checkpoint_every=200",
    "training.batch_size=32",
    "evaluation.every=100",
    "evaluation.keep_policies=true",
    "algorithm.policy_hidden=8,8",
)


def fit(out: Path, name: str, *more: str, resume: bool = False) -> qdq.Run:
    options: dict[str, Any] = {"overrides": (*SMALL, *more), "display": Silent(), "resume": resume}
    return qdq.train(probe_dataset(0.3, episodes=60), "bc", "fast", steps=400, out=out, name=name, **options)


def kept(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "seed_0" / "policies").iterdir()}


def test_kept_policies_are_the_same_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fit(tmp_path, "whole")
    files = kept(whole.path)
    assert sorted(files) == [f"step_{step:09d}.safetensors" for step in (100, 200, 300, 400)]  # without an environment
    observations = np.ones((3, 2), np.float32)
    last = np.asarray(whole.kept_policies(0)[400](observations))
    np.testing.assert_array_equal(last, whole.policy(observations))
    assert not np.array_equal(last, np.asarray(whole.kept_policies(0)[100](observations)))

    class Failing(CsvLog):
        def __call__(self, number: int, state: Any, metrics: dict[str, float]) -> None:
            if (
                number == 400
            ):  # the newest checkpoint is that of step 200, and the policy of step 300 lies there already
                raise RuntimeError("power failure")
            super().__call__(number, state, metrics)

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "CsvLog", Failing)
        with pytest.raises(RuntimeError, match="power failure"):
            fit(tmp_path, "stopped")
    assert len(kept(tmp_path / "stopped")) == 3
    assert kept(fit(tmp_path, "stopped", resume=True).path) == files


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path, "one")
    write_npz(probe_dataset(0.3, episodes=60), tmp_path / "data.npz")
    write_npz(probe_dataset(0.3, episodes=60, seed=1), tmp_path / "other.npz")
    ope = ("evaluate", str(run.path), "--ope", "fqe", "--dataset")

    wrong = sentence(command(*ope, "other.npz", cwd=tmp_path, expect=2))
    assert "other.npz is not the dataset that" in wrong
    lines = [{"step": step, "score": 0.0, "returns": [step, step + 2.0]} for step in (100, 200, 300, 400)]
    (run.path / "seed_0" / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{dam")
    answer = json.loads(command(*ope, "data.npz", "--steps", "200", "--checkpoints", "--json", cwd=tmp_path).stdout)
    for policy in answer["policies"]:
        assert policy["interval_95"][0] < policy["value"] < policy["interval_95"][1]
    assert answer["held_out_episodes"] == 12
    saved = json.loads((run.path / "fqe.json").read_text())
    assert saved == {name: value for name, value in answer.items() if name != "run"}
    assert [row["step"] for row in saved["policies"]] == [100, 200, 300, 400]
    assert [row["mean_return"] for row in saved["policies"]] == [101.0, 201.0, 301.0, 401.0]
    assert saved["ranking"]["policies"] == 4
    assert saved["settings"]["discount"] == 0.99

    describe(answer, 0.99, run.path)
    shown = capsys.readouterr().out
    assert "discounted values (0.99 per step)" in shown
    assert "seed 0, step 400: " in shown
    assert "rank correlation with true returns over 4 policies" in shown


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ope", "fqe"], "add --dataset"),
        (["--checkpoints"], "belong to --ope fqe"),
        (["--ope", "fqe", "--dataset", "data.npz", "--checkpoints"], "keep_policies=true"),
        (["--ope", "fqe", "--dataset", "data.npz", "--steps", "250"], "multiple of 200"),
    ],
)
def test_what_is_missing_is_said(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_npz(probe_dataset(0.3, episodes=60), tmp_path / "data.npz")
    fit(tmp_path, "plain", "evaluation.keep_policies=false")
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "plain", *arguments])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err
