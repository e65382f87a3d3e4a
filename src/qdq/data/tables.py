"""CSV and Parquet: one row per transition, one column per number, for people with logs.

Without a column file the columns are observation_0.., action_0.., reward, and where present terminal, truncated,
episode and next_observation_0... A column file is a small TOML that names them instead (`qdq.data.columns`); it is
given, or lies beside the table with the same name and the ending .toml. With an episode column an episode ends where
its value changes.
"""

import csv
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from qdq.data.blocks import rows_per_block
from qdq.data.columns import Columns, columns_of, columns_to_toml, conventional_columns, parse_columns, read_columns
from qdq.data.episodes import Dataset, Metadata, assemble
from qdq.data.guard import check_memory, check_unfolding, reading
from qdq.data.metadata import metadata_from_json, metadata_to_json
from qdq.data.references import Reference, d4rl_reference
from qdq.data.rows import ArrayStore, Assembler, Rows, Store
from qdq.errors import DataError, UsageError, suggest
from qdq.storage import atomic_path, write_text

FLAGS = {"1": 1, "1.0": 1, "true": 1, "yes": 1, "0": 0, "0.0": 0, "false": 0, "no": 0, "": 0}
FLOAT = "%.9g"  # nine digits identify a float32


Table = dict[str, np.ndarray]  # a block of rows: the values of every column by its name


def read_csv(path: Path, columns: Path | None = None, store: Store | None = None) -> Dataset:
    """The dataset in a CSV file with a header line, read in blocks; `store` is where its columns grow."""
    path = Path(path)
    with reading(path, "CSV"), open(path, encoding="utf-8-sig") as file:
        if store is None:
            check_memory(path, "the table", path.stat().st_size)
        header = tuple(name.strip() for name in next(csv.reader(file), []))
        mapping = _mapping(path, header, columns, None)
        return _build(path, "csv", mapping, _csv_blocks(path, file, header, mapping), None, store)


def read_parquet(path: Path, columns: Path | None = None, store: Store | None = None) -> Dataset:
    """The dataset in a Parquet file, read in blocks; `store` is where its columns grow."""
    path = Path(path)
    parquet = _parquet()
    with reading(path, "Parquet"), parquet.ParquetFile(path) as file:
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
        if store is None:
            check_memory(path, "the table", rows * len(mapping.names) * 4)
        check_unfolding(path, rows * len(mapping.names) * 4, path.stat().st_size)
        return _build(path, "parquet", mapping, _parquet_blocks(path, file, mapping), ours.get("qdq"), store)


def _csv_blocks(path: Path, file: TextIO, header: tuple[str, ...], mapping: Columns) -> Iterator[Table]:
    text = [name for name in (mapping.terminal, mapping.truncated, mapping.episode) if name]
    numeric = list(dict.fromkeys(name for name in mapping.names if name not in text))
    first = 0
    while lines := _lines(file, rows_per_block(8 * len(header))):
        table: Table = {}
        for names, kind in ((numeric, np.float64), (text, np.str_)):
            values = _load(lines, [header.index(name) for name in names], kind)
            table.update({name: values[:, i] for i, name in enumerate(names)})
        for name in (mapping.terminal, mapping.truncated):
            if name:
                table[name] = _flags(path, name, table[name], first)
        first += len(table[mapping.reward])
        yield table
    if not first:
        raise DataError(f"{path} has a header but no rows.")


def _lines(file: TextIO, count: int) -> list[str]:
    """The next lines of a file; what stands in quotes may go over several of them."""
    lines = list(itertools.islice(file, count))
    quotes = sum(line.count('"') for line in lines)
    while quotes % 2 and (more := file.readline()):
        lines.append(more)
        quotes += more.count('"')
    return lines


def _parquet_blocks(path: Path, file: Any, mapping: Columns) -> Iterator[Table]:
    names = list(dict.fromkeys(mapping.names))
    first = 0
    for batch in file.iter_batches(rows_per_block(8 * len(names)), columns=names, use_threads=False):
        table: Table = {}
        for name in names:
            column = batch.column(name)
            if column.null_count:
                raise DataError(
                    f"{path}: column {name!r} has {column.null_count} missing values in rows {first} to "
                    f"{first + len(column) - 1}; fill or remove them."
                )
            table[name] = column.to_numpy(zero_copy_only=False)
        first += batch.num_rows
        yield table


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


def _load(lines: list[str], indices: list[int], kind: Any) -> np.ndarray:
    """Some columns of the lines of a CSV file."""
    if not indices:
        return np.empty((0, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")
        return np.loadtxt(lines, kind, comments=None, delimiter=",", usecols=indices, ndmin=2, quotechar='"')


def _flags(path: Path, name: str, values: np.ndarray, first: int) -> np.ndarray:
    unique, inverse = np.unique(np.char.lower(np.char.strip(values)), return_inverse=True)
    for value in unique:
        if value not in FLAGS:
            row = first + int(np.argmax(inverse == np.flatnonzero(unique == value)[0]))
            raise DataError(
                f"{path}: column {name!r} holds {str(value)!r} in row {row}, but only true or false make sense."
            )
    return np.array([FLAGS[value] for value in unique], bool)[inverse]


def _build(
    path: Path, source: str, columns: Columns, blocks: Iterator[Table], ours: str | None, store: Store | None
) -> Dataset:
    """The dataset of a table that comes in blocks."""
    if ours is not None:
        metadata = metadata_from_json(ours, path, source)
    else:
        reference = d4rl_reference(columns.environment_id)
        if columns.reference and (reference is None or columns.reference != (reference.random, reference.expert)):
            reference = Reference(*columns.reference, origin="the column file")
        metadata = Metadata(path.stem, source, columns.environment_id, reference=reference)
        if not columns.terminal:
            metadata.details["terminals"] = "none recorded: the table has no terminal column"
    assembler = Assembler(metadata.name, store or ArrayStore())
    episodes = _Episodes(path)
    for table in blocks:
        begins = episodes.begins(table[columns.episode]) if columns.episode else None
        assembler.add(_rows(columns, table, begins))
    low, high = (None if bound is None else np.asarray(bound) for bound in (columns.action_low, columns.action_high))
    return assemble(assembler, low, high, metadata)


def _rows(columns: Columns, table: Table, begins: np.ndarray | None) -> Rows:
    return Rows(
        np.column_stack([table[name] for name in columns.observations]),
        np.column_stack([table[name] for name in columns.actions]),
        table[columns.reward],
        table[columns.terminal] if columns.terminal else np.zeros(len(table[columns.reward]), bool),
        table[columns.truncated] if columns.truncated else None,
        np.column_stack([table[name] for name in columns.next_observations]) if columns.next_observations else None,
        begins,
    )


class _Episodes:
    """Finds where the episode's number changes, and that no number comes back."""

    def __init__(self, path: Path):
        self.path = path
        self.previous: Any = None
        self.seen: set[str] = set()

    def begins(self, numbers: np.ndarray) -> np.ndarray:
        """Which of the next rows begin an episode."""
        begins = np.append(self.previous is None or numbers[0] != self.previous, numbers[1:] != numbers[:-1])
        self.previous = numbers[-1]
        names = numbers[begins].astype(str).tolist()
        if len(self.seen.union(names)) != len(self.seen) + len(names):
            raise DataError(
                f"{self.path}: the rows of an episode are not next to each other; sort the rows by episode and time."
            )
        self.seen.update(names)
        return begins
