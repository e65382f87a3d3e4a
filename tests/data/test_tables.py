import builtins
import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdq.data.columns import columns_of, columns_to_toml, read_columns
from qdq.data.episodes import Dataset
from qdq.data.load import load_dataset, write_dataset
from qdq.errors import DataError, UsageError

LOG = "time,x,v,u,r,failed,run\n" + "".join(
    f"{step},{run + step / 8},{step * 0.5},{0.25 * (-1) ** step},{step},{step == 4 and run == 1!s},log-{run}\n"
    for run in range(3)
    for step in range(5)
)
TOML = """
[columns]
observations = ["x", "v"]
actions = ["u"]
reward = "r"
terminal = "failed"
episode = "run"

[environment]
action_low = -2.0
action_high = [2.0]

[reference]
random = 0.0
expert = 20.0
"""


def test_a_log_with_its_own_column_names(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "columns.toml").write_text(TOML)
    dataset = load_dataset(tmp_path / "log.csv", columns=tmp_path / "columns.toml")
    assert dataset.lengths.tolist() == [4, 5, 4]  # the truncated runs lose the step whose outcome is unknown
    assert dataset.terminals.nonzero()[0].tolist() == [8]
    assert (dataset.action_low[0], dataset.action_high[0]) == (-2.0, 2.0)
    assert dataset.metadata.reference is not None
    assert dataset.metadata.reference.score(10.0) == 50.0
    (tmp_path / "columns.toml").rename(tmp_path / "log.toml")  # found beside the table
    assert load_dataset(tmp_path / "log.csv").sha256 == dataset.sha256


def test_parquet_takes_the_same_column_file(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "log.toml").write_text(TOML)
    rows = list(csv.DictReader(LOG.splitlines()))
    table: dict[str, Any] = {key: [float(row[key]) for row in rows] for key in ("x", "v", "u", "r")}
    table |= {"failed": [row["failed"] == "True" for row in rows], "run": [row["run"] for row in rows]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    assert load_dataset(tmp_path / "log.parquet").sha256 == load_dataset(tmp_path / "log.csv").sha256
    table["u"][3] = None
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="1 missing values"):
        load_dataset(tmp_path / "log.parquet")
    table["u"] = ["text"] * len(rows)
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "log.parquet")
    with pytest.raises(DataError, match="numbers are needed"):
        load_dataset(tmp_path / "log.parquet")


def test_csv_needs_no_pyarrow_and_parquet_says_how_to_get_it(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(dataset, str(tmp_path / "a.parquet"))
    real = builtins.__import__

    def without_pyarrow(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    write_dataset(dataset, str(tmp_path / "a.csv"))
    assert load_dataset(tmp_path / "a.csv").sha256 == dataset.sha256
    with pytest.raises(UsageError, match=r"qdq\[tables\]"):
        load_dataset(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"qdq\[tables\]"):
        write_dataset(dataset, str(tmp_path / "b.parquet"))


def test_columns_survive_toml(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(columns_to_toml(columns_of(dataset)))
    assert read_columns(tmp_path / "c.toml") == columns_of(dataset)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns observation_0"),
        ("a,b\n1,2\n", "columns observation_0"),
        ("observation_0,action_0,reward\n1,2,3\n", "where episodes end"),
        ("observation_0,action_0,reward,terminal\n", "no rows"),
        ("observation_0,action_0,reward,terminal\n1,0.5,3,0\n1,0.5,oops,1\n", "oops"),
        ("observation_0,action_0,reward,terminal\n1,0.5,3,0\n1,0.5\n", "not a readable CSV"),
        ("observation_0,action_0,reward,terminal\n1,0.5,3,0\n1,0.5,3,maybe\n", "'maybe' in row 1"),
        ("observation_0,action_0,reward,terminal\n1,0.5,nan,0\n1,0.5,3,1\n", "NaN"),
        ("observation_0,action_0,reward,reward,terminal\n1,0.5,1,1,0\n", "more than once"),
        ("observation_0,action_0,reward,episode\n1,0.5,1,0\n1,0.5,1,1\n1,0.5,1,0\n", "sort the rows"),
    ],
)
def test_bad_tables_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        load_dataset(tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ('reward = "r"', "", UsageError, "add reward"),
        ('reward = "r"', 'rewards = "r"', UsageError, "did you mean 'reward'"),
        ("[environment]", "[enviroment]", UsageError, "did you mean 'environment'"),
        ('reward = "r"', "reward = 5", UsageError, "one name in quotes"),
        ('["x", "v"]', "[1, 2]", UsageError, "list of column names"),
        ('["x", "v"]', '["x", "w"]', DataError, "no column 'w'"),
        ("action_low = -2.0", 'action_low = "low"', UsageError, "must be a number"),
        ("random = 0.0", "random = 20.0", UsageError, "two different returns"),
        ("random = 0.0", "", UsageError, "both random and expert"),
        ("[columns]", "[columns", DataError, "not a readable TOML"),
    ],
)
def test_bad_column_files_are_named(tmp_path: Path, old: str, new: str, error: type[Exception], words: str) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "c.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(error, match=words):
        load_dataset(tmp_path / "log.csv", columns=tmp_path / "c.toml")


def test_a_byte_order_mark_and_quotes_are_fine(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(dataset, str(tmp_path / "a.csv"))
    header, _, rest = (tmp_path / "a.csv").read_text().partition("\n")
    quoted = ",".join(f'"{name}"' for name in header.split(","))
    (tmp_path / "a.csv").write_text(f"\ufeff{quoted}\r\n" + rest.replace("\n", "\r\n"), newline="")
    np.testing.assert_array_equal(load_dataset(tmp_path / "a.csv").observations, dataset.observations)


def test_a_header_that_never_ends_is_still_one_sentence(dataset: Dataset, tmp_path: Path) -> None:
    """A lonely quote makes one column of the whole file; `make fuzz` found it."""
    path = tmp_path / "log.csv"
    write_dataset(dataset, str(path))
    path.write_text('"' + path.read_text() + '"')
    with pytest.raises(DataError, match=r"known: 'observation_0,.*\.\.\.\.$") as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
