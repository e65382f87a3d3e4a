"""D4RL's files by name, such as `d4rl:hopper-medium-v2`: fetched once, resumed when cut, checked ever after.

No hash of these files was ever published, so none is claimed here: the sha256 is recorded when a file is first used and
every later use is compared with it.
"""

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qdq.data.hdf5 import SIGNATURE
from qdq.data.tasks import MAZES, MUJOCO, MUJOCO_LEVELS
from qdq.errors import DataError, UsageError, suggest
from qdq.storage import cache_directory, read_json, write_json

HUGGING_FACE = "https://huggingface.co/datasets/imone/D4RL/resolve/main"
BERKELEY = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
TIMEOUT_SECONDS = 30
BLOCK = 1 << 20

_MAZE_STEMS = {
    "umaze": "u-maze_noisy_multistart_False_multigoal_False",
    "umaze-diverse": "u-maze_noisy_multistart_True_multigoal_True",
    "medium-play": "big-maze_noisy_multistart_True_multigoal_False",
    "medium-diverse": "big-maze_noisy_multistart_True_multigoal_True",
    "large-play": "hardest-maze_noisy_multistart_True_multigoal_False",
    "large-diverse": "hardest-maze_noisy_multistart_True_multigoal_True",
}


def _catalogue() -> dict[str, str]:
    """D4RL's names and, below its host, where each file is."""
    files = {}
    for family in MUJOCO:
        for level in MUJOCO_LEVELS:
            stem = f"{family}_{level.replace('-', '_')}"
            for version in ("v1", "v2"):
                files[f"{family}-{level}-{version}"] = f"gym_mujoco_{version}/{stem}-{version}.hdf5"
            if level != "full-replay":
                old = "walker_mixed" if (family, level) == ("walker2d", "medium-replay") else stem
                files[f"{family}-{level}-v0"] = f"gym_mujoco/{old.replace('medium_replay', 'mixed')}.hdf5"
    for maze in MAZES:
        files[f"antmaze-{maze}-v0"] = f"ant_maze_new/Ant_maze_{_MAZE_STEMS[maze]}_sparse.hdf5"
        files[f"antmaze-{maze}-v2"] = f"ant_maze_v2/Ant_maze_{_MAZE_STEMS[maze]}_sparse_fixed.hdf5"
    return files


FILES = _catalogue()


def mirrors(name: str) -> tuple[str, ...]:
    """The addresses of a D4RL file, in the order they are tried."""
    if name not in FILES:
        raise UsageError(f"D4RL has no dataset {name!r} that qdq can read; {suggest(name, tuple(FILES))}")
    file = FILES[name]
    return f"{HUGGING_FACE}/{file.rpartition('/')[2]}", f"{BERKELEY}/{file}"


def cached_path(name: str) -> Path:
    """Where the file of a D4RL name is kept, downloaded or not."""
    mirrors(name)
    return cache_directory() / "d4rl" / f"{name}.hdf5"


def fetch(name: str) -> Path:
    """The local file of a D4RL name, downloaded if need be and compared with what it was when first used."""
    path, addresses = cached_path(name), mirrors(name)
    if not path.exists():
        failures = []
        for address in addresses:
            try:
                download(address, path)
                break
            except DataError as error:
                failures.append(f"{urlsplit(address).hostname}: {error}")
        else:
            raise DataError(
                f"d4rl:{name} could not be downloaded ({'; '.join(failures)}); when offline, obtain the file elsewhere "
                f"and save it as {path}."
            )
    verify(path)
    return path


def verify(path: Path) -> None:
    """Record the sha256 of a file on first use, and refuse it when it has changed since."""
    record = path.with_suffix(".json")
    found = _sha256(path)
    if not record.exists():
        write_json(record, {"sha256": found, "size": path.stat().st_size})
        return
    expected = read_json(record)
    if not isinstance(expected, dict) or expected.get("sha256") != found:
        raise DataError(
            f"{path} is not the file that was first downloaded (its sha256 differs from {record.name}); delete both to "
            "download it again."
        )


def download(address: str, path: Path) -> None:
    """Fetch `address` to `path`; a partial file beside it is continued, and the size is checked at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # One partial file per mirror: halves of two mirrors' files must never be joined.
    mark = hashlib.sha256(address.encode()).hexdigest()[:8]
    partial = path.with_name(f".{path.name}.{mark}.partial")
    try:
        size = _transfer(address, partial)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{reason}") from error
    if size is not None and partial.stat().st_size != size:
        have = partial.stat().st_size
        if have > size:
            partial.unlink()
        raise DataError(f"{have} of {size} bytes arrived; run the command again to continue")
    with open(partial, "rb") as file:
        start = file.read(len(SIGNATURE))
    if start != SIGNATURE:
        partial.unlink()
        raise DataError("what arrived is not an HDF5 file")
    partial.replace(path)


def _transfer(address: str, partial: Path) -> int | None:
    """Append what is missing to `partial` and return the whole size, if the server says it."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "qdq"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and have:  # nothing is missing, or the file has changed: the size decides
                total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
                return int(total) if total.isdigit() else have
            raise DataError(f"the server answered {error.code} {error.reason}") from error
    with response:
        resumed = response.status == 206 and _range_start(response) == have
        length = response.headers.get("Content-Length")
        size = None if length is None else int(length) + (have if resumed else 0)
        with open(partial, "ab" if resumed else "wb") as file:
            _copy(response, file, partial.name, have if resumed else 0, size)
    return size


def _range_start(response: Any) -> int | None:
    """The first byte of a partial answer: `bytes 100-199/200` is 100."""
    unit, _, span = (response.headers.get("Content-Range") or "").partition(" ")
    start = span.partition("-")[0]
    return int(start) if unit == "bytes" and start.isdigit() else None


def _copy(response: Any, file: Any, label: str, have: int, size: int | None) -> None:
    """Copy the answer's body, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label.strip(".").rpartition(".hdf5")[0], total=size, completed=have)
        while block := response.read(BLOCK):
            file.write(block)
            progress.advance(task, len(block))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
