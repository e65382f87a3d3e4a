"""The set-up of the browser test: why there is no Chromium is said in the words of what failed."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests import browser


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without a Chromium, where we are root and apt-get exists."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            subprocess.CalledProcessError(100, "apt-get", stderr="Err:1 mirror\nE: No mirror answers.\n\n"),
            "E: No mirror",
        ),
        (subprocess.TimeoutExpired("apt-get", 9, stderr=b"W: slow\n"), "W: slow"),
        (subprocess.CalledProcessError(7, "apt-get", stderr=""), "exit status 7"),
        (OSError("no such program"), "no such program"),
    ],
)
def test_a_failed_installation_is_the_reason(
    error: Exception, reason: str, bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(command: list[str], **options: Any) -> None:
        asked.append(command)
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(pytest.skip.Exception, match=reason):
        browser.find_chromium()
    assert asked == [["apt-get", "-qq", "update"]]


def test_what_is_installed_and_how_long_it_may_take(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: asked.append((command, options["timeout"])))
    with pytest.raises(pytest.skip.Exception, match="did not bring it"):
        browser.find_chromium()
    assert asked[1][0] == ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"]
    assert asked[1][1] >= 1800


def test_without_root_nothing_is_installed(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="needs root and apt-get"):
        browser.find_chromium()
