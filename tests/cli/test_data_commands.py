import json
from pathlib import Path

import numpy as np
import pytest

from qdq.cli import data
from qdq.data.episodes import Dataset, from_arrays
from qdq.data.load import load_dataset, write_dataset
from qdq.errors import UsageError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small NPZ file, with every store in the test's own folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("QDQ_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    states = np.cumsum(random.normal(size=(61, 3)), axis=0)
    ends = np.arange(60) % 20 == 19
    dataset: Dataset = from_arrays(
        states[:-1], random.uniform(-1, 1, (60, 2)), random.normal(size=60), ends, None, states[1:]
    )
    write_dataset(dataset, str(tmp_path / "a.npz"))
    return tmp_path / "a.npz"


def test_inspect_prints_text_json_and_a_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.inspect(str(file), q_width=5, html=file.with_suffix(".html"))
    printed = capsys.readouterr().out
    assert "60 transitions in 3 episodes" in printed
    assert "sha256" in printed
    assert file.with_suffix(".html").read_text().startswith("<!doctype html>")
    data.inspect(str(file), json=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary["episodes"] == 3
    assert {"lengths", "returns", "coverage", "q_dataset", "warnings"} <= set(summary)
    with pytest.raises(UsageError, match="at least 1"):
        data.inspect(str(file), q_width=0)


def test_convert_list_and_path(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.convert(str(file), "minari:test/mine-v0")
    data.convert("test/mine-v0", str(file.with_suffix(".hdf5")))
    assert load_dataset(file.with_suffix(".hdf5")).sha256 == load_dataset(file).sha256
    capsys.readouterr()
    data.list_datasets()
    printed = capsys.readouterr().out
    assert "test/mine-v0" in printed
    assert "pointmaze-umaze" in printed
    data.path("test/mine-v0")
    assert capsys.readouterr().out.strip() == str(file.parent / "minari" / "test" / "mine-v0")
