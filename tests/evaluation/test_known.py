"""`qdq known`: the truths are what they say, and the measurement finds a wrong H."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import skew

from qdq.cli.known import _print_cases
from qdq.errors import UsageError
from qdq.evaluation import known
from qdq.presets import build
from qdq.training.display import Silent
from tests.cli.test_commands import qdq, sentence


@pytest.mark.parametrize("bimodal", [False, True])
def test_the_standard_deviation_is_that_of_the_samples(bimodal: bool) -> None:
    random = np.random.default_rng(0)
    truth = known.Truth.draw(random, 14, 16, bimodal)
    assert (truth.observation_size, truth.action_size) == (11, 3)
    points = truth.inputs(random, 5)
    for x, std in zip(points, truth.std(points), strict=True):
        values = truth.sample(random, np.tile(x, (40_000, 1)))
        assert values.std() == pytest.approx(std, rel=0.02)
        assert bimodal or abs(skew(values)) < 0.1


def test_the_spread_of_a_peak_fills_a_range_of_five() -> None:
    random = np.random.default_rng(1)
    truth = known.Truth.draw(random, 23, 16, False)
    assert (truth.observation_size, truth.action_size) == (17, 6)
    std = truth.std(truth.inputs(random, 20_000))
    assert 0.2 <= std.min() < 0.25
    assert 0.8 < std.max() <= 1.0


def test_a_dataset_holds_every_sample_once() -> None:
    random = np.random.default_rng(2)
    truth = known.Truth.draw(random, 14, 4, True)
    x = truth.inputs(random, 200)
    values = truth.sample(random, x)
    data = known.as_dataset(truth, x, values, "known")
    assert (data.episodes, data.transitions) == (100, 200)
    np.testing.assert_allclose(data.rewards, values, rtol=1e-6)
    np.testing.assert_allclose(data.observations[data.rows], x[:, :11], rtol=1e-6)


def test_an_easy_truth_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "FRESH", 1024)
    small = ("quantile.steps=600", "q_distribution.hidden=32,32", "q_distribution.groups=4")
    config, _ = build("qdq", "fast", None, (*small, "uncertainty.rule=equal_probability", "uncertainty.nodes=32"))
    case = known.measure(0, 3, True, 4000, 2, config, Silent())
    assert case["shape"] == "bimodal"
    assert case["relative_error"] < 0.25
    assert case["rank"] > 0.9
    assert case["coverage"]["80%"] == pytest.approx(0.8, abs=0.06)


def test_the_command_explains_what_is_wrong(tmp_path: Path) -> None:
    assert "--seeds must be at least 1" in sentence(qdq("known", "--seeds", "0", cwd=tmp_path, expect=2))


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    case = {"shape": "unimodal", "dimensions": 23, "seed": 4, "relative_error": 0.1234, "rank": 0.9876, "ratio": 1.0}
    case |= {"coverage": {"50%": 0.51, "80%": 0.82, "95%": 0.93}, "seconds": 19.2}
    _print_cases([case])
    printed = capsys.readouterr().out
    for text in ("unimodal", "0.123", "0.988", "0.82", "19 s", "80 %"):
        assert text in printed


@pytest.mark.parametrize(
    ("seeds", "dimensions", "samples", "units", "word"),
    [(0, (14,), 1000, 4, "seeds"), (1, (1,), 1000, 4, "dimensions"), (1, (14,), 50, 4, "samples"),
     (1, (14,), 1001, 4, "even"), (1, (14,), 1000, 0, "units")],
)  # fmt: skip
def test_nonsense_is_refused(seeds: int, dimensions: tuple[int, ...], samples: int, units: int, word: str) -> None:
    config, _ = build("qdq", "fast")
    with pytest.raises(UsageError, match=word):
        next(known.measure_all(seeds, dimensions, samples, units, config, Silent()))
