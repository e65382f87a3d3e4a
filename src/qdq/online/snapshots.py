"""Snapshots of policies: saving them during an online run, choosing D4RL's levels among them, and the packed sets.

    expert : the best of the run, by ten fresh episodes among the five best by the run's own evaluations
    medium : the snapshot nearest to a third of the expert's score, before the run first comes near the expert
    replay : snapshots spread evenly from the untrained policy to medium, in the order of training

Scores are of sampled actions, as the factory's data is collected with sampled actions. Nothing here imports JAX.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdq.data.references import d4rl_reference
from qdq.errors import DataError, UsageError, suggest
from qdq.numpy_networks import Layers
from qdq.online.acting import BEHAVIOURS, BehaviourPolicy, evaluate, make_environment
from qdq.online.records import read_evaluations, versions
from qdq.storage import atomic_path, load_arrays, parse_json, read_json


@dataclass(frozen=True)
class Recipe:
    """The online run behind a family's snapshots."""

    environment_id: str
    seed: int
    steps: int
    snapshot_every: int
    updates_per_block: int = 100  # for every 200 environment steps
    replay_count: int = 12  # snapshots of medium-replay
    algorithm: str = "sac"
    algorithm_settings: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"{self.environment_id}-{self.algorithm}-{self.seed}"


RECIPES = {
    # With the default exploration our run of seed 1 stayed in a lunge-and-fall optimum (score 22) from 130k to 540k steps.
    "hopper": Recipe(
        "Hopper-v4", 2, 320_000, 10_000, updates_per_block=200, algorithm_settings={"entropy_per_dimension": -0.5}
    ),
    # HalfCheetah passes the medium level early, so that the snapshots before it need a shorter interval.
    # With LayerNorm our run of seed 1 was at 28 after 80k steps and at 36 after 240k.
    "halfcheetah": Recipe(
        "HalfCheetah-v4", 2, 200_000, 2_000, updates_per_block=200, algorithm_settings={"critic_layer_norm": False}
    ),
    "walker2d": Recipe("Walker2d-v4", 1, 400_000, 10_000, updates_per_block=200, replay_count=10),
}

CANDIDATES = 5
EPISODES = 10
SELECTION_SEED = 20_000  # episodes that neither training nor the run's evaluations have seen
NEAR_EXPERT = 0.9


@dataclass(frozen=True)
class Levels:
    """The chosen snapshots, by their environment steps."""

    expert: int
    medium: int
    replay: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """One policy of a set."""

    environment_steps: int
    score: float
    mean_return: float
    layers: Layers

    def policy(self, algorithm: str) -> BehaviourPolicy:
        """The policy, ready to act."""
        return BEHAVIOURS[algorithm](self.layers)


@dataclass(frozen=True)
class SnapshotSet:
    """The packed snapshots of one environment."""

    environment_id: str
    algorithm: str
    seed: int
    levels: Levels
    snapshots: dict[int, Snapshot]
    versions: dict[str, str]

    def describe(self, steps: Sequence[int]) -> list[dict[str, float]]:
        """Environment steps and measured score of some snapshots, for a dataset's metadata."""
        return [{"environment_steps": step, "score": round(self.snapshots[step].score, 2)} for step in steps]


def save_snapshot(folder: Path, layers: Layers, metadata: dict[str, Any]) -> Path:
    """Save a policy of an online run in float16."""
    from safetensors.numpy import save_file

    path = folder / "snapshots" / f"{metadata['environment_steps']:08d}.safetensors"
    with atomic_path(path) as temporary:
        save_file(_arrays(layers), str(temporary), metadata={"snapshot": json.dumps(metadata)})
    return path


def load_snapshot(folder: Path, environment_steps: int) -> Layers:
    """The layers of one snapshot of an online run."""
    path = folder / "snapshots" / f"{environment_steps:08d}.safetensors"
    try:
        return _layers(load_arrays(path)[0])
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} is not a snapshot of a policy ({error}); make it again with `qdq online`.") from error


def select_levels(
    evaluations: Sequence[tuple[int, float]], measure: Callable[[int], float], replay_count: int
) -> Levels:
    """Choose levels among (environment steps, score) in order; `measure` scores one of them more carefully."""
    if len(evaluations) <= replay_count:
        raise DataError(
            f"The online run has {len(evaluations)} snapshots, but the levels need more than {replay_count}; "
            "train longer."
        )
    steps = np.asarray([step for step, _ in evaluations])
    scores = np.asarray([score for _, score in evaluations])
    best = sorted(steps[np.argsort(-scores, kind="stable")[:CANDIDATES]])
    expert_scores = [measure(int(step)) for step in best]
    expert = int(best[int(np.argmax(expert_scores))])
    expert_score = max(expert_scores)

    # Before the expert's level is first reached, and late enough for the replay snapshots to be distinct.
    limit = (
        int(np.argmax(scores >= NEAR_EXPERT * expert_score))
        if (scores >= NEAR_EXPERT * expert_score).any()
        else len(steps)
    )
    early = np.arange(replay_count - 1, max(limit, replay_count))
    near = early[np.argsort(np.abs(scores[early] - expert_score / 3), kind="stable")[:CANDIDATES]]
    distances = {int(index): abs(measure(int(steps[index])) - expert_score / 3) for index in sorted(near)}
    medium = min(distances, key=lambda index: distances[index])
    replay = np.round(np.linspace(0, medium, replay_count)).astype(int)
    return Levels(expert, int(steps[medium]), tuple(int(steps[index]) for index in replay))


def pack_snapshots(run: Path, path: Path, replay_count: int, report: Callable[[str], None] = print) -> SnapshotSet:
    """Choose the levels of an online run, measure each chosen snapshot, and write them as one file."""
    from safetensors.numpy import save_file

    content = read_json(run / "config.json")
    config = content.get("run") if isinstance(content, dict) else None
    if not isinstance(config, dict) or not isinstance(config.get("environment_id"), str):
        raise DataError(f"{run} is not a folder of an online run (its config.json says no environment).")
    environment_id, algorithm = config["environment_id"], config.get("algorithm")
    if algorithm not in BEHAVIOURS:
        raise DataError(
            f"{run} was made by the unknown algorithm {algorithm!r}; {suggest(str(algorithm), tuple(BEHAVIOURS))}"
        )
    reference = d4rl_reference(environment_id)
    if reference is None:
        raise UsageError(
            f"{run} trained on {environment_id}, for which D4RL gives no reference returns to measure levels by."
        )
    environment = make_environment(environment_id)
    measured: dict[int, float] = {}

    def measure(environment_steps: int) -> float:
        """The mean return of ten fresh episodes, once per snapshot; as a score."""
        if environment_steps not in measured:
            policy = BEHAVIOURS[algorithm](load_snapshot(run, environment_steps))
            returns = evaluate(
                environment, policy, EPISODES, first_seed=SELECTION_SEED, noise_seed=SELECTION_SEED + environment_steps
            )
            measured[environment_steps] = float(np.mean(returns))
            score = reference.score(measured[environment_steps])
            report(f"{environment_id}: snapshot at {environment_steps:,} steps scores {score:.1f}")
        return float(reference.score(measured[environment_steps]))

    evaluations = [(row["environment_steps"], row["score"]) for row in read_evaluations(run)]
    levels = select_levels(evaluations, measure, replay_count)
    chosen = sorted({levels.expert, levels.medium, *levels.replay})
    described = [{"environment_steps": step, "score": measure(step), "return": measured[step]} for step in chosen]
    metadata = {
        "environment_id": environment_id,
        "algorithm": algorithm,
        "seed": config.get("seed"),
        "evaluation": f"mean of {EPISODES} episodes with sampled actions",
        "levels": {"expert": levels.expert, "medium": levels.medium, "replay": list(levels.replay)},
        "snapshots": described,
        "versions": {name: value for name, value in versions().items() if name in ("gymnasium", "mujoco")},
    }
    arrays = {
        f"{step:08d}.{name}": array for step in chosen for name, array in _arrays(load_snapshot(run, step)).items()
    }
    with atomic_path(path) as temporary:
        save_file(arrays, str(temporary), metadata={"set": json.dumps(metadata)})
    return read_snapshot_set(path)


def snapshot_path(family: str) -> Path:
    """Where the packed snapshots of a family are looked for."""
    folder = os.environ.get("QDQ_SNAPSHOTS")
    shipped = Path(__file__).parents[1] / "data" / "snapshots"
    return (Path(folder).expanduser() if folder else shipped) / f"{family}.safetensors"


def load_snapshots(family: str) -> SnapshotSet:
    """The packed snapshots of hopper, halfcheetah or walker2d, from QDQ_SNAPSHOTS if set, else as shipped."""
    if family not in RECIPES:
        raise UsageError(f"There are no snapshots for {family!r}; {suggest(family, tuple(RECIPES))}")
    path = snapshot_path(family)
    if not path.exists():
        raise DataError(f"{path} does not exist; make it with `qdq snapshots`, and point QDQ_SNAPSHOTS at its folder.")
    return read_snapshot_set(path)


def read_snapshot_set(path: Path) -> SnapshotSet:
    """Read a file written by `pack_snapshots`."""
    arrays, metadata = load_arrays(path)
    try:
        content = parse_json(metadata["set"])
        levels = content["levels"]
        snapshots = {}
        for entry in content["snapshots"]:
            step = int(entry["environment_steps"])
            prefix = f"{step:08d}."
            own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            snapshots[step] = Snapshot(step, float(entry["score"]), float(entry["return"]), _layers(own))
            if not np.isfinite([snapshots[step].score, snapshots[step].mean_return]).all():
                raise ValueError(f"snapshot {step} has no score")
        chosen = Levels(int(levels["expert"]), int(levels["medium"]), tuple(int(step) for step in levels["replay"]))
        if missing := {chosen.expert, chosen.medium, *chosen.replay} - set(snapshots):
            raise ValueError(f"snapshot {min(missing)} is missing")
        if content["algorithm"] not in BEHAVIOURS or not isinstance(content["environment_id"], str):
            raise ValueError("its algorithm or its environment is unknown")
        return SnapshotSet(
            content["environment_id"],
            content["algorithm"],
            int(content["seed"]),
            chosen,
            snapshots,
            dict(content["versions"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a set of snapshots ({error!r}); make it again with `qdq snapshots`.") from error


def _arrays(layers: Layers) -> dict[str, np.ndarray]:
    arrays = {}
    for number, (weight, bias) in enumerate(layers):
        arrays[f"layers.{number}.weight"] = np.ascontiguousarray(weight, np.float16)
        arrays[f"layers.{number}.bias"] = np.ascontiguousarray(bias, np.float16)
    return arrays


def _layers(arrays: dict[str, np.ndarray]) -> Layers:
    """The layers of a network; arrays that make none are a `KeyError` or a `ValueError`."""
    layers: Layers = []
    for number in range(max(1, len(arrays) // 2)):
        weight, bias = (arrays[f"layers.{number}.{part}"] for part in ("weight", "bias"))
        if weight.dtype.kind != "f" or bias.dtype.kind != "f" or weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise ValueError(f"layer {number} has weights of shape {weight.shape} and biases of shape {bias.shape}")
        if not weight.size or (layers and len(weight) != len(layers[-1][1])):
            raise ValueError(f"layer {number} does not follow from the layer before it")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError(f"layer {number} holds NaN or infinity")
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
    return layers
