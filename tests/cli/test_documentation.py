"""Every command in the README and the docs is one that the command line takes: its options, settings and files exist.

Nothing is run here. The laboratory book is left out: it keeps the words of its day.
"""

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qdq import presets
from qdq.cli import main
from qdq.sweep.study import read_study

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")] if page.name not in ("research.md", "CHANGELOG.md")
)
INLINE = re.compile(r"`(qdq [^`]+)`")
INDENTED = re.compile(r"^ {4}(qdq .*(?:\n {8}.*)*)", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # its language, and what it holds
EXAMPLES = {
    "DATASET...": "hopper-medium",
    "RUN...": "runs",
    "SOURCE...": "runs",
    "WHAT": "alpha",
    "N": "1000",
    "BEST": "0.9",
    "VARIANT": "H",
}


def words_of(line: str) -> list[str] | None:
    """The arguments behind `qdq`, with an example in the place of every placeholder; None where it is no whole command."""
    before, found, rest = line.partition("qdq ")
    if not found or not re.fullmatch(r"(\w+=\S+ )*", before):
        return None
    words = shlex.split(re.sub(r"[\[\]]", "", rest).removesuffix("&"), comments=True)
    words = [re.sub(r"^\{(\w[\w-]*),.*\}$", r"\1", word) for word in words]  # the first of several
    words = [re.sub(r"=BEST$", "=0.9", EXAMPLES.get(word, word)) for word in words]
    return None if "..." in words else words


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of a page: lines of its blocks, and what stands between backticks in its text."""
    text = page.read_text()
    shell = "\n".join(block for language, block in BLOCK.findall(text) if language in ("", "sh", "console"))
    indented = "\n".join(INDENTED.findall(text))
    lines = f"{shell}\n{indented}".replace("\\\n", " ").splitlines()
    for line in [*lines, *INLINE.findall(BLOCK.sub("", text))]:
        words = words_of(line)
        if words is not None and not is_name(words):
            yield words


def is_name(words: list[str]) -> bool:
    """Whether it is only the name of a command, or of one in a group, as in a sentence about it."""
    group = main.GROUPS[words[0]][1] if words[0] in main.GROUPS else {}
    return (len(words) == 1 and words[0] in (*main.COMMANDS, *main.GROUPS)) or (len(words) == 2 and words[1] in group)


def recording(calls: list[dict[str, Any]], function: Callable[..., Any]) -> Callable[..., None]:
    """A command of the same signature that only says what it was asked for."""

    @functools.wraps(function)
    def record(*values: Any, **named: Any) -> None:
        calls.append({"command": function.__name__, "values": values, **named})

    return record


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the command line was asked for, while nothing is run."""
    made: list[dict[str, Any]] = []
    replaced = {name: recording(made, function) for name, function in main.COMMANDS.items()}
    monkeypatch.setattr(main, "COMMANDS", replaced)
    groups = {
        name: (text, {key: recording(made, function) for key, function in group.items()})
        for name, (text, group) in main.GROUPS.items()
    }
    monkeypatch.setattr(main, "GROUPS", groups)
    return made


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_are_taken(
    page: Path, calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in commands(page):
        try:
            main.main(words)
        except SystemExit as stop:
            pytest.fail(f"`qdq {shlex.join(words)}` in {page.name} ends with {stop.code}: {capsys.readouterr().err}")
        call = calls[-1]
        algorithm, preset = call.get("algorithm", "qdq"), call.get("preset", "fast")
        if "set" in call:
            presets.build(algorithm, preset, "hopper-medium", call["set"], call.get("steps"))
        if call["command"] == "sweep" and str(call["values"][0]).startswith("examples"):
            read_study(ROOT / call["values"][0])


def test_commands_are_found() -> None:
    """The reader of pages sees blocks, continued lines, variables, comments, placeholders and inline commands."""
    found = [words for page in PAGES for words in commands(page)]
    assert len(found) > 50
    assert ["data", "make", "hopper-medium", "--force"] in found  # behind a variable
    assert ["bench", "--full"] in found  # before a comment
    assert any(words[:2] == ["train", "pointmaze-umaze"] and "evaluation.every=2000" in words for words in found)
    assert words_of("qdq stage {q-dataset,diffusion} DATASET") == ["stage", "q-dataset", "DATASET"]
    assert words_of("see qdq train") is None
