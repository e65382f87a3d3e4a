"""Files: atomic writes, hashes, JSON, and pytrees as safetensors. Nothing here can execute what a file says."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdq.errors import DataError, UsageError

PARTIAL = ".partial"  # the end of the names of files that are being written
CHECKSUM = "sha256"
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and the like into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise _not_written(path, os.strerror(error.errno)) from error


def _not_written(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} could not be written ({reason}); what was saved before is intact, so make room or choose another "
        "folder, and go on from there."
    )


LONGEST_JSON = 2**28  # bytes; no file of ours comes near it
DEEPEST_JSON = 64  # brackets within brackets


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that is synced and renamed onto it when the block ends well."""
    path = Path(path)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` whose files are synced, and which is renamed to it, when the block ends well."""
    path = Path(path)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL))
        try:
            yield temporary
            for item in (*temporary.iterdir(), temporary):
                _sync(item)
            temporary.chmod(0o755)
            temporary.rename(path)
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half-written in `folder`; only for one who holds the folder's lock."""
    for item in folder.glob(f".*{PARTIAL}"):
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Append to a log and sync it, so that a checkpoint written afterwards never outlives what the log says before it."""
    with _writing(path), open(path, "a", newline="", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path`: another process that asks for it waits until this block ends, however it ends."""
    import fcntl

    with _lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def claim(path: Path, owner: str) -> Iterator[None]:
    """Hold the lock file `path`, or refuse at once where another process holds it; `owner` is what it stands for."""
    import fcntl

    with _lock_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{owner} is in use by another process; wait for it to end, or stop it.") from error
        yield


def _lock_file(path: Path) -> Any:
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w", encoding="utf-8")


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Write `content` atomically as UTF-8."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write `content` atomically as indented JSON; NaN and infinity become null."""
    write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, with one clear sentence when the file is missing or damaged."""
    try:
        if Path(path).stat().st_size > LONGEST_JSON:
            raise ValueError("it is implausibly long")
        return parse_json(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not readable JSON ({error}); it may be damaged, so restore or remove it."
        ) from error


def parse_json(text: str) -> Any:
    """JSON from a file that may be hostile: whatever is wrong with it, endless nesting included, is a `ValueError`."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    waiting = [(content, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST_JSON:
            raise ValueError("it is nested too deeply")
        if isinstance(value, str):
            value.encode()  # half a surrogate pair could be neither written nor printed; it raises a ValueError
        elif isinstance(value, dict):
            waiting += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            waiting += [(item, depth + 1) for item in value]
    return content


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def content_hash(content: Any) -> str:
    """The sha256 of `content` as canonical JSON, for configurations and manifests."""
    canonical = json.dumps(_finite(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def file_hash(path: Path) -> str:
    """The sha256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the path.") from error


def slug(text: str) -> str:
    """Text as the name of a file or folder."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text).strip("-.") or "run"


def cache_directory() -> Path:
    """Where reusable artefacts live: QDQ_CACHE, else the user's cache folder."""
    if "QDQ_CACHE" in os.environ:
        return Path(os.environ["QDQ_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "qdq"


def _checksum(arrays: dict[str, Any], metadata: dict[str, str]) -> str:
    """The sha256 over the names, types, shapes and bytes of arrays, and over their metadata."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.reshape(-1).view("uint8"))
    return digest.hexdigest()


def save_pytree(path: Path, tree: Any, metadata: dict[str, str] | None = None) -> None:
    """Save the arrays of `tree` under their paths, e.g. `.critics.members[0].weights[1]`, with a checksum over it all."""
    import jax
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {}
    for key, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if hasattr(leaf, "shape"):
            arrays[jax.tree_util.keystr(key)] = np.array(leaf, order="C")  # ascontiguousarray would reshape scalars
    metadata = metadata or {}
    with atomic_path(path) as temporary:
        try:
            save_file(arrays, str(temporary), metadata=metadata | {CHECKSUM: _checksum(arrays, metadata)})
        except SafetensorError as error:
            raise _not_written(path, str(error)) from error


def load_arrays(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays and the metadata of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            # Copied: safetensors hands out views of a memory map that may be unaligned or replaced later.
            return {key: file.get_tensor(key).copy() for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable safetensors file ({error}); it may be damaged.") from error


def load_checked(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The arrays and the metadata of a file written by `save_pytree`, checked against its checksum."""
    arrays, metadata = load_arrays(path)
    expected = metadata.pop(CHECKSUM, None)
    if expected != _checksum(arrays, metadata):
        raise DataError(f"{path} does not match its own checksum; it is damaged or was changed.")
    return arrays, metadata


def load_pytree(path: Path, like: Any) -> tuple[Any, dict[str, str]]:
    """Load arrays saved by `save_pytree` into the structure of `like`; any mismatch is an error."""
    import jax
    import jax.numpy as jnp

    arrays, metadata = load_checked(path)
    used = set()

    def restore(key: Any, leaf: Any) -> Any:
        if not hasattr(leaf, "shape"):
            return leaf
        name = jax.tree_util.keystr(key)
        used.add(name)
        if name not in arrays:
            raise DataError(f"{path} lacks the array {name}; it was written by another version or configuration.")
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise DataError(
                f"{path} holds {name} as {array.dtype}{list(array.shape)} where {leaf.dtype}{list(leaf.shape)} is "
                "needed; it belongs to another dataset or configuration."
            )
        return jnp.asarray(array)

    tree = jax.tree_util.tree_map_with_path(restore, like)
    if unknown := sorted(set(arrays) - used):
        raise DataError(f"{path} holds the unexpected array {unknown[0]}; it belongs to another configuration.")
    return tree, metadata
