"""The literal commands that would make the runs of a row again."""

import shlex

from qdq.report.methods import Row, changes
from qdq.storage import slug


def commands(row: Row) -> list[str]:
    """One command per line: the dataset where we can make it, then the training of all seeds."""
    run = row.first
    given = run.manifest.get("dataset_argument")
    argument = str(given) if given else shlex.quote(run.dataset)
    lines = _make(row) if given == run.dataset else []
    name = run.name if len(row.runs) == 1 else slug(f"{row.task}-{row.method}".lower())
    options = ["--algorithm", run.algorithm, "--preset", run.preset]
    for change in changes(run):
        key, _, value = change.partition("=")
        options += ["--steps", value] if key == "training.steps" else ["--set", change]
    for i, (first, count) in enumerate(_ranges([seed.number for seed in row.seeds])):
        seeds = ["--seeds", str(count), *(["--first-seed", str(first)] if first else [])]
        again = ["--resume"] if i else []
        lines.append(f"qdq train {argument} " + shlex.join([*options, *seeds, "--name", name, *again]))
    return lines


def remarks(row: Row) -> list[str]:
    """What a reader must know before trusting the commands."""
    run, notes = row.first, []
    if not run.manifest.get("dataset_argument"):
        notes.append("The run does not say where its dataset was read from; its name stands in for that.")
    revision = run.manifest.get("revision")
    version = run.manifest.get("versions", {}).get("qdq", "an unknown version")
    notes.append(f"Made with qdq {version}" + (f", revision {str(revision)[:12]}." if revision else "."))
    return notes


def _make(row: Row) -> list[str]:
    """How to make the dataset, if it is one of the factory's."""
    from qdq.data.factory import CATALOGUE, default_size

    name, run = row.first.dataset, row.first
    if name not in CATALOGUE:
        return []
    size = run.result["dataset"]["transitions"] if run.result else (run.data_card or {}).get("transitions")
    other = f" --transitions {int(size)}" if size and int(size) != default_size(name) else ""
    return [f"qdq data make {name}{other}"]


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Sorted numbers as runs of neighbours: (first, how many)."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == sum(ranges[-1]):
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges
