"""Hostile settings for every test: caches and data in a temporary folder, no network, no proxy to the outside."""

import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import settings

# The same examples every time, so that a red suite means a changed program and can be had again.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# Compiled programs and a few small runs are shared by all tests and workers of one session.
SESSION = os.environ.setdefault("QDQ_TEST_SESSION", str(os.getpid()))  # inherited by the workers
SHARED = Path(tempfile.gettempdir()) / f"qdq-tests-{SESSION}"
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(SHARED / "compiled")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"

# Most tests compile for longer than they train. So this process optimises less than it could, and the commands that it
# starts, which train for a few hundred steps, not at all. JAX has read its flags when it has seen its devices.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=1"
jax.devices()
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove what was shared; workers leave that to the session that started them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(SHARED, ignore_errors=True)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's is read or written, and only loopback can be reached."""
    monkeypatch.setenv("QDQ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests must not use the network: {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
