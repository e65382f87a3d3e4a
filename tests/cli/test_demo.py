"""The demo's dataset: made once, used again, and never silently another one."""

import pytest

from qdq.cli.demo import DATASET, demo_dataset
from qdq.data import factory
from qdq.data.factory import make_dataset
from qdq.errors import UsageError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of 600 transitions, made by one process."""
    monkeypatch.setattr(factory, "REPLAY_SIZES", {"hopper": 600})
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def test_the_dataset_is_made_and_then_used_again(capsys: pytest.CaptureFixture[str]) -> None:
    first, reused = demo_dataset()
    assert not reused
    assert first.transitions == 600
    second, reused = demo_dataset()
    assert reused
    assert second.sha256 == first.sha256
    assert "--force" not in capsys.readouterr().err  # the demo has no such option


@pytest.mark.parametrize(("transitions", "seed"), [(300, 0), (600, 3)])
def test_a_dataset_made_with_other_settings_is_refused(transitions: int, seed: int) -> None:
    make_dataset(DATASET, transitions=transitions, seed=seed, workers=1)
    with pytest.raises(UsageError, match=rf"has {transitions} and seed {seed}; make it again with .*--force"):
        demo_dataset()
