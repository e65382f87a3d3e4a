"""The pictures of runs against values computed by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from qdq import presets, storage
from qdq.errors import UsageError
from qdq.report import comparisons, figures, plots
from qdq.report.methods import Evidence, Row, gather
from qdq.report.runs import SavedRun, SavedSeed, find_runs
from qdq.sweep import ablations
from tests.probes import probe_dataset


def saved(number: int, scores: list[float], finished: bool = True) -> SavedSeed:
    curve = [(100 * (i + 1), score) for i, score in enumerate(scores)]
    return SavedSeed(number, Path("nowhere"), curve, finished, scores[-1], curve[-1][0], 10.0, 1.0, [])


def row(task: str, method: str, seeds: list[SavedSeed]) -> Row:
    manifest = {"dataset": task, "dataset_sha256": "0", "reference": {"random": 0}, "seeds": []}
    run = SavedRun(
        Path(method), manifest, {"algorithm_name": "bc", "preset": "fast", "training": {"steps": 300}}, None, seeds
    )
    return Row(task, method, [run], seeds)


def test_learning_curves_by_hand(tmp_path: Path) -> None:
    panel = plots.learning_curves(
        "t", [row("t", "BC", [saved(0, [1, 2, 3]), saved(1, [3, 6, 7]), saved(2, [9], False)])], {"BC": "grey"}
    )
    mean, unfinished = panel.series
    np.testing.assert_allclose(mean.y, [2, 4, 5])
    np.testing.assert_allclose(mean.low, [1, 2, 3])
    np.testing.assert_allclose(mean.high, [3, 6, 7])
    assert unfinished.name == "BC, seed 2, unfinished"
    assert unfinished.dash == ":"


def test_comparisons_by_hand() -> None:
    rows = [
        row("a", "QDQ", [saved(0, [10.0]), saved(1, [20.0])]),
        row("a", "BC", [saved(0, [10.0]), saved(1, [0.0])]),
        row("b", "QDQ", [saved(0, [50.0]), saved(1, [60.0])]),
        row("b", "BC", [saved(0, [90.0]), saved(1, [90.0])]),
        row("c", "IQL", [saved(0, [1.0])]),
    ]
    evidence = Evidence([], rows)
    assert evidence.comparable == (["QDQ", "BC"], ["a", "b"])
    chart = comparisons.improvement(evidence)
    assert chart is not None
    [pair] = chart.panels[0].series
    assert pair.x == [pytest.approx((3.5 / 4 + 0.0) / 2)]
    chart = comparisons.aggregate(evidence)
    assert chart is not None
    assert chart.panels[0].series[0].x == [pytest.approx(35.0)]  # of 10, 20, 50, 60 the middle half
    assert "IQL" in chart.caption  # left out, and said so
    chart = comparisons.profiles(evidence)
    assert chart is not None
    assert chart.panels[0].series[0].y[0] == 1.0


def test_uncertainty_by_hand() -> None:
    panels = {
        "recorded_uncertainty": np.arange(100.0),
        "policy_uncertainty": np.full(100, 1.0),
        "random_uncertainty": np.concatenate([np.full(70, 10.0), np.full(30, 99.5)]),
    }
    assert plots.random_quantile(panels) == pytest.approx(0.7)
    panel = plots.uncertainty(panels, "t")
    assert [series.name.rsplit(": ", 1)[1] for series in panel.series] == ["5% above", "0% above", "30% above"]
    assert panel.marks[0].value == pytest.approx(94.05)


def test_surprise_by_hand() -> None:
    panels = {
        "recorded_surprise": np.arange(100.0),
        "policy_surprise": np.full(100, 50.0),
        "random_surprise": np.concatenate([np.full(25, 90.0), np.full(75, 1e6)]),
        "surprise_border": np.array([94.5]),
    }
    panel = plots.surprise(panels, "t")
    assert [series.name.rsplit(": ", 1)[1] for series in panel.series] == ["5% above", "0% above", "75% above"]
    assert panel.marks[0].value == 94.5
    recorded, policy, random = panel.series
    assert recorded.x[-1] < 250  # a few actions far away leave the others readable
    for series, share in ((recorded, 0.99), (policy, 1.0), (random, 0.25)):  # what lies outside is not made up for
        assert np.sum(np.diff(series.x) * series.y) == pytest.approx(share, abs=0.011)
    panels |= {f"{kind}_uncertainty": np.arange(10.0) for kind in ("recorded", "policy", "random")}
    assert len(plots.uncertainties(panels, "H", "surprise")) == 2
    del panels["surprise_border"]
    assert [panel.title for panel in plots.uncertainties(panels, "H", "surprise")] == ["H"]


def test_densities_integrate_to_one(evidence: Evidence) -> None:
    found = evidence.row("hopper-medium", "QDQ")
    assert found is not None
    assert found.first.panels is not None
    for panel in (plots.q_distribution(found.first.panels, ""), plots.calibration(found.first.panels, "")):
        for series in panel.series:
            assert np.sum(np.diff(series.x) * series.y) == pytest.approx(1.0)


def logged(folder: Path, text: str, number: int = 0) -> SavedSeed:
    """A seed with a metrics.csv of its own."""
    (folder / f"seed_{number}").mkdir()
    (folder / f"seed_{number}" / "metrics.csv").write_text(text)
    return SavedSeed(number, folder / f"seed_{number}", [], True, None, 400, 10.0, 1.0, [])


def test_training_course_leaves_out_where_h_was_not_asked_for(tmp_path: Path) -> None:
    rows = "100,1,0,0,0\n200,2,0,0,0\n300,3,0.5,0.7,0.1\n400,4,0.6,0.8,0.1\n"
    course = plots.training_course(
        [logged(tmp_path, "step,q_mean,uncertainty,uncertainty_border,risk_share\n" + rows)], "t"
    )
    assert list(course) == ["q", "uncertainty"]
    assert list(course["q"].series[0].x) == [100, 200, 300, 400]
    assert list(course["uncertainty"].series[0].x) == [300, 400]  # the first half of this run is extraction
    assert [series.name for series in course["uncertainty"].series] == ["mean H", "border of the risk set"]


def test_training_course_of_a_run_that_asks_for_the_surprise(tmp_path: Path) -> None:
    heads = "step,q_mean,policy_q,policy_distance,risk_share\n"
    seeds = [logged(tmp_path, heads + f"100,1,2,{d},0\n200,1,2,{d + 1},0.25\n", d) for d in (1, 3)]
    course = plots.training_course(seeds, "t")
    assert list(course) == ["q", "distance", "risk"]
    assert [series.name for series in course["q"].series] == ["mean Q", "mean Q of the policy's actions"]
    [distance], [risk] = course["distance"].series, course["risk"].series
    np.testing.assert_allclose(distance.y, [2, 3])
    np.testing.assert_allclose(distance.high, [3, 4])
    np.testing.assert_allclose(risk.y, [0, 0.25])  # a share of zero is a finding, not a gap
    assert plots.training_course([logged(tmp_path, "step,loss\n100,1\n", 9)], "t") == {}


def test_training_course_of_a_real_run(evidence: Evidence) -> None:
    found = evidence.row("hopper-medium", "QDQ")
    assert found is not None
    course = plots.training_course(found.seeds, "t")
    assert list(course) == ["q", "distance", "risk"]
    for panel in course.values():
        assert list(panel.series[0].x) == [100, 200, 300, 400]


@pytest.mark.parametrize("name", [name for name, figure in figures.FIGURES.items() if figure.needs == "dataset"])
def test_figures_from_a_dataset(name: str) -> None:
    chart = figures.FIGURES[name].make(probe_dataset(0.3))
    assert len(chart.panels[0].series) == 3
    for series in chart.panels[0].series:
        assert np.sum(np.diff(series.x) * series.y) == pytest.approx(1.0)


def test_figures_from_runs(evidence: Evidence) -> None:
    made = {
        name: figures.FIGURES[name].make(evidence)
        for name in ("q-distribution", "uncertainty", "training", "learning-curves", "ablation-alpha")
    }
    assert [panel.title for panel in made["learning-curves"].panels] == ["hopper-medium"]
    names = [series.name for series in made["ablation-alpha"].panels[0].series]
    assert names == ["alpha = 0.9 (2 seeds)", "alpha = 0.99 (3 seeds)"]
    assert len(made["training"].panels) == 3 * 2  # of two methods
    assert len(made["uncertainty"].panels) == 2 * 2
    for name, words in (
        ("ablation-beta", "there are none here"),
        ("ablation-entropy", "there are none here"),
        ("penalty", "no such pair here"),
    ):
        with pytest.raises(UsageError, match=words):
            figures.FIGURES[name].make(evidence)


def ablation_row(preset: str, variant: str, score: float) -> Row:
    """A variant of `qdq ablate --over uncertainty` as its record tells of it."""
    overrides = ablations.changes("uncertainty", preset)[variant]
    config, _ = presets.build("qdq", preset, "hopper-medium", overrides)
    seeds = [saved(0, [score, score]), saved(1, [score + 1, score + 1])]
    manifest = {"dataset": "hopper-medium", "dataset_sha256": "0", "reference": {"random": 0}, "seeds": [0, 1]}
    run = SavedRun(Path(variant), manifest, storage.parse_json(json.dumps(config.to_dict())), None, seeds)
    return Row("hopper-medium", variant, [run], seeds)


@pytest.mark.parametrize(
    ("preset", "intact"), [("fast", "surprise"), ("demo", "surprise"), ("paper", "H"), ("release", "H")]
)
def test_the_penalty_is_taken_away_and_nothing_else(preset: str, intact: str) -> None:
    names = ["surprise", "H", "random", "matched discount", "no penalty"]
    rows = [ablation_row(preset, name, 10.0 * i) for i, name in enumerate(names)]
    chart = figures.penalty(Evidence([], rows))
    [panel] = chart.panels
    assert [series.name for series in panel.series] == ["QDQ (2 seeds)", "without the penalty (2 seeds)"]
    assert panel.series[0].y[0] == 10.0 * names.index(intact) + 0.5
    assert panel.series[1].y[0] == 40.5
    for lacking in (intact, "no penalty"):
        left = [row for row in rows if row.method != lacking]
        with pytest.raises(UsageError, match="no such pair here"):
            figures.penalty(Evidence([], left))


def test_figures_say_what_runs_lack(runs: Path) -> None:
    plain = gather(find_runs([runs / "hostile"]))
    for name, words in (
        ("q-distribution", "saved panels"),
        ("uncertainty", "saved panels"),
        ("learning-curves", "no environment"),
        ("training", "critics"),
    ):
        with pytest.raises(UsageError, match=words):
            figures.FIGURES[name].make(plain)
