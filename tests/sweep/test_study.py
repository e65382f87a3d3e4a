"""Studies as people write them: what is understood, and what is refused with the place and the nearest key."""

from pathlib import Path

import pytest

from qdq.errors import DataError, UsageError
from qdq.sweep.study import Variant, read_study

WHOLE = """
name = "locomotion"
out = "studies/loco"
datasets = ["hopper-medium", "log.npz"]
algorithms = ["qdq", "td3-bc"]
seeds = 2
preset = "fast"
steps = 100_000
set = ["training.batch_size=64"]
[variants.no-penalty]
algorithms = ["qdq"]
set = ["algorithm.penalty=none"]
[variants.paper]
preset = "paper"
steps = 200_000
[engine]
name = "slurm"
jobs = 3
cores = 2
memory = "2GiB"
[engine.slurm]
executor = "local"
partition = "short"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, WHOLE))
    assert (study.name, study.out, study.datasets) == ("locomotion", Path("studies/loco"), ("hopper-medium", "log.npz"))
    assert study.seeds == (0, 1)
    everywhere = ("training.batch_size=64",)
    assert study.variants == (
        Variant("", ("qdq", "td3-bc"), "fast", 100_000, everywhere),
        Variant("no-penalty", ("qdq",), "fast", 100_000, (*everywhere, "algorithm.penalty=none")),
        Variant("paper", ("qdq", "td3-bc"), "paper", 200_000, everywhere),
    )
    engine = study.engine
    assert (engine.name, engine.jobs, engine.cores, engine.memory) == ("slurm", 3, 2, "2GiB")
    assert engine.slurm == {"executor": "local", "partition": "short"}


def test_the_least_that_must_be_said(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, 'datasets = ["a"]\nalgorithms = ["bc"]'))
    assert (study.name, study.out, study.seeds) == ("study", Path("studies/study"), (0,))
    assert study.variants == (Variant("", ("bc",), "fast", None, ()),)
    assert (study.engine.name, study.engine.jobs, study.engine.cores) == ("local", None, 1)


def test_studies_may_share_their_runs(tmp_path: Path) -> None:
    alone = read_study(write(tmp_path, BASE))
    assert alone.runs == Path("studies/study/runs")
    shared = read_study(write(tmp_path, BASE + "runs = 'studies/runs'"))
    assert (shared.out, shared.runs) == (Path("studies/study"), Path("studies/runs"))
    assert shared.changed(None, jobs=2).runs == Path("studies/runs")
    assert shared.changed(Path("again")).runs == Path("again/runs")  # all of it anew


def test_seeds_may_be_listed_and_the_plain_runs_left_out(tmp_path: Path) -> None:
    text = 'datasets = ["a"]\nalgorithms = ["bc"]\nseeds = [3, 5]\nplain = false\n[variants.short]\nsteps = 200'
    study = read_study(write(tmp_path, text))
    assert study.seeds == (3, 5)
    assert [variant.name for variant in study.variants] == ["short"]


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    study = read_study(write(tmp_path, WHOLE)).changed(Path("elsewhere"), name="ray", jobs=None, address="here:1")
    assert (study.out, study.engine.name, study.engine.jobs, study.engine.address) == (
        Path("elsewhere"),
        "ray",
        3,
        "here:1",
    )
    with pytest.raises(UsageError, match="did you mean 'local'"):
        study.changed(None, name="locla")


BASE = 'datasets = ["a"]\nalgorithms = ["bc"]\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('dataset = ["a"]\nalgorithms = ["bc"]', "Unknown key 'dataset' in .*; did you mean 'datasets'"),
        ('algorithms = ["bc"]', "lacks datasets"),
        ('datasets = []\nalgorithms = ["bc"]', "lacks datasets"),
        (BASE + "sedes = 3", "did you mean 'seeds'"),
        (BASE + "seeds = 0", "needs seeds as a count"),
        (BASE + "seeds = [1, 1]", "lists a seed twice"),
        (BASE + "seeds = true", "needs seeds as a count"),
        (BASE + "steps = 1.5", "needs a whole number of at least 1 for steps"),
        (BASE + "set = 'a=1'", "needs a list of texts for set"),
        (BASE + "plain = false", "nothing to run"),
        (BASE + "[variants.x]\nalgorithm = ['qdq']", r"Unknown key 'algorithm' in .*\[variants.x\]; did you mean 'alg"),
        (BASE + "[variants]\nx = 1", "needs x as a table"),
        (BASE + "[engine]\ncoers = 2", "did you mean 'cores'"),
        (BASE + "[engine]\nname = 'spark'", "Unknown engine 'spark'"),
        (BASE + "[engine]\njobs = 0", "at least 1 for jobs"),
        (BASE + "[engine]\nmemory = 'lots'", "'lots' is not understood"),
        (BASE + "[engine.slurm]\nexecutor = 'slrum'", "did you mean 'slurm'"),
        ('datasets = ["a", "a"]\nalgorithms = ["bc"]', "lists 'a' twice in datasets"),
    ],
)
def test_mistakes_are_named(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        read_study(write(tmp_path, text))


def test_files_that_are_no_studies(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_study(tmp_path / "nothing.toml")
    with pytest.raises(DataError, match="not readable TOML"):
        read_study(write(tmp_path, "datasets = ["))
