"""Any dataset by one name: a file, a Minari folder or id, a factory name, or `minari:` and `d4rl:` with download."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from qdq import storage
from qdq.data.episodes import Dataset
from qdq.data.guard import reading
from qdq.data.rows import Store
from qdq.errors import DataError, UsageError, suggest
from qdq.memory import parse_memory

SUFFIXES = (".hdf5", ".h5", ".npz", ".csv", ".parquet")


Source = tuple[Callable[[Store | None], Dataset], str, list[Path]]  # a reader, and the name and files it depends on


def load_dataset(name_or_path: str | Path, *, columns: Path | None = None, memory: str | int | None = None) -> Dataset:
    """The dataset of that name, wherever it is.

    A file is recognised by its content (D4RL HDF5, NPZ, Parquet, otherwise CSV by its ending), a folder as Minari's or
    as a mapped dataset. `minari:ID` and `d4rl:NAME` download what is missing; a plain name is an installed Minari id, or
    a dataset made by `qdq data make`. `columns` names the columns of a table. With a `memory` budget, such as "2GiB", the
    dataset is not read into memory but mapped, after it has been converted in blocks and kept in the cache folder.
    """
    if memory is not None:
        parse_memory(memory)
    read, label, files = _source(os.fspath(name_or_path), columns)
    if memory is None or not files:
        return read(None)
    from qdq.data.mapped import converted

    return converted({"name": label, "files": [storage.file_hash(file) for file in files]}, read)


def _source(name: str, columns: Path | None) -> Source:
    """What reads a dataset; no files if it is mapped already."""
    from qdq.data import mapped, minari_format

    path = Path(name).expanduser()
    if columns is not None and not (path.is_file() and _kind(path) in ("csv", "parquet")):
        raise UsageError(f"--columns describes the columns of a CSV or Parquet file, but {name} is not one.")
    if name.startswith("minari:"):
        return _minari(minari_format.download_minari(name.removeprefix("minari:")))
    if name.startswith("d4rl:"):
        from qdq.data import d4rl, download

        short = name.removeprefix("d4rl:")
        file = download.fetch(short)
        return lambda store: d4rl.read_d4rl(file, short, store), short, [file]
    if path.is_file():
        return _file(path, columns)
    if mapped.is_mapped_folder(path):
        return lambda store: mapped.read_mapped(path), name, []
    folder = find_folder(name)
    if folder is not None:
        return _minari(folder)
    if path.is_dir():
        raise DataError(
            f"{name} is a folder, but not that of a Minari dataset (it has no data/metadata.json), nor of a mapped one."
        )
    raise _not_found(name)


def _minari(folder: Path) -> Source:
    from qdq.data import minari_format

    files = [folder / "data" / "metadata.json", folder / "data" / minari_format.MAIN_FILE]
    return lambda store: minari_format.read_minari(folder, store), folder.name, files


def _file(path: Path, columns: Path | None = None) -> Source:
    """The reader of one file, by its content."""
    kind = _kind(path)
    if kind == "hdf5":
        from qdq.data import d4rl, minari_format

        if path.name == minari_format.MAIN_FILE and minari_format.is_minari_folder(path.parent.parent):
            return _minari(path.parent.parent)
        return lambda store: d4rl.read_d4rl(path, None, store), path.stem, [path]
    if kind == "npz":
        from qdq.data import npz

        return lambda store: npz.read_npz(path, store), path.stem, [path]
    if kind in ("csv", "parquet"):
        from qdq.data import tables

        read = tables.read_parquet if kind == "parquet" else tables.read_csv
        meaning = columns or path.with_suffix(".toml")
        files = [path, meaning] if meaning.is_file() else [path]
        return lambda store: read(path, columns, store), path.stem, files
    raise DataError(f"{path} is neither HDF5, NPZ, Parquet nor CSV; convert it to one of them.")


def find_folder(name: str) -> Path | None:
    """The Minari folder that a path, an installed id, or the name of a made dataset stands for."""
    from qdq.data.factory import CATALOGUE, dataset_id
    from qdq.data.minari_format import IDENTIFIER, is_minari_folder, minari_path

    path = Path(name).expanduser()
    candidates = [path, path.parent] if path.is_dir() else []
    if IDENTIFIER.fullmatch(name):
        candidates.append(minari_path(name))
    if name in CATALOGUE:
        candidates.append(minari_path(dataset_id(name)))
    return next((candidate for candidate in candidates if is_minari_folder(candidate)), None)


def locate(name: str) -> Path:
    """Where the dataset of that name is stored; nothing is read or downloaded."""
    from qdq.data.mapped import is_mapped_folder
    from qdq.data.minari_format import is_minari_folder, minari_path

    if name.startswith("d4rl:"):
        from qdq.data.download import cached_path

        stored = cached_path(name.removeprefix("d4rl:"))
        if not stored.exists():
            raise DataError(f"{name} has not been downloaded; it would be stored as {stored}.")
        return stored
    if name.startswith("minari:"):
        stored = minari_path(name.removeprefix("minari:"))
        if not is_minari_folder(stored):
            raise DataError(f"{name} is not installed; it would be stored in {stored}.")
        return stored
    path = Path(name).expanduser()
    found = path if path.is_file() or is_mapped_folder(path) else find_folder(name)
    if found is None:
        raise _not_found(name)
    return found.absolute()


def convert(source: str | Path, destination: str, *, columns: Path | None = None) -> tuple[Dataset, str]:
    """Write a dataset in another format; one that becomes a mapped folder is never in memory as a whole."""
    if not destination.endswith("/"):
        dataset = load_dataset(source, columns=columns)
        return dataset, write_dataset(dataset, destination)
    from qdq.data import mapped

    folder = Path(destination).expanduser()
    read, _, files = _source(os.fspath(source), columns)
    if files:
        mapped.fill_folder(folder, lambda store: read(store).metadata)
    else:
        mapped.write_mapped(read(None), folder)
    return mapped.read_mapped(folder), str(folder)


def write_dataset(dataset: Dataset, destination: str) -> str:
    """Write `dataset` in the format that the destination's ending says (`/` for a mapped folder), or to `minari:ID`."""
    if destination.startswith("minari:"):
        from qdq.data.minari_format import write_minari

        return str(write_minari(replace_name(dataset, destination), destination.removeprefix("minari:")))
    path = Path(destination).expanduser()
    if destination.endswith("/"):
        from qdq.data.mapped import write_mapped

        write_mapped(dataset, path)
        return str(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"The format of {destination} is unknown; end it in {', '.join(SUFFIXES)} or / (a mapped folder), or use minari:ID."
        )
    beside = [path.with_suffix(".toml")] if path.suffix.lower() == ".csv" else []  # its columns and bounds
    for occupied in (path, *beside):
        if occupied.exists():
            raise UsageError(f"{occupied} exists already; choose another name or remove it first.")
    from qdq.data import d4rl, npz, tables

    writers = {".npz": npz.write_npz, ".csv": tables.write_csv, ".parquet": tables.write_parquet}
    writers.get(path.suffix.lower(), d4rl.write_d4rl)(dataset, path)
    return str(path)


def replace_name(dataset: Dataset, destination: str) -> Dataset:
    """A dataset without a name of its own takes that of its Minari id."""
    if dataset.name != "arrays":
        return dataset
    return replace(dataset, metadata=replace(dataset.metadata, name=destination.removeprefix("minari:")))


def _kind(path: Path) -> str | None:
    """The format of a file, by its first bytes; text is CSV where its name says so."""
    with reading(path, "data"), open(path, "rb") as file:
        start = file.read(8)
    for signature, kind in ((b"\x89HDF\r\n\x1a\n", "hdf5"), (b"PK\x03\x04", "npz"), (b"PAR1", "parquet")):
        if start.startswith(signature):
            return kind
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return "csv"
    if suffix in SUFFIXES:
        raise DataError(
            f"{path} is not a {suffix} file by its content; it is damaged, incomplete or of another format."
        )
    return None


def _not_found(name: str) -> DataError | UsageError:
    from qdq.data.download import FILES
    from qdq.data.factory import CATALOGUE
    from qdq.data.minari_format import installed

    if name in CATALOGUE:
        return UsageError(f'Dataset {name!r} has not been made yet; run "qdq data make {name}" first.')
    if name in FILES:
        return UsageError(f"{name!r} is a dataset of D4RL; write d4rl:{name} to download it.")
    if Path(name).suffix.lower() in SUFFIXES or name.startswith((".", "/", "~")):
        return DataError(f"{name} does not exist; check the path.")
    near = suggest(name, (*CATALOGUE, *installed()))
    return UsageError(f"There is no file, folder or dataset called {name!r}; {near}")
