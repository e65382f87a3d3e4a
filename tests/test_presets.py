"""Every preset builds, the literal ones hold the published numbers, and bad keys are explained."""

from typing import Any

import numpy as np
import pytest

from qdq import algorithms, presets
from qdq import config as configuration
from qdq.data.episodes import from_arrays
from qdq.errors import UsageError


@pytest.mark.parametrize("name", list(presets.PRESETS))
@pytest.mark.parametrize("algorithm", list(algorithms.ALGORITHMS))
def test_every_preset_builds(name: str, algorithm: str) -> None:
    config, sources = presets.build(algorithm, name)
    assert set(sources) == set(configuration.keys(config))
    assert all(sources.values())
    assert configuration.from_dict(config.to_dict()) == config


def test_there_are_two_literal_presets_for_each_of_the_15_tasks() -> None:
    assert len(presets.TASKS) == 15
    assert sum(name.startswith("paper/") for name in presets.PRESETS) == 15
    assert sum(name.startswith("release/") for name in presets.PRESETS) == 15


@pytest.mark.parametrize(
    ("name", "alpha", "beta", "entropy"),
    [
        ("paper/halfcheetah-medium", 0.99, 0.9, 0.0),
        ("paper/halfcheetah-medium-expert", 0.99, 0.9, 1.0),
        ("paper/hopper-medium", 0.99, 0.8, 1.0),
        ("paper/hopper-medium-expert", 0.95, 0.8, 1.0),
        ("paper/walker2d-medium-replay", 0.95, 0.9, 1.0),
        ("paper/antmaze-large-play", 0.99, 0.9, 1.0),
        ("release/halfcheetah-medium-replay", 0.992, 0.9, 0.1),
        ("release/hopper-medium-replay", 0.992, 0.8, 0.8),
        ("release/walker2d-medium-expert", 0.992, 0.8, 2.0),
        ("release/antmaze-umaze-diverse", 0.01, 0.9, 1.5),
        ("release/antmaze-medium-diverse", 0.99, 0.9, 1.0),
    ],
)
def test_published_numbers(name: str, alpha: float, beta: float, entropy: float) -> None:
    algorithm = presets.build("qdq", name)[0].algorithm
    assert (algorithm.alpha, algorithm.beta, algorithm.entropy_weight) == (alpha, beta, entropy)


def test_literal_presets_have_nothing_of_our_calibration() -> None:
    for task in presets.TASKS:
        for name in (f"paper/{task}", f"release/{task}"):
            config = presets.build("qdq", name)[0]
            assert (config.q_distribution.learner, config.q_dataset.stride) == ("distilled", 10)
            assert config.quantile.calibration_share == 0.0


def test_paper_has_nothing_of_the_release() -> None:
    for task in presets.TASKS:
        config = presets.build("qdq", f"paper/{task}")[0]
        settings = config.algorithm
        assert settings.penalty == "paper"
        extras = (settings.gradient_clip, settings.critic_layer_norm, settings.policy_cosine_decay)
        assert not any((*extras, settings.sample_target_action))
        assert (config.diffusion.steps, config.consistency.steps, config.training.steps) == (80_000, 160_000, 1_000_000)
        assert (config.uncertainty.rule, config.uncertainty.samples) == ("monte_carlo", 50)


def test_release_antmaze_details() -> None:
    large = presets.build("qdq", "release/antmaze-large-diverse")[0].algorithm
    assert (large.gradient_clip, large.critic_layer_norm, large.critic_hidden, large.objective) == (
        3.0,
        True,
        (256, 256),
        "awr",
    )
    diverse = presets.build("qdq", "release/antmaze-umaze-diverse")[0].algorithm
    assert (diverse.objective, diverse.penalty) == ("eq9", "release_umaze_diverse")


def test_task_chooses_the_literal_preset() -> None:
    assert presets.build("qdq", "paper", "hopper-medium")[0].preset == "paper/hopper-medium"
    with pytest.raises(UsageError, match="choose one explicitly"):
        presets.build("qdq", "paper", None)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.alhpa=0.9", "did you mean 'algorithm.alpha'"),
        ("algorithm.alpha", "not of the form"),
        ("algorithm.alpha=high", "needs a finite number"),
        ("algorithm.alpha=1.5", "between 0 and 1"),
        ("algorithm.penalty=printed", "one of signed, paper"),
        ("training.steps=0", "at least 1"),
        ("training.chunk=3", "even"),
        ("evaluation.every=333", "multiple of training.chunk"),
        ("algorithm.policy_hidden=256,x", "whole numbers"),
        ("q_distribution.hidden=100", "multiples of q_distribution.groups"),
        ("data.normalise_states=maybe", "true or false"),
        ("q_distribution.groups=0", "at least 1"),
        ("quantile.steps=-200", "at least 1"),
        ("quantile.calibration_share=0.6", "between 0 and 0.5"),
        ("quantile.average_share=-1", "between 0 and 1"),
        ("quantile.level_spread=0", "between 0.5 and 2"),
        ("quantile.weight_decay=-1", "between 0 and 100"),
        ("quantile.steps=300", "multiple of 200"),
        ("uncertainty.samples=1", "at least 2"),
        ("algorithm.target_rate=7", "between 0 and 1"),
        ("algorithm.largest_deviation=-1", "must not be negative"),
        ("algorithm.extraction_share=-1", "between 0 and 1"),
    ],
)
def test_bad_overrides_are_explained(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        presets.build("qdq", "fast", overrides=(override,))


def test_overrides_are_typed() -> None:
    config, sources = presets.build(
        "qdq",
        "fast",
        overrides=("algorithm.policy_hidden=64,32", "training.batch_size=1e2", "data.normalise_states=False"),
    )
    assert config.algorithm.policy_hidden == (64, 32)
    assert config.training.batch_size == 100
    assert config.data.normalise_states is False
    assert sources["training.batch_size"] == "command line"


def test_unknown_names_suggest() -> None:
    with pytest.raises(UsageError, match="did you mean 'fast'"):
        presets.build("qdq", "fsat")
    with pytest.raises(UsageError, match="did you mean 'td3-bc'"):
        presets.build("td3bc", "fast")


def test_our_presets_fit_windows_to_short_episodes() -> None:
    """Unless somebody chose a width; what is published stays as it is."""
    step = np.arange(240)
    data = from_arrays(step[:, None] * 1.0, np.sin(step)[:, None], np.cos(step), step < 0, step % 24 == 23)

    def width(*arguments: Any) -> tuple[int, str]:
        config, sources = presets.build_for(data, *arguments)
        return config.q_dataset.width, sources["q_dataset.width"]

    assert width("qdq", "fast") == (11, presets.FITTED)  # one step of an episode is lost: what followed it is unknown
    assert width("qdq", "fast", ("q_dataset.width=200",)) == (200, presets.COMMAND_LINE)
    assert width("qdq", "paper/hopper-medium")[0] == 200
    long = from_arrays(step[:, None] * 1.0, np.sin(step)[:, None], np.cos(step), step == 239)
    assert presets.build_for(long, "qdq")[0].q_dataset.width == 200
