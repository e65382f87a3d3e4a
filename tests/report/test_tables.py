"""The paper's tables: what is printed there, ours where it was run, and never a guess."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from qdq.presets import TASKS
from qdq.report import published, tables
from qdq.report.methods import Evidence


def test_published_numbers_spot_checked() -> None:
    assert str(published.score("hopper-medium", "QDQ")) == "99 ± 0.3"
    assert published.score("halfcheetah-medium-replay", "IQL") == published.Published(44.2, None, "D4RL v2", 5)
    assert published.score("antmaze-large-diverse", "CQL") == published.Published(14.9, None, "AntMaze v0", 5)
    assert published.score("hopper-random", "QDQ") is None
    assert published.score(None, "QDQ") is None


def test_every_task_of_the_paper_has_a_full_row() -> None:
    found = [task for table in published.content()["scores"].values() for task in table["rows"]]
    assert sorted(found) == sorted(TASKS)
    for table in published.content()["scores"].values():
        assert set(table["std"]) == set(table["rows"])
        for values in (*table["rows"].values(), table["total"]):
            assert len(values) == len(table["methods"])


def test_totals_that_do_not_add_up_are_named() -> None:
    """A check of our typing as well: all other printed totals are the sums of their rows."""
    wrong = {}
    for number in ("1", "2"):
        table = published.content()["scores"][number]
        sums = np.sum(list(table["rows"].values()), axis=0)
        wrong[number] = [m for m, a, b in zip(table["methods"], sums, table["total"], strict=True) if abs(a - b) > 0.15]
        notes = " ".join(tables.build(int(number)).notes)
        assert notes.count("is not the sum of its rows") == len(wrong[number])
    assert wrong == {"1": ["TD3+BC", "CQL", "IQL"], "2": ["AWAC", "CQL"]}


@pytest.mark.parametrize("number", [1, 2])
def test_without_runs_every_own_cell_says_so(number: int) -> None:
    table = tables.build(number)
    own = [i for i, column in enumerate(table.columns) if column.endswith(", ours")]
    assert len(own) == 4
    assert all(str(entries[i]) == "not run" for _, entries in table.rows for i in own)
    assert "no runs were given" in table.notes[-1]


def test_own_numbers_stand_beside_the_published(evidence: Evidence) -> None:
    table = tables.build(1, evidence)
    entries = dict(table.rows)["hopper-medium"]
    row = evidence.row("hopper-medium", "QDQ")
    assert row is not None
    assert row.summary is not None
    column = table.columns.index("QDQ, ours")
    assert entries[column].value == pytest.approx(row.summary["mean"])
    assert str(entries[column]).endswith("(n=3)")
    assert str(entries[table.columns.index("QDQ")]) == "99.0 ± 0.3"
    assert str(entries[table.columns.index("BC (batch_size=32), ours")]) == "unfinished"
    assert str(entries[table.columns.index("TD3+BC, ours")]) == "not run"
    assert str(dict(table.rows)["walker2d-medium"][column]) == "not run"
    assert str(dict(table.rows)["total"][column]) == "incomplete"
    assert "sha256" in " ".join(table.notes)


def test_speed_has_the_cost_of_distillation_and_the_caveat(evidence: Evidence) -> None:
    table = tables.build(5)
    rows = dict(table.rows)
    assert [str(entry) for entry in rows["QDQ"]] == ["0.028", "0.74", "not published", "5.2", "16", "none"]
    assert [str(entry) for entry in rows["QDQ, ours"]][2:] == ["not run"] * 4
    assert "defines no epoch" in " ".join(table.notes)
    own = dict(tables.build(5, evidence).rows)["QDQ, ours, hopper-medium"]
    assert own[2].value is not None
    assert own[2].value > 0
    assert own[5].value is not None  # the quantile learner


def test_text_markdown_and_csv(evidence: Evidence) -> None:
    for number in (1, 2, 5):
        table = tables.build(number, evidence)
        lines = tables.render(table, "text").splitlines()
        assert len({len(line) for line in lines[2 : 4 + len(table.rows)]} - {len(lines[2])}) <= 1  # columns line up
        markdown = tables.render(table, "markdown").splitlines()
        body = [line for line in markdown if line.startswith("|")]
        assert len(body) == 2 + len(table.rows)
        assert {line.count(" | ") for line in body} == {len(table.columns)}
        rows = list(csv.DictReader(io.StringIO(tables.render(table, "csv"))))
        assert len(rows) == len(table.rows) * len(table.columns)
        assert all(bool(row["value"]) != bool(row["state"]) for row in rows)


def test_names_cannot_break_a_table(evidence: Evidence, runs: Path) -> None:
    markdown = tables.render(tables.build(5, evidence), "markdown")
    assert "<script" not in markdown
