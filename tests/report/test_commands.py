"""`qdq report`, `qdq table` and `qdq figures` as typed, in this process to save time."""

from pathlib import Path

import pytest

from qdq.cli.main import main


def run(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["report"], 2, "at least one run folder"),
        (["report", "nowhere"], 3, "nowhere is not a folder"),
        (["report", "empty"], 3, "empty holds no run folder"),
        (["table", "3"], 2, "no table 3"),
        (["table", "1", "--runs", "nowhere"], 3, "nowhere is not a folder"),
        (["table", "1", "--markdown", "--csv"], 2, "Choose one"),
        (["figures", "q-strid"], 2, "did you mean 'q-stride'?"),
        (["figures", "uncertainty"], 2, "is made from run folders"),
        (["figures", "q-stride"], 2, "is made from one dataset"),
        (["figures", "uncertainty", "empty"], 3, "empty holds no run folder"),
    ],
)
def test_bad_requests_get_one_sentence(
    arguments: list[str],
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert text in said[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]  # nothing was written


def test_a_file_is_no_folder(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(SystemExit) as ended:
        run("report", runs / "bc", "--out", tmp_path / "taken")
    assert ended.value.code == 2
    assert "is a file" in capsys.readouterr().err


def test_from_runs_to_files(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("report", runs / "bc", runs / "nested", "--out", tmp_path / "page")
    assert "2 runs on 1 datasets" in capsys.readouterr().out
    assert (tmp_path / "page" / "index.html").exists()
    run("table", "1", "--runs", runs, "--markdown")
    assert "| hopper-medium | 52.9 |" in capsys.readouterr().out
    run("figures", "learning-curves", runs, "--out", tmp_path / "figures")
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".csv"}
    run("figures")
    assert "Figures 9 and 10" in capsys.readouterr().out
