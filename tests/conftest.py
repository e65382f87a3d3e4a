"""Hostile settings for every test: caches and data in a temporary folder, no network, no proxy to the outside."""

import socket
from pathlib import Path
from typing import Any

import pytest


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
