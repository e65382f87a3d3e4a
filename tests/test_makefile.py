"""`make install` on machines that lack something: one sentence, and nothing half-made. Interpreter, apt and id are stand-ins."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MISSING = "Python's venv module is missing; install the package python{}.{}-venv and run make again.".format(
    *sys.version_info
)
PARAGRAPH = "The virtual environment was not created successfully because ensurepip is not available."
# Debian's: the paragraph is printed on stdout and a folder is left behind.
NO_VENV = f'if [ "$1" = -m ]; then mkdir -p .venv/bin; echo "{PARAGRAPH}"; exit 1; fi; exec {sys.executable} "$@"'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def install(folder: Path, *settings: str, user: int) -> tuple[int, list[str]]:
    """The exit code of make and the sentences that are not its own."""
    shutil.copy(ROOT / "Makefile", folder)
    script(folder / "id", f"echo {user}")
    script(folder / "apt-get", f"echo apt-get $* >> {folder / 'asked'}; echo noise; echo more >&2; exit 100")
    path = f"{folder}:{os.environ['PATH']}"
    command = ["make", ".venv/bin/python", *settings]
    made = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    said = (made.stdout + made.stderr).splitlines()
    return made.returncode, [line for line in said if not line.startswith("make")]


@pytest.mark.parametrize("user", [1000, 0])
def test_without_venv_one_sentence_names_the_package(user: int, tmp_path: Path) -> None:
    python = script(tmp_path / "standin", NO_VENV)
    code, said = install(tmp_path, f"PYTHON={python}", user=user)
    assert code == 2
    assert said == [MISSING]
    assert not (tmp_path / ".venv").exists()
    assert (tmp_path / "asked").exists() == (user == 0)  # apt only when already root


@pytest.mark.parametrize("text", [None, "exit 1", "exec false"])
def test_an_interpreter_that_does_not_serve_is_named(text: str | None, tmp_path: Path) -> None:
    python = tmp_path / "standin"
    if text is not None:
        script(python, text)
    code, said = install(tmp_path, f"PYTHON={python}", user=0)
    assert code == 2
    assert said == [
        f"{python} is no Python 3.11, 3.12 or 3.13 that runs; name one that does: make PYTHON=/path/to/python"
    ]
    assert not (tmp_path / "asked").exists()


def test_an_empty_choice_asks_for_one(tmp_path: Path) -> None:
    code, said = install(tmp_path, "PYTHON=", user=0)
    assert code == 2
    assert said == ["qdq needs Python 3.11, 3.12 or 3.13; install one, or name it: make PYTHON=/path/to/python"]


def test_an_interpreter_that_serves_makes_the_environment(tmp_path: Path) -> None:
    python = script(
        tmp_path / "standin", f'if [ "$1" = -m ]; then mkdir -p .venv/bin; exit 0; fi; exec {sys.executable} "$@"'
    )
    assert install(tmp_path, f"PYTHON={python}", user=1000) == (0, [])
    assert (tmp_path / ".venv" / "bin").exists()
