"""The Python interface: units, seeds, and runs that go on where they stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdq
from qdq import storage
from qdq.errors import DataError, UsageError
from qdq.training import seeds
from qdq.training.display import Silent
from qdq.training.hooks import CsvLog
from tests.algorithms.test_contract import overrides
from tests.probes import probe_dataset


def fit(data: qdq.Dataset, out: Path, algorithm: str = "bc", **options: Any) -> qdq.Run:
    settings = {"steps": 400, "out": out, "overrides": overrides(algorithm), "display": Silent()} | options
    return qdq.train(data, algorithm, "fast", **settings)


def test_actions_come_back_in_their_own_units(tmp_path: Path) -> None:
    data = probe_dataset(0.2)
    wide = qdq.from_arrays(
        data.current_observations,
        100.0 + 50.0 * data.actions,
        data.rewards,
        data.terminals,
        action_low=50.0,
        action_high=150.0,
    )
    observations = data.current_observations[:20]
    narrow_actions = fit(data, tmp_path, name="narrow").policy(observations)
    wide_actions = fit(wide, tmp_path, name="wide").policy(observations)
    np.testing.assert_allclose(wide_actions, 100.0 + 50.0 * narrow_actions, atol=0.05)


def test_observations_are_normalised_inside_the_policy(tmp_path: Path) -> None:
    data = probe_dataset(0.2)
    shifted = qdq.from_arrays(1000.0 + 10.0 * data.current_observations, data.actions, data.rewards, data.terminals)
    more = (*overrides("bc"), "data.normalise_states=true")
    actions = fit(data, tmp_path, name="plain", overrides=more).policy(data.current_observations[:20])
    same = fit(shifted, tmp_path, name="shifted", overrides=more).policy(1000.0 + 10.0 * data.current_observations[:20])
    np.testing.assert_allclose(same, actions, atol=0.02)


def test_seeds_differ_and_repeat(tmp_path: Path) -> None:
    data = probe_dataset(0.3)
    observations = data.current_observations[:5]
    both = fit(data, tmp_path, name="both", seeds=[0, 1])
    alone = fit(data, tmp_path, name="alone", seeds=[1])
    assert not np.array_equal(both.policy(observations, 0), both.policy(observations, 1))
    np.testing.assert_array_equal(both.policy(observations, 1), alone.policy(observations, 1))
    with pytest.raises(UsageError, match="no finished seed 7"):
        both.policy(observations, 7)


@pytest.mark.parametrize("algorithm", ["qdq", "iql"])
def test_a_run_that_was_stopped_ends_as_if_it_was_not(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = probe_dataset(0.3)
    whole = fit(data, tmp_path, algorithm, name="whole")

    class Stopping(CsvLog):
        """The power fails after 300 steps, when the last checkpoint is of step 200."""

        def __call__(self, step: int, state: Any, metrics: dict[str, float]) -> None:
            super().__call__(step, state, metrics)
            if step == 300:
                raise RuntimeError("power failure")

    with monkeypatch.context() as patch:
        patch.setattr(seeds, "CsvLog", Stopping)
        with pytest.raises(RuntimeError, match="power failure"):
            fit(data, tmp_path, algorithm, name="stopped")
    resumed = fit(data, tmp_path, algorithm, name="stopped", resume=True)
    for name in ("policy.safetensors", "checkpoints/step_000000400.safetensors"):
        one, two = (storage.load_arrays(run.path / "seed_0" / name)[0] for run in (whole, resumed))
        assert one.keys() == two.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], two[key], err_msg=key)
    metrics = [(run.path / "seed_0" / "metrics.csv").read_text() for run in (whole, resumed)]
    assert metrics[0] == metrics[1]


def test_runs_refuse_what_does_not_fit(tmp_path: Path) -> None:
    data = probe_dataset(0.3)
    run = fit(data, tmp_path, name="one")
    with pytest.raises(DataError, match="observations of size 2"):
        run.policy(np.zeros((3, 5)))
    with pytest.raises(DataError, match="NaN"):
        run.policy(np.full((3, 2), np.nan))
    for text in (np.full((3, 2), "far"), [[0.0, 1.0], [0.0]], [[None, {}]]):
        with pytest.raises(DataError, match="The observations are not an array of numbers"):
            run.policy(text)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="do not learn one"):
        run.uncertainty(np.zeros((1, 2)), np.zeros((1, 1)))
    with pytest.raises(UsageError, match="exists already"):
        fit(data, tmp_path, name="one")
    with pytest.raises(UsageError, match="another dataset"):
        fit(probe_dataset(0.4), tmp_path, name="one", resume=True)
    with pytest.raises(DataError, match="not a run folder"):
        qdq.load_run(tmp_path / "nothing")


@pytest.mark.parametrize("seeds", [[-1], [0, -2], [0.5], ["0"], [None], [2**32], []])
def test_what_is_no_seed_is_refused_before_anything_is_written(seeds: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"A seed must be a whole number from 0 to 4294967295|At least one seed"):
        fit(probe_dataset(0.3), tmp_path, seeds=seeds)
    assert not list(tmp_path.iterdir())


def test_a_damaged_artefact_is_noticed(tmp_path: Path) -> None:
    run = fit(probe_dataset(0.3), tmp_path, name="one")
    path = run.path / "seed_0" / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="may be damaged"):
        qdq.load_run(run.path).policy(np.zeros((1, 2)))
