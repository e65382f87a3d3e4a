import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qdq.data import download
from qdq.data.d4rl import write_d4rl
from qdq.data.download import FILES, cached_path, fetch, mirrors
from qdq.data.hdf5 import SIGNATURE
from qdq.data.load import load_dataset
from qdq.errors import DataError, UsageError

CONTENT = SIGNATURE + bytes(range(256)) * 400


class Handler(http.server.BaseHTTPRequestHandler):
    """A file server that can resume, break off, and lie."""

    content = CONTENT
    stop_after: int | None = None
    ranges = True
    requested: list[str | None] = []  # noqa: RUF012  # reset by the fixture

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.requested.append(asked)
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        start = int(asked[6:-1]) if asked and self.ranges else 0
        if start >= len(self.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(self.content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(self.content) - start))
        self.end_headers()
        self.wfile.write(self.content[start:][: self.stop_after])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    handler = type("Fresh", (Handler,), {"requested": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setattr(download, "mirrors", lambda name: (f"{base}/missing/{name}", f"{base}/files/{name}"))
        for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        yield handler
        running.shutdown()
        thread.join()


def partials(path: Path) -> list[Path]:
    return sorted(path.parent.glob(".*.partial"))


def test_the_second_mirror_serves_and_the_hash_is_recorded(server: type[Handler]) -> None:
    path = fetch("hopper-medium-v2")
    assert path.read_bytes() == CONTENT
    assert path.with_suffix(".json").exists()
    count = len(server.requested)
    assert fetch("hopper-medium-v2") == path
    assert len(server.requested) == count
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(DataError, match="sha256 differs"):
        fetch("hopper-medium-v2")


def test_a_broken_transfer_is_continued(server: type[Handler]) -> None:
    server.stop_after = 30_000
    with pytest.raises(DataError, match="30000 of 102408 bytes arrived"):
        fetch("hopper-medium-v2")
    assert not cached_path("hopper-medium-v2").exists()
    server.stop_after = None
    assert fetch("hopper-medium-v2").read_bytes() == CONTENT
    assert server.requested[-1] == "bytes=30000-"
    assert partials(cached_path("hopper-medium-v2")) == []


def test_a_server_without_ranges_starts_again(server: type[Handler]) -> None:
    server.stop_after = 30_000
    with pytest.raises(DataError):
        fetch("hopper-medium-v2")
    server.stop_after, server.ranges = None, False
    assert fetch("hopper-medium-v2").read_bytes() == CONTENT


def test_a_complete_partial_file_needs_no_transfer(server: type[Handler]) -> None:
    server.stop_after = 10
    with pytest.raises(DataError):
        fetch("hopper-medium-v2")
    partials(cached_path("hopper-medium-v2"))[0].write_bytes(CONTENT)
    assert fetch("hopper-medium-v2").read_bytes() == CONTENT


def test_a_partial_file_that_is_too_long_is_thrown_away(server: type[Handler]) -> None:
    server.stop_after = 10
    with pytest.raises(DataError):
        fetch("hopper-medium-v2")
    partials(cached_path("hopper-medium-v2"))[0].write_bytes(CONTENT + b"more")
    with pytest.raises(DataError, match="bytes arrived"):
        fetch("hopper-medium-v2")
    assert partials(cached_path("hopper-medium-v2")) == []


def test_a_login_page_is_not_taken_for_data(server: type[Handler]) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(DataError, match="not an HDF5 file"):
        fetch("hopper-medium-v2")
    assert partials(cached_path("hopper-medium-v2")) == []


def test_offline_names_the_place_for_the_file(monkeypatch: pytest.MonkeyPatch, dataset: Any) -> None:
    monkeypatch.setattr(download, "mirrors", lambda name: ("http://127.0.0.1:9/a", "http://127.0.0.1:9/b"))
    path = cached_path("hopper-medium-v2")
    with pytest.raises(DataError, match=f"save it as {path}"):
        load_dataset("d4rl:hopper-medium-v2")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_d4rl(dataset, path)  # obtained elsewhere
    assert load_dataset("d4rl:hopper-medium-v2").sha256 == dataset.sha256


def test_names_and_addresses() -> None:
    assert mirrors("hopper-medium-v2") == (
        "https://huggingface.co/datasets/imone/D4RL/resolve/main/hopper_medium-v2.hdf5",
        "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5",
    )
    assert FILES["walker2d-medium-replay-v0"] == "gym_mujoco/walker_mixed.hdf5"
    assert FILES["antmaze-large-play-v0"].endswith("hardest-maze_noisy_multistart_True_multigoal_False_sparse.hdf5")
    with pytest.raises(UsageError, match="did you mean 'hopper-medium-v2'"):
        fetch("hoper-medium-v2")
