"""The command line as a person meets it: a subprocess, its exit code, and what it leaves behind."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.cli.main import main
from qdq.data.npz import write_npz
from tests.probes import probe_dataset

TINY = (
    "--set", "training.chunk=100", "--set", "training.checkpoint_every=100", "--set", "evaluation.every=100",
    "--set", "training.batch_size=32", "--set", "algorithm.policy_hidden=16,16", "--set", "algorithm.critic_hidden=16,16",
    "--set", "q_distribution.hidden=32,32", "--set", "q_distribution.groups=8", "--set", "quantile.steps=200", "--set", "behaviour.steps=200", "--set", "q_dataset.stride=1",
    "--set", "algorithm.extraction_share=0.5", "--set", "evaluation.episodes=2", "--set", "behaviour.hidden=32,32",
)  # fmt: skip


def qdq(*arguments: Any, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `qdq` and check the exit code; a traceback is always a failure."""
    command = [sys.executable, "-m", "qdq.cli.main", *map(str, arguments)]
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == expect, finished.stdout + finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


def sentence(finished: subprocess.CompletedProcess[str]) -> str:
    """The one line that an error prints."""
    lines = [line for line in finished.stderr.splitlines() if line.startswith("qdq: ")]
    assert len(lines) == 1, finished.stderr
    return lines[0]


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    path = tmp_path / "probe.npz"
    write_npz(probe_dataset(0.3), path)
    return path


def test_help_is_quick_and_does_not_import_jax(tmp_path: Path) -> None:
    code = "import sys, qdq.cli.main as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\nassert 'jax' not in sys.modules and 'numpy' not in sys.modules"
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=tmp_path, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert (
        min(seconds) < 0.75
    )  # of processor time, which other work on the machine lengthens less; half of it when idle


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["train", "no-such-set"], 2, "no-such-set"),
        (["train", "no/such/file.npz"], 3, "no/such/file.npz"),
        (["train", "probe.npz", "--algorithm", "sarsa"], 2, "Unknown algorithm 'sarsa'"),
        (["train", "probe.npz", "--preset", "fastt"], 2, "did you mean 'fast'"),
        (["train", "probe.npz", "--preset", "paper"], 2, "choose one explicitly"),
        (["train", "probe.npz", "--set", "algorithm.alhpa=1"], 2, "did you mean 'algorithm.alpha'"),
        (["train", "probe.npz", "--seeds", "0"], 2, "--seeds must be at least 1"),
        (["train", "probe.npz", "--first-seed", "-1"], 2, "A seed must be a whole number from 0"),
        (["train", "probe.npz", "--steps", "150"], 2, "multiple of training.chunk"),
        (["train", "probe.npz", "--memory", "lots"], 2, "'lots' is not understood"),
        (["train", "probe.npz", "--memory", "20KB"], 2, "too small"),
        (["presets", "show", "papper/hopper-medium"], 2, "did you mean 'paper/hopper-medium'"),
        (["evaluate", "nowhere"], 3, "not a run folder"),
        (["evaluate", "nowhere", "--seed", "-5"], 2, "A seed must be a whole number from 0"),
        (["demo", "--seed", "-1"], 2, "A seed must be a whole number from 0"),
        (["uncertainty", "nowhere", "--input", "x.npz"], 3, "not a run folder"),
    ],
)
def test_bad_requests_get_one_sentence(arguments: list[str], code: int, text: str, probe: Path, tmp_path: Path) -> None:
    said = sentence(qdq(*arguments, cwd=tmp_path, expect=code))
    assert text in said
    assert {path.name for path in tmp_path.iterdir()} <= {"probe.npz", "cache"}  # nothing half-written


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "probe.npz", "--first-seed", "4294967295", "--seeds", "2"],
        ["data", "make", "hopper-random", "--seed", "-1"],
        ["online", "Hopper-v4", "--seed", "-1"],
        ["quality", "nowhere", "probe.npz", "--seed", "-1"],
        ["suggest-beta", "nowhere", "--seed", "-1"],
        ["stress", "--seed", "-1"],
    ],
)
def test_every_command_refuses_what_is_no_seed(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "A seed must be a whole number from 0 to 4294967295" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def broken(change: str) -> dict[str, np.ndarray]:
    data = probe_dataset(0.3, episodes=20)
    arrays = {
        "observations": data.current_observations.copy(),
        "next_observations": data.next_observations.copy(),
        "actions": data.actions.copy(),
        "rewards": data.rewards.copy(),
        "terminals": data.terminals.copy(),
    }
    if change == "nan":
        arrays["observations"][3, 0] = np.nan
    elif change == "infinite":
        arrays["rewards"][5] = np.inf
    elif change == "bounds":
        arrays |= {"action_low": np.array([-0.1]), "action_high": np.array([0.1])}
    elif change == "empty":
        arrays = {name: array[:0] for name, array in arrays.items()}
    elif change == "one-step":
        arrays["terminals"][:] = True
    elif change == "constant":
        arrays["rewards"][:] = 0.0
    return arrays


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("nan", "NaN or infinity"),
        ("infinite", "NaN or infinity"),
        ("bounds", "outside the declared"),
        ("empty", "is empty"),
        ("one-step", "only one-step episodes"),
        ("constant", "same truncated return"),
    ],
)
def test_bad_data_gets_one_sentence(change: str, text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **broken(change))  # type: ignore[arg-type]
    said = sentence(qdq("train", "bad.npz", cwd=tmp_path, expect=3))
    assert text in said
    assert "bad" in said
    assert not (tmp_path / "runs").exists()


def test_short_episodes_get_short_windows(tmp_path: Path) -> None:
    """Episodes of 24 steps, which a time limit cuts: our preset takes windows that fit, and a chosen width is refused."""
    random, step = np.random.default_rng(0), np.arange(20 * 24)
    arrays = {"observations": random.normal(size=(len(step), 2)), "actions": random.uniform(-1, 1, (len(step), 1))}
    arrays |= {"rewards": random.normal(size=len(step)), "terminals": step < 0, "truncations": step % 24 == 23}
    np.savez(tmp_path / "short.npz", **arrays)  # type: ignore[arg-type]
    said = sentence(qdq("train", "short.npz", "--set", "q_dataset.width=200", *TINY, cwd=tmp_path, expect=3))
    assert "such as --set q_dataset.width=11." in said  # the last step of each is dropped: what followed is unknown
    said = qdq("train", "short.npz", "--steps", "200", *TINY, cwd=tmp_path).stdout
    assert "windows of 11 steps: half of the usual episode" in said
    assert json.loads((tmp_path / "runs/short-qdq-fast/config.json").read_text())["q_dataset"]["width"] == 11


def test_imitation_needs_no_rewards(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **broken("constant"))  # type: ignore[arg-type]
    shown = qdq("train", "plain.npz", "--algorithm", "bc", "--steps", "200", cwd=tmp_path).stdout
    assert "Trained without a score" in shown
    assert (tmp_path / "runs" / "plain-bc-fast" / "seed_0" / "policy.safetensors").exists()


def test_a_diverged_run_stops_with_code_4_and_keeps_its_checkpoint(probe: Path, tmp_path: Path) -> None:
    more = (
        "--set",
        "algorithm.critic_learning_rate=1000",
        "--set",
        "algorithm.extraction_share=0",
        "--name",
        "bad",
        "--steps",
        "400",
    )
    said = sentence(qdq("train", probe, *TINY, *more, cwd=tmp_path, expect=4))
    assert "diverged in stage qdq at step" in said
    assert (tmp_path / "runs" / "bad" / "config.json").exists()
    assert not (tmp_path / "runs" / "bad" / "result.json").exists()


def test_train_evaluate_uncertainty_resume(probe: Path, tmp_path: Path) -> None:
    """The life of a run without an environment, one command after the other."""
    arguments = ("train", probe, *TINY, "--steps", "200", "--name", "one")
    shown = qdq(*arguments, cwd=tmp_path).stdout
    assert "quantile: 200 steps" in shown
    folder = tmp_path / "runs" / "one"
    result = json.loads((folder / "result.json").read_text())
    assert result["score"] is None  # no environment, no score
    assert {"q_dataset", "quantile", "behaviour", "training"} == set(result["stages"])
    assert {path.name for path in folder.glob("*.png")} == {"q_distribution.png", "uncertainty.png"}
    assert list((folder / "seed_0" / "tensorboard").iterdir())

    assert "exists already" in sentence(qdq(*arguments, cwd=tmp_path, expect=2))
    assert "seed 0: finished before" in qdq(*arguments, "--resume", cwd=tmp_path).stdout
    other = sentence(qdq(*arguments, "--resume", "--set", "algorithm.alpha=0.5", cwd=tmp_path, expect=2))
    assert "algorithm.alpha was 0.99, is now 0.5" in other
    assert "names no environment" in sentence(qdq("evaluate", folder, cwd=tmp_path, expect=2))

    found = qdq("stage", "quantile", probe, *TINY, cwd=tmp_path).stdout
    assert "quantile: found, trained before" in found

    questions = tmp_path / "questions.npz"
    actions = np.array([0.0, 0.1, -0.1, 0.999, -0.999])[:, None]  # at s = 0 none was recorded beyond 0.3
    np.savez(questions, observations=np.zeros((5, 2)), actions=actions)
    asked = ("uncertainty", folder, "--input", questions)
    answer = json.loads(qdq(*asked, "--format", "json", cwd=tmp_path).stdout)
    assert answer["signal"] == "surprise"
    assert answer["risky"] == [False, False, False, True, True]
    assert [value > answer["border"] for value in answer["surprise"]] == answer["risky"]
    assert answer["border"] == json.loads((folder / "behaviour" / "manifest.json").read_text())["surprise_border"]
    qdq(*asked, "--output", "answers.npz", cwd=tmp_path)
    with np.load(tmp_path / "answers.npz") as saved:
        assert set(saved) == {"uncertainty", "surprise", "risky", "border"}
        for name in ("uncertainty", "surprise", "risky", "border"):
            np.testing.assert_allclose(saved[name], answer[name], rtol=1e-6)
    lines = qdq(*asked, cwd=tmp_path).stdout.splitlines()
    assert "the surprise that at most 5% of recorded actions exceed" in lines[0]
    assert lines[1] == "row  H  surprise  risky"
    assert [line.split()[-1] for line in lines[2:]] == ["no", "no", "no", "yes", "yes"]
    assert "leave out --quantile" in sentence(qdq(*asked, "--quantile", "0.9", cwd=tmp_path, expect=2))
    (folder / "behaviour").rename(tmp_path / "behaviour")  # as a run of another preset
    shown = qdq(*asked, "--quantile", "0.5", cwd=tmp_path).stdout
    assert "the 50% quantile of H over recorded actions; the run has no model of the recorded actions" in shown
    assert "row  H  risky" in shown
    plain = json.loads(qdq(*asked, "--format", "json", cwd=tmp_path).stdout)
    assert set(plain) == {"border", "signal", "uncertainty", "risky"}
    assert plain["signal"] == "H"
    assert plain["uncertainty"] == answer["uncertainty"]
    assert plain["risky"] == [value > plain["border"] for value in plain["uncertainty"]]
    (tmp_path / "behaviour").rename(folder / "behaviour")
    (folder / "q_distribution").rename(tmp_path / "q_distribution")  # as a run that asks nothing of one
    alone = json.loads(qdq(*asked, "--format", "json", cwd=tmp_path).stdout)
    assert set(alone) == {"border", "signal", "surprise", "risky"}
    np.savez(questions, observations=np.zeros((5, 3)), actions=np.zeros((5, 1)))
    assert "of size 2" in sentence(qdq("uncertainty", folder, "--input", questions, cwd=tmp_path, expect=3))
    np.savez(questions, observations=np.full((5, 2), "far"), actions=np.zeros((5, 1)))
    said = sentence(qdq("uncertainty", folder, "--input", questions, cwd=tmp_path, expect=3))
    assert "The observations are not an array of numbers" in said


def test_interrupt_saves_and_resume_goes_on(probe: Path, tmp_path: Path) -> None:
    arguments = [
        "train",
        str(probe),
        "--algorithm",
        "bc",
        "--name",
        "long",
        "--steps",
        "400000",
        "--set",
        "training.checkpoint_every=400000",
    ]
    command = [sys.executable, "-m", "qdq.cli.main", *arguments, "--set", "evaluation.every=400000"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "runs" / "long" / "seed_0" / "metrics.csv"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 3):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with --resume" in errors
    checkpoints = list((tmp_path / "runs" / "long" / "seed_0" / "checkpoints").iterdir())
    assert len(checkpoints) == 1


def test_presets_and_stage_commands(probe: Path, tmp_path: Path) -> None:
    listed = qdq("presets", cwd=tmp_path).stdout
    assert "fast" in listed
    assert "release/antmaze-large-diverse" in listed
    shown = qdq("presets", "show", "paper/hopper-medium", cwd=tmp_path).stdout
    assert "algorithm.alpha = 0.99" in shown
    assert "[paper, Table 4]" in shown
    counted = qdq(
        "stage", "q-dataset", probe, "--output", "windows.npz", "--set", "q_dataset.stride=1", cwd=tmp_path
    ).stdout
    assert "windows from 800 episodes" in counted
    streamed = ("stage", "q-dataset", probe, "--set", "q_dataset.stride=1", "--memory")
    assert qdq(*streamed, "1GiB", cwd=tmp_path).stdout in counted
    assert "too small" in qdq(*streamed, "20KB", cwd=tmp_path, expect=2).stderr
    short = (
        "--set",
        "q_distribution.hidden=32,32",
        "--set",
        "q_distribution.groups=8",
        "--set",
        "diffusion.steps=200",
        "--set",
        "consistency.steps=200",
        "--set",
        "consistency.intervals=40",
    )
    assert "consistency: " in qdq("stage", "consistency", probe, *short, cwd=tmp_path).stdout
    assert (
        "behaviour: " in qdq("stage", "behaviour", probe, *short, "--set", "behaviour.steps=200", cwd=tmp_path).stdout
    )
    assert "diffusion: found" in qdq("stage", "diffusion", probe, *short, cwd=tmp_path).stdout


def test_a_tiny_real_run_end_to_end(tmp_path: Path) -> None:
    """Factory data, every stage, evaluation in MuJoCo, pictures."""
    qdq("data", "make", "hopper-random", "--transitions", "3000", cwd=tmp_path)
    shown = qdq(
        "train", "hopper-random", *TINY, "--steps", "200", "--seeds", "2", "--name", "real", cwd=tmp_path
    ).stdout
    assert "behaviour (the data)" in shown
    folder = tmp_path / "runs" / "real"
    result = json.loads((folder / "result.json").read_text())
    assert result["dataset"]["environment_id"] == "Hopper-v4"
    assert len(result["seeds"]) == 2
    assert all(len(seed["evaluations"]) == 2 for seed in result["seeds"])
    assert np.isfinite(result["score"]["mean"])
    entries = [json.loads(line) for line in (folder / "seed_1" / "evaluations.jsonl").read_text().splitlines()]
    assert all(len(entry["returns"]) == 2 for entry in entries)
    assert {path.name for path in folder.glob("*.png")} == {
        "learning_curve.png",
        "q_distribution.png",
        "uncertainty.png",
    }
    played = [json.loads(qdq("evaluate", folder, "--episodes", "2", "--json", cwd=tmp_path).stdout) for _ in range(2)]
    assert played[0] == played[1]
