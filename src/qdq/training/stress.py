"""The crash test: a small run of every stage, killed again and again and resumed, must end as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdq import storage
from qdq.data.factory import plan_dataset, roll_out_plan
from qdq.data.npz import write_npz
from qdq.errors import DataError, UsageError

ROWS_OF_A_LIFE = 6  # at least so many are left for each kill to come, because a fast run logs some more before it dies
TIMES = ("seconds", "evaluation_seconds", "steps_per_second", "created")
SMALL = (
    "q_distribution.learner=distilled",
    "q_distribution.hidden=64,64",
    "q_distribution.groups=16",
    "q_dataset.stride=2",
    "diffusion.steps=4000",
    "consistency.steps=4000",
    "behaviour.steps=4000",
    "behaviour.hidden=64,64",
    "algorithm.extraction_share=0.4",
    "algorithm.policy_hidden=64,64",
    "algorithm.critic_hidden=64,64",
    "training.batch_size=64",
    "training.chunk=100",
    "training.checkpoint_every=200",
    "evaluation.every=400",
    "evaluation.episodes=2",
)


@dataclass
class Life:
    """One process of the disturbed run: how long it lived, and what it last said."""

    seconds: float
    said: str
    exit_code: int


@dataclass
class Outcome:
    """What the crash test found."""

    lives: list[Life] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(life.exit_code == -signal.SIGKILL for life in self.lives)


def stress(
    out: Path, kills: int, seed: int, steps: int, overrides: tuple[str, ...], say: Callable[[str], None]
) -> Outcome:
    """Run the pipeline once undisturbed and once with `kills` kills at random moments, in `out`, and compare."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} exists already; choose another --out.")
    dataset = out / "data.npz"
    out.mkdir(parents=True, exist_ok=True)
    write_npz(roll_out_plan(plan_dataset("hopper-random", 4_000, seed), workers=1), dataset)

    def command(name: str) -> list[str]:
        options = [word for override in (*SMALL, *overrides) for word in ("--set", override)]
        train = ["train", str(dataset), "--preset", "fast", "--steps", str(steps), "--seeds", "2"]
        where = ["--out", str(out), "--name", name, "--resume"]
        return [sys.executable, "-m", "qdq.cli.main", *train, *where, *options]

    birth = [0.0]

    def watched(seconds: float) -> bool:
        if not birth[0] and _rows(out, "undisturbed"):
            birth[0] = seconds
        return False

    whole = _live(command("undisturbed"), out / "undisturbed.log", watched)
    if whole.exit_code != 0:
        raise DataError(f"The undisturbed run failed; {out / 'undisturbed.log'} says why.")
    rows = _rows(out, "undisturbed")
    say(f"undisturbed: {whole.seconds:.0f} s, {rows} logged rows")

    chance, outcome = random.Random(seed), Outcome()
    log = out / "disturbed.log"
    while True:
        left = kills - outcome.kills
        fate = _fate(chance, out, left, rows, birth[0], whole.seconds) if left > 0 else (lambda seconds: False)
        life = _live(command("disturbed"), log, fate)
        outcome.lives.append(life)
        if life.exit_code == -signal.SIGKILL:
            say(f"kill {outcome.kills} of {kills} after {life.seconds:.1f} s, which last said: {life.said}")
        elif life.exit_code != 0:
            raise DataError(f"The run ended with exit code {life.exit_code} after {outcome.kills} kills; see {log}.")
        else:
            break
    outcome.differences = differences(out / "undisturbed", out / "disturbed")
    if outcome.kills < kills:
        outcome.differences.append(f"only {outcome.kills} of {kills} kills found the run alive; ask for more --steps")
    return outcome


def _fate(
    chance: random.Random, out: Path, left: int, rows: int, birth: float, length: float
) -> Callable[[float], bool]:
    """When a life ends, asked every few milliseconds with its age.

    One in four, and whoever would use up the rows of the others, ends while it is loading and compiling. The others end
    some rows further in the logs, and a part of a row: so many rows that the kills that are left spread over what is left to do.
    """
    present = _rows(out, "disturbed")
    if chance.random() < 0.25 or rows - present < ROWS_OF_A_LIFE * (left + 1):
        moment = chance.uniform(0.0, birth)
        return lambda seconds: seconds >= moment
    goal = present + chance.uniform(0.0, max(rows - present, 0) / (left + 1))
    delay, reached = chance.uniform(0.0, length / rows), [0.0]

    def over(seconds: float) -> bool:
        if not reached[0] and _rows(out, "disturbed") > goal:
            reached[0] = seconds
        return reached[0] > 0 and seconds >= reached[0] + delay

    return over


def _rows(out: Path, name: str) -> int:
    """How many rows all logs of a run and of its stages have."""
    files = [*(out / f"{name}.cache" / "stages").glob("*/*/metrics.csv"), *(out / name).glob("seed_*/metrics.csv")]
    return sum(path.read_bytes().count(b"\n") for path in files if path.exists())


def _live(command: list[str], log: Path, over: Callable[[float], bool]) -> Life:
    """Run the command, and kill it when `over` says so."""
    environment = os.environ | {"QDQ_CACHE": str(log.with_suffix(".cache")), "PYTHONUNBUFFERED": "1"}
    before = log.stat().st_size if log.exists() else 0
    began = time.monotonic()
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None and not over(time.monotonic() - began):
                time.sleep(0.02)
        finally:
            process.kill()  # nothing, if it has ended
            process.wait()
    said = _since(log, before).decode(errors="replace").strip().splitlines()
    return Life(time.monotonic() - began, said[-1] if said else "nothing yet", process.returncode)


def _since(log: Path, position: int) -> bytes:
    with open(log, "rb") as file:
        file.seek(position)
        return file.read()


def differences(one: Path, two: Path) -> list[str]:
    """Where two run folders differ in parameters, metrics, evaluations or results; times are not compared."""
    found = []
    files = {path.relative_to(run) for run in (one, two) for path in run.rglob("*") if path.is_file()}
    for name in sorted(files):
        if name.name.startswith(".") or "tensorboard" in name.parts or name.suffix in (".png", ".npz"):
            if name.name.endswith(storage.PARTIAL):
                found.append(f"{name} was left half-written")
            continue
        missing = [str(run.name) for run in (one, two) if not (run / name).exists()]
        if missing:
            found.append(f"{name} is missing in {missing[0]}")
        elif not _same(one / name, two / name):
            found.append(f"{name} differs{_where(one / name, two / name)}")
    return found


def _where(one: Path, two: Path) -> str:
    """The keys in which two JSON objects differ, such as the revision of a program that was changed in the meantime."""
    if one.suffix != ".json":
        return ""
    first, second = (_timeless(storage.read_json(path)) for path in (one, two))
    if not isinstance(first, dict) or not isinstance(second, dict):
        return ""
    return f" in {', '.join(key for key in sorted(first | second) if first.get(key) != second.get(key))}"


def _same(one: Path, two: Path) -> bool:
    if one.suffix == ".safetensors":
        import numpy as np

        (first, _), (second, _) = storage.load_checked(one), storage.load_checked(two)
        return first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)
    if one.suffix == ".json":
        return _timeless(storage.read_json(one)) == _timeless(storage.read_json(two))
    return one.read_bytes() == two.read_bytes()


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in TIMES}
    if isinstance(content, list):
        return [_timeless(item) for item in content]
    return content
