"""The dataset factory: D4RL's protocol, offline, from the project's own policy snapshots and scripted controllers.

    random        uniformly random actions
    medium        sampled actions of the medium snapshot
    expert        sampled actions of the expert snapshot
    medium-expert the medium set followed by the expert set
    medium-replay sampled actions of the replay snapshots, untrained to medium, in order and in equal shares
    pointmaze     a scripted waypoint controller: direct, by detours, or wandering, with noise

A set depends on its name, size and seed, never on the number of worker processes.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdq.data.mazes import ERRANDS, POINT_MAZE_OPTIONS, POINT_MAZES, SPREADS
from qdq.errors import DataError, UsageError, suggest

if TYPE_CHECKING:
    from qdq.data.episodes import Dataset
    from qdq.online.acting import DensityBehaviour

LEVELS = {
    "random": "uniformly random actions",
    "medium": "a policy with about a third of the expert's score",
    "medium-replay": "the training history up to medium",
    "medium-expert": "half medium, half expert",
    "expert": "the best policy of our online trainer",
}
FAMILIES = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4"}
MADE_BY = "qdq dataset factory"
REPLAY_SIZES = {"hopper": 402_000, "halfcheetah": 202_000, "walker2d": 302_000}

CATALOGUE: dict[str, str] = {
    **{
        f"{family}-{level}": f"{environment}, {description}"
        for family, environment in FAMILIES.items()
        for level, description in LEVELS.items()
    },
    **{
        f"pointmaze-{maze}": f"{environment}, scripted controller of mixed quality, sparse reward, ends at the goal"
        for maze, environment in POINT_MAZES.items()
    },
}


@dataclass(frozen=True)
class Plan:
    """What to roll out for one dataset."""

    name: str
    environment_id: str
    environment_options: dict[str, Any]
    transitions: int
    shares: tuple[Any, ...]  # of type rollouts.Share, whose import is heavier than this module
    details: dict[str, Any]


def default_size(name: str) -> int:
    """D4RL's number of transitions for a dataset of the catalogue."""
    family, _, level = name.partition("-")
    if level == "medium-replay":
        return REPLAY_SIZES[family]
    return 2_000_000 if level == "medium-expert" else 1_000_000


def dataset_id(name: str) -> str:
    """The Minari id of a dataset of the catalogue."""
    family, _, level = name.partition("-")
    return f"qdq/{family}/{level}-v0"


def make_dataset(
    name: str, transitions: int | None = None, seed: int = 0, workers: int | None = None, force: bool = False
) -> Path:
    """Make and store a dataset of the catalogue and return its folder; an existing one stays unless `force`."""
    from qdq.data.minari_format import minari_path, write_minari

    if name not in CATALOGUE:
        raise UsageError(f"The factory has no dataset {name!r}; {suggest(name, tuple(CATALOGUE))}")
    if transitions is None:
        transitions = default_size(name)
    if transitions < 2:
        raise UsageError(f"A dataset of {transitions} transitions is too small; ask for at least 2.")
    workers = (os.cpu_count() or 1) if workers is None else workers
    if workers < 1:
        raise UsageError(f"The number of workers is {workers}, but it must be at least 1.")
    path = minari_path(dataset_id(name))
    if path.exists() and not force:
        print(f"{name} exists already at {path}; add --force to make it again.", file=sys.stderr)
        return path
    dataset = roll_out_plan(plan_dataset(name, transitions, seed), workers)
    description = f"{CATALOGUE[name]}. Made by qdq's dataset factory."
    return write_minari(dataset, dataset_id(name), description=description, force=force)


def plan_dataset(name: str, transitions: int, seed: int) -> Plan:
    """The shares of a dataset and how it is described."""
    from qdq.data.rollouts import Behaviour, Share
    from qdq.online.records import versions
    from qdq.online.snapshots import load_snapshots

    family, _, level = name.partition("-")
    details: dict[str, Any] = {
        "made_by": MADE_BY,
        "seed": seed,
        "versions": {key: value for key, value in versions().items() if key != "jax"},
    }
    if family == "pointmaze":
        details["behaviour"] = "waypoint controller: direct, by detours or wandering, PD control, Gaussian noise"
        details["errands"], details["noise"] = dict(ERRANDS), list(SPREADS)
        share = Share(Behaviour("waypoints"), transitions, (seed, _ROLES["waypoints"], 0))
        return Plan(name, POINT_MAZES[level], dict(POINT_MAZE_OPTIONS), transitions, (share,), details)
    if level == "random":
        details["behaviour"] = "uniformly random actions"
        share = Share(Behaviour("uniform"), transitions, (seed, _ROLES["random"], 0))
        return Plan(name, FAMILIES[family], {}, transitions, (share,), details)

    packed = load_snapshots(family)
    chosen = {
        "medium": [("medium", packed.levels.medium)],
        "expert": [("expert", packed.levels.expert)],
        "medium-expert": [("medium", packed.levels.medium), ("expert", packed.levels.expert)],
        "medium-replay": [("replay", step) for step in packed.levels.replay],
    }[level]
    details["behaviour"] = f"sampled actions of {packed.algorithm} snapshots, in this order, in equal shares"
    details["training_seed"] = packed.seed
    details["snapshots"] = packed.describe([step for _, step in chosen])
    shares = []
    for position, (role, step) in enumerate(chosen):
        size = transitions * (position + 1) // len(chosen) - transitions * position // len(chosen)
        # The medium and expert episodes are the same in their own set and in medium-expert.
        entropy = (seed, _ROLES[role], position if role == "replay" else 0)
        shares.append(Share(Behaviour(packed.algorithm, packed.snapshots[step].layers), size, entropy))
    return Plan(name, packed.environment_id, {}, transitions, tuple(shares), details)


def collecting_policies(dataset: "Dataset") -> list["DensityBehaviour"]:
    """The policies behind a locomotion set of this factory, which have collected equal shares of it.

    None where the set says nothing about them, or where today's snapshots are not those that it was made from.
    """
    from qdq.online.acting import DensityBehaviour
    from qdq.online.snapshots import load_snapshots, snapshot_path

    environment, details = dataset.metadata.environment_id, dataset.metadata.details
    family = next((family for family, known in FAMILIES.items() if known == environment), None)
    described = details.get("snapshots")
    if family is None or details.get("made_by") != MADE_BY or not isinstance(described, list):
        return []
    if not snapshot_path(family).exists():
        return []
    packed = load_snapshots(family)
    known = packed.describe(list(packed.snapshots))
    chosen = [packed.snapshots[one["environment_steps"]] for one in described if one in known]
    sizes = {(len(snapshot.layers[0][0]), len(snapshot.layers[-1][1])) for snapshot in chosen}
    if len(chosen) != len(described) or sizes != {(dataset.observation_size, 2 * dataset.action_size)}:
        return []
    policies = [snapshot.policy(packed.algorithm) for snapshot in chosen]
    return [policy for policy in policies if isinstance(policy, DensityBehaviour)]


_ROLES = {"random": 0, "medium": 1, "expert": 2, "replay": 3, "waypoints": 4}


def roll_out_plan(plan: Plan, workers: int) -> Any:
    """The dataset of a plan, with a progress bar on stderr."""
    from qdq.data.episodes import Dataset, Metadata
    from qdq.data.flatten import layout_of
    from qdq.data.references import d4rl_reference
    from qdq.data.rollouts import Episodes, concatenate, cut, first_episodes, run_shards, shards_of
    from qdq.data.tasks import PAPER_TASKS
    from qdq.online.acting import make_environment

    environment = make_environment(plan.environment_id, **plan.environment_options)
    shards = shards_of(plan.environment_id, plan.environment_options, plan.shares)
    collected: list[list[Episodes]] = [[] for _ in plan.shares]
    for index, episodes in _progress(plan, shards, run_shards(shards, workers)):
        collected[index].append(episodes)

    # Shares end with whole episodes, so that only the very last episode can be cut.
    parts: list[Episodes] = []
    total = target = 0
    for share, shards_of_share in zip(plan.shares, collected, strict=True):
        target += share.transitions
        if total < target:
            parts.append(first_episodes(concatenate(shards_of_share), target - total))
            total += len(parts[-1].rewards)
    episodes, last_episode_cut = cut(concatenate(parts), plan.transitions)
    if len(episodes.rewards) != plan.transitions:
        raise DataError(
            f"The factory collected {len(episodes.rewards)} of {plan.transitions} transitions of {plan.name}."
        )
    layout = layout_of(environment.observation_space)
    details = dict(plan.details)
    if len(layout.parts) > 1:
        details["observation_layout"] = layout.to_json()
    if last_episode_cut:
        details["last_episode_cut"] = True
    metadata = Metadata(
        name=plan.name,
        source="factory",
        environment_id=plan.environment_id,
        environment_options=plan.environment_options,
        task=plan.name if plan.name in PAPER_TASKS else None,
        reference=d4rl_reference(plan.environment_id),
        details=details,
    )
    low, high = environment.action_space.low.astype("float32"), environment.action_space.high.astype("float32")
    return Dataset(*episodes, action_low=low, action_high=high, metadata=metadata)


def _progress(plan: Plan, shards: list[Any], results: Iterator[Any]) -> Iterator[Any]:
    """Pass results on, showing how many transitions are there."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(plan.name, total=sum(shard.transitions for shard in shards))
        for shard, result in zip(shards, results, strict=True):
            progress.advance(task, shard.transitions)
            yield result
