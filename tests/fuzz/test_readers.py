"""Damaged and hostile files: a reader returns something sound or raises our own error, and nothing else ever happens.

The suite reads two hundred files for each reader, the same ones every time. `make fuzz` reads at least 10,000 for
each, different ones every time (QDQ_FUZZ_EXAMPLES is their number); what it finds is kept in the folder .fuzz.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.fuzz import structures
from tests.fuzz.children import KIBIBYTES, ROOT, Child
from tests.fuzz.damage import edits
from tests.fuzz.readers import READERS, Reader

NIGHTLY = "QDQ_FUZZ_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("QDQ_FUZZ_EXAMPLES", "200"))
PROFILE = settings(
    max_examples=EXAMPLES,
    derandomize=not NIGHTLY,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The process that reads, for all tests of a worker."""
    started = Child(tmp_path_factory.mktemp("child") / "log")
    yield started
    started.close()


def folders(reader: Reader, sound: dict[str, bytes]) -> st.SearchStrategy[dict[str, bytes]]:
    """The files that are not as in the sound folder."""

    def damaged(name: str) -> st.SearchStrategy[dict[str, bytes]]:
        return edits(reader.files[name]).map(lambda changes: {name: _applied(sound[name], changes)})

    choices = st.sampled_from(sorted(reader.files)).flatmap(damaged)
    if reader.structure is not None:
        choices = st.one_of(choices, getattr(structures, reader.structure)(min(reader.files), sound))
    return choices.map(Damage)


class Damage(dict[str, bytes]):
    """Damaged files by name; their content is kept in a folder and not shown."""

    def __repr__(self) -> str:
        return repr({name: f"{len(content)} bytes" for name, content in self.items()})


def _applied(content: bytes, changes: list[Any]) -> bytes:
    for change in changes:
        content = change(content)
    return content[: 2**23]


@pytest.mark.parametrize("name", READERS)
def test_only_our_errors_escape(name: str, child: Child, tmp_path: Path) -> None:
    reader, sound, work = READERS[name], tmp_path / "sound", tmp_path / "work"
    sound.mkdir()
    reader.make(sound)
    contents = {file: (sound / file).read_bytes() for file in reader.files}
    shutil.copytree(sound, work, symlinks=True)
    assert child.prepare(name, sound)["outcome"] == "read", "sound files must be read"
    found = Path(os.environ.get("QDQ_FUZZ_FOUND", ROOT / ".fuzz")) / name
    outcomes: Counter[str] = Counter()

    @PROFILE
    @given(folders(reader, contents))
    def attempt(files: dict[str, bytes]) -> None:
        _put(work, {**contents, **files})
        answer = child.ask(name, work)
        outcomes[answer["outcome"]] += 1
        grown = answer["kibibytes"] > KIBIBYTES
        if answer["outcome"] in ("read", "refused") and not grown:
            return
        shutil.rmtree(found, ignore_errors=True)
        shutil.copytree(work, found)
        note(f"The files are in {found}.\n{answer['detail']}")
        raise AssertionError(f"{name}: {'grew to no end' if grown else answer['outcome']}; see {found}")

    attempt()
    if NIGHTLY:
        print(f"\n{name}: {dict(outcomes)}")
    assert outcomes["refused"] > EXAMPLES // 10


def _put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
