"""CSV and Parquet: one row per transition, one column per number, for people with logs.

Without a column file the columns are observation_0.., action_0.., reward, and where present terminal, truncated,
episode and next_observation_0... A column file is a small TOML that names them instead (`qdq.data.columns`); it is
given, or lies beside the table with the same name and the ending .toml. With an episode column an episode ends where
its value changes.
"""

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.columns import Columns, columns_of, columns_to_toml, conventional_columns, parse_columns, read_columns
from qdq.data.episodes import Dataset, Metadata, from_arrays
from qdq.data.guard import check_memory, reading
from qdq.data.metadata import metadata_from_json, metadata_to_json
from qdq.data.references import Reference, d4rl_reference
from qdq.errors import DataError, UsageError, suggest
from qdq.storage import atomic_path, write_text

FLAGS = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0, "": 0}
FLOAT = "%.9g"  # nine digits identify a float32


def read_csv(path: Path, columns: Path | None = None) -> Dataset:
    """The dataset in a CSV file with a header line."""
    path = Path(path)
    with reading(path, "CSV"), open(path, encoding="utf-8-sig", newline="") as file:
        header = tuple(name.strip() for name in next(csv.reader(file), []))
    mapping = _mapping(path, header, columns, None)
    text = [name for name in (mapping.terminal, mapping.truncated, mapping.episode) if name]
    numeric = list(dict.fromkeys(name for name in mapping.names if name not in text))
    table: dict[str, np.ndarray] = {}
    with reading(path, "CSV"):
        for names, kind in ((numeric, np.float64), (text, np.str_)):
            values = _load(path, [header.index(name) for name in names], kind)
            table.update({name: values[:, i] for i, name in enumerate(names)})
    for name in (mapping.terminal, mapping.truncated):
        if name:
            table[name] = _flags(path, name, table[name])
    return _build(path, "csv", mapping, table, None)


def read_parquet(path: Path, columns: Path | None = None) -> Dataset:
    """The dataset in a Parquet file."""
    path = Path(path)
    parquet = _parquet()
    with reading(path, "Parquet"):
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            header, rows = tuple(schema.names), file.metadata.num_rows
        ours = {
            key.decode(errors="replace"): value.decode(errors="replace")
            for key, value in (schema.metadata or {}).items()
        }
        mapping = _mapping(path, header, columns, ours.get("qdq_columns"))
        for name in mapping.names:
            kind = schema.field(name).type
            if name != mapping.episode and not (_is_numeric(kind)):
                raise DataError(f"{path}: column {name!r} is of type {kind}, but numbers are needed.")
        check_memory(path, "the table", rows * len(mapping.names) * 8)
        loaded = parquet.read_table(path, columns=list(dict.fromkeys(mapping.names)), use_threads=False)
        table = {}
        for name in loaded.column_names:
            column = loaded.column(name)
            if column.null_count:
                raise DataError(f"{path}: column {name!r} has {column.null_count} missing values; fill or remove them.")
            table[name] = column.to_numpy()
    return _build(path, "parquet", mapping, table, ours.get("qdq"))


def write_csv(dataset: Dataset, path: Path) -> None:
    """Write `dataset` as CSV, and beside it the TOML with its bounds and environment."""
    path = Path(path)
    columns = columns_of(dataset)
    episode = np.repeat(np.arange(dataset.episodes), dataset.lengths)
    names = [*columns.observations, *columns.actions, "reward", "terminal", "truncated", "episode"]
    blocks = (
        dataset.current_observations,
        dataset.actions,
        dataset.rewards,
        dataset.terminals,
        dataset.truncations,
        episode,
    )
    table = np.column_stack([*(np.asarray(block, np.float64) for block in blocks), dataset.next_observations])
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        file.write(",".join([*names, *columns.next_observations]) + "\n")
        np.savetxt(file, table, fmt=FLOAT, delimiter=",")
    write_text(path.with_suffix(".toml"), columns_to_toml(columns))


def write_parquet(dataset: Dataset, path: Path) -> None:
    """Write `dataset` as Parquet, with its metadata in the schema."""
    parquet = _parquet()
    import pyarrow

    columns = columns_of(dataset)
    current, following = dataset.current_observations, dataset.next_observations
    table: dict[str, np.ndarray] = {name: current[:, i] for i, name in enumerate(columns.observations)}
    table |= {name: dataset.actions[:, i] for i, name in enumerate(columns.actions)}
    table |= {"reward": dataset.rewards, "terminal": dataset.terminals, "truncated": dataset.truncations}
    table["episode"] = np.repeat(np.arange(dataset.episodes), dataset.lengths)
    table |= {name: following[:, i] for i, name in enumerate(columns.next_observations)}
    metadata = {"qdq": metadata_to_json(dataset.metadata), "qdq_columns": columns_to_toml(columns)}
    with atomic_path(Path(path)) as temporary:
        parquet.write_table(pyarrow.table(table).replace_schema_metadata(metadata), temporary)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError('Parquet needs pyarrow; install it with: pip install "qdq[tables]"') from error
    return pyarrow.parquet


def _is_numeric(kind: Any) -> bool:
    from pyarrow import types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def _mapping(path: Path, header: tuple[str, ...], columns: Path | None, stored: str | None) -> Columns:
    """The meaning of the columns: from a given file, the file beside the table, the table itself, or the convention."""
    if columns is None and path.with_suffix(".toml").is_file():
        columns = path.with_suffix(".toml")
    if columns is not None:
        mapping = read_columns(columns)
    else:
        mapping = conventional_columns(header, path) if stored is None else parse_columns(stored, path)
    if repeated := sorted({name for name in mapping.names if header.count(name) > 1}):
        raise DataError(f"{path} has the column {repeated[0]!r} more than once; rename one of them.")
    if missing := [name for name in mapping.names if name not in header]:
        raise DataError(f"{path} has no column {missing[0]!r}; {suggest(missing[0], header or ('nothing',))}")
    if not (mapping.terminal or mapping.truncated or mapping.episode):
        raise DataError(
            f"{path} has no column terminal, truncated or episode, so nothing says where episodes end; add one of them."
        )
    return mapping


def _load(path: Path, indices: list[int], kind: Any) -> np.ndarray:
    """Columns of a CSV file below its header, at most one pass per type."""
    if not indices:
        return np.empty((0, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        values = np.loadtxt(
            path,
            kind,
            comments=None,
            delimiter=",",
            skiprows=1,
            usecols=indices,
            ndmin=2,
            encoding="utf-8-sig",
            quotechar='"',
        )
    if values.size == 0:
        raise DataError(f"{path} has a header but no rows.")
    return values


def _flags(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    unique, inverse = np.unique(np.char.lower(np.char.strip(values)), return_inverse=True)
    for value in unique:
        if value not in FLAGS:
            row = int(np.argmax(inverse == np.flatnonzero(unique == value)[0]))
            raise DataError(
                f"{path}: column {name!r} holds {str(value)!r} in row {row}, but only true or false make sense."
            )
    return np.array([FLAGS[value] for value in unique], bool)[inverse]


def _build(path: Path, source: str, columns: Columns, table: dict[str, np.ndarray], ours: str | None) -> Dataset:
    """The dataset of a table whose columns have been read."""
    count = len(table[columns.reward])
    terminals = table[columns.terminal] if columns.terminal else np.zeros(count, bool)
    truncations = table[columns.truncated] if columns.truncated else None
    if columns.episode:
        truncations = _with_episode_ends(path, table[columns.episode], terminals, truncations)
    if ours is not None:
        metadata = metadata_from_json(ours, path, source)
    else:
        reference = d4rl_reference(columns.environment_id)
        if columns.reference and (reference is None or columns.reference != (reference.random, reference.expert)):
            reference = Reference(*columns.reference, origin="the column file")
        metadata = Metadata(path.stem, source, columns.environment_id, reference=reference)
        if not columns.terminal:
            metadata.details["terminals"] = "none recorded: the table has no terminal column"
    return from_arrays(
        np.column_stack([table[name] for name in columns.observations]),
        np.column_stack([table[name] for name in columns.actions]),
        table[columns.reward],
        terminals,
        truncations,
        np.column_stack([table[name] for name in columns.next_observations]) if columns.next_observations else None,
        action_low=None if columns.action_low is None else np.asarray(columns.action_low),
        action_high=None if columns.action_high is None else np.asarray(columns.action_high),
        metadata=metadata,
    )


def _with_episode_ends(path: Path, episode: np.ndarray, terminals: np.ndarray, truncations: Any) -> np.ndarray:
    """Truncations with every change of the episode's number that is not already an end."""
    change = episode[1:] != episode[:-1]
    first = np.concatenate([[0], np.flatnonzero(change) + 1])
    if len(np.unique(episode[first].astype(str))) != len(first):
        raise DataError(
            f"{path}: the rows of an episode are not next to each other; sort the rows by episode and time."
        )
    if not np.isin(terminals, (0, 1)).all() or (truncations is not None and not np.isin(truncations, (0, 1)).all()):
        raise DataError(f"{path}: terminal and truncated must be flags (0 or 1).")
    ends = np.append(change, False)
    truncated = np.zeros(len(ends), bool) if truncations is None else np.asarray(truncations, bool)
    return truncated | (ends & ~np.asarray(terminals, bool))
