"""The graph of a study: what is shared, what waits, what a folder is called, and what is known of it later."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qdq.errors import UsageError
from qdq.sweep import records
from qdq.sweep.plan import Job, Source, make_plan
from qdq.sweep.results import collect
from qdq.sweep.study import EngineSettings, Study, Variant

HOPPER = Source("hopper-medium", "hopper-medium", "hopper-medium", "a" * 64)
LOG = Source("log.npz", "log", None, "b" * 64)
PLAIN = Variant("", ("qdq", "td3-bc"), "fast", 1000, ())


def study(out: Path, *variants: Variant, seeds: tuple[int, ...] = (0, 1)) -> Study:
    return Study("test", out, ("hopper-medium", "log.npz"), variants or (PLAIN,), seeds, EngineSettings())


def learning(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if job.folder is None]


def test_one_q_distribution_serves_all_seeds(tmp_path: Path) -> None:
    jobs = make_plan(study(tmp_path), [HOPPER, LOG])
    first, second = learning(jobs)
    assert first.arguments == ("stage", "quantile", "hopper-medium", "--preset", "fast")
    training = [job for job in jobs if job.folder is not None]
    assert len(training) == 8
    assert {(job.dataset, job.needs) for job in training if job.method == "qdq"} == {
        ("hopper-medium", first.name),
        ("log", second.name),
    }
    assert all(job.needs is None for job in training if job.method == "td3-bc")
    assert [job.seed for job in training] == [0] * 4 + [1] * 4  # seed after seed
    assert len({job.name for job in jobs}) == len(jobs)


def test_a_run_of_another_study_is_found(tmp_path: Path) -> None:
    """The same run has the same folder in both, so that it is trained once."""
    few, many = (replace(study(tmp_path / name), shared_runs=tmp_path / "runs") for name in ("few", "many"))
    many = replace(many, variants=(PLAIN, Variant("short", ("bc",), "fast", 600, ())))
    folders = [{job.folder for job in make_plan(each, [HOPPER]) if job.folder} for each in (few, many)]
    assert folders[0] < folders[1]
    assert all(folder.parent == tmp_path / "runs" for folder in folders[1])


@pytest.mark.parametrize(
    ("overrides", "distributions"),
    [
        (("algorithm.alpha=0.5",), 1),  # of the actor-critic alone
        (("algorithm.uncertainty=random",), 1),  # uses none at all, but the plain runs do
        (("quantile.steps=400",), 2),
        (("q_dataset.width=50",), 2),
        (("data.reward_shift=1",), 2),
        (("q_distribution.learner=distilled",), 2),
        (("consistency.steps=400",), 1),  # not the learner's
    ],
)
def test_variants_share_what_does_not_differ(overrides: tuple[str, ...], distributions: int, tmp_path: Path) -> None:
    other = Variant("other", ("qdq",), "fast", 1000, overrides)
    jobs = make_plan(study(tmp_path, PLAIN, other, seeds=(0,)), [HOPPER])
    assert len(learning(jobs)) == distributions
    changed = next(job for job in jobs if job.method == "qdq other")
    assert (changed.needs is None) == (overrides == ("algorithm.uncertainty=random",))


def test_folders_are_named_by_what_decides_their_content(tmp_path: Path) -> None:
    def folders(*variants: Variant, source: Source = HOPPER) -> set[Path | None]:
        return {job.folder for job in make_plan(study(tmp_path, *variants), [source])} - {None}

    before = folders(PLAIN)
    assert {folder.name.rsplit("-", 1)[0] for folder in before if folder} == {
        "hopper-medium-qdq-fast",
        "hopper-medium-td3-bc-fast",
    }
    assert folders(PLAIN) == before
    assert folders(replace(PLAIN, overrides=("training.steps=1000",))) == before  # the same run, said otherwise
    for changed in (
        folders(replace(PLAIN, steps=2000)),
        folders(replace(PLAIN, overrides=("training.batch_size=64",))),
        folders(PLAIN, source=replace(HOPPER, sha256="c" * 64)),
    ):
        assert not changed & before


def test_wrong_settings_are_found_before_anything_starts(tmp_path: Path) -> None:
    for variant, sentence in (
        (replace(PLAIN, overrides=("algorithm.alhpa=1",)), "did you mean"),
        (replace(PLAIN, overrides=("algorithm.alpha=0.5",)), "for td3-bc"),  # qdq has it, td3-bc has not
        (replace(PLAIN, algorithms=("sarsa",)), "Unknown algorithm 'sarsa'"),
        (replace(PLAIN, preset="fastt"), "did you mean 'fast'"),
        (replace(PLAIN, steps=150), "multiple of training.chunk"),
    ):
        with pytest.raises(UsageError, match=sentence):
            make_plan(study(tmp_path, variant), [HOPPER])
    with pytest.raises(UsageError, match="'qdq again' is the same run as 'qdq'"):
        make_plan(study(tmp_path, PLAIN, replace(PLAIN, name="again")), [HOPPER])


def finish(job: Job, score: float = 0.0) -> None:
    """What a finished job leaves behind, as far as a sweep looks at it."""
    assert job.folder is not None
    seed = job.folder / f"seed_{job.seed}"
    seed.mkdir(parents=True)
    (seed / "outcome.json").write_text(json.dumps({"final_score": score}))
    told = [int(path.parent.name.removeprefix("seed_")) for path in job.folder.glob("seed_*/outcome.json")]
    (job.folder / "result.json").write_text(json.dumps({"seeds": [{"seed": number} for number in told]}))


def test_what_is_finished_is_known_by_the_folders(tmp_path: Path) -> None:
    jobs = make_plan(study(tmp_path), [HOPPER])
    stage, *training = jobs
    found = records.restore(tmp_path, jobs, retry=False)
    assert {record.state for record in found.values()} == {"queued"}
    for job in training:
        if job.method == "qdq" or job.seed == 0:
            finish(job)
    found = records.restore(tmp_path, jobs, retry=False)
    assert [job.label for job in jobs if found[job.name].open] == ["hopper-medium td3-bc seed 1"]
    assert found[stage.name].state == "done"  # nothing needs it any more
    untold = next(job for job in training if job.method == "qdq")
    assert untold.folder is not None
    (untold.folder / "result.json").unlink()  # it was killed between a seed's end and the run's
    assert not untold.finished


def test_the_table_is_over_finished_seeds(tmp_path: Path) -> None:
    jobs = make_plan(study(tmp_path), [HOPPER])
    for job in jobs[1:]:
        if job.method == "qdq" or job.seed == 0:
            finish(job, 14.0 if job.seed else 10.0)
    guided, plain = collect(jobs)
    assert (guided["method"], guided["scores"], guided["missing"]) == ("qdq", {"0": 10.0, "1": 14.0}, [])
    assert guided["mean"] == 12.0
    assert (plain["method"], plain["mean"], plain["missing"]) == ("td3-bc", 10.0, [1])


def test_failures_are_kept_until_a_retry(tmp_path: Path) -> None:
    jobs = make_plan(study(tmp_path, seeds=(0,)), [HOPPER])
    stage, guided, plain = jobs
    found = records.restore(tmp_path, jobs, retry=False)
    for job in (stage, plain):
        found[job.name].state, found[job.name].exit_code, found[job.name].sentence = "failed", 3, "No good."
    found[guided.name].state = "running"
    records.save(tmp_path, "test", found)
    later = records.restore(tmp_path, jobs, retry=False)
    assert [later[job.name].state for job in jobs] == ["failed", "blocked", "failed"]
    assert later[plain.name].exit_code == 3
    assert later[guided.name].sentence == f"needs {stage.name}, which failed: No good."
    records.save(tmp_path, "test", later)
    again = records.restore(tmp_path, jobs, retry=True)
    assert [again[job.name].state for job in jobs] == ["queued"] * 3


def test_the_last_error_of_an_attempt_is_found_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("qdq: Old.\n")
    size = log.stat().st_size
    assert records.last_sentence(log) == "Old."
    assert records.last_sentence(log, size) == ""
    with open(log, "a") as file:
        file.write("step 1\nqdq: New.\nfarewell\n")
    assert records.last_sentence(log, size) == "New."
    assert records.last_sentence(tmp_path / "none.log") == ""
