"""What the tests of whole sweeps share: tiny data, tiny studies, and the command line as a subprocess."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = (
    "training.chunk=100", "training.checkpoint_every=100", "evaluation.every=200", "evaluation.episodes=1",
    "training.batch_size=32", "algorithm.policy_hidden=16,16", "q_distribution.hidden=32,32",
    "q_distribution.groups=8", "quantile.steps=200", "behaviour.steps=200", "behaviour.hidden=16,16",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A folder to run commands in, with caches and data of its own."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        own = {"QDQ_CACHE": str(self.folder / "cache"), "MINARI_DATASETS_PATH": str(self.folder / "minari")}
        return os.environ | own

    def start(self, *arguments: Any) -> "subprocess.Popen[str]":
        """Start `qdq` and do not wait."""
        command = [sys.executable, "-m", "qdq.cli.main", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **pipes)

    def run(self, *arguments: Any, expect: int = 0) -> tuple[str, str]:
        """Run `qdq` to its end; returns what it printed and its error sentence."""
        process = self.start(*arguments)
        return finish(process, expect)

    def study(self, name: str, text: str, overrides: tuple[str, ...] = TINY) -> str:
        """Write a study of tiny runs."""
        (self.folder / name).write_text(f"set = {json.dumps(overrides)}\n{text}")
        return name

    def read(self, path: str) -> Any:
        return json.loads((self.folder / path).read_text())


def finish(process: "subprocess.Popen[str]", expect: int = 0) -> tuple[str, str]:
    """Wait for a command and check how it ended; a traceback is always a failure."""
    shown, errors = process.communicate(timeout=900)
    assert process.returncode == expect, shown + errors
    assert "Traceback" not in shown + errors
    return shown, errors


def wait_for(condition: Callable[[], Any], process: "subprocess.Popen[str] | None" = None) -> None:
    """Wait until something is so, as long as the process that makes it so lives."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
