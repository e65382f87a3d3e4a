"""Rolling out policies on all cores, with results that depend on the seed alone and not on the number of workers.

The work is a list of shards: whole episodes of one policy until a quota of transitions is passed, each from a seed of
its own. Worker processes import neither JAX nor anything that does.
"""

import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qdq.data.flatten import flatten_observation, layout_of
from qdq.numpy_networks import Layers
from qdq.online.acting import (
    BEHAVIOURS,
    BehaviourPolicy,
    EpisodicBehaviour,
    UniformBehaviour,
    make_environment,
    scale_action,
)

SHARD = 10_000  # transitions: a few seconds of work


@dataclass(frozen=True)
class Behaviour:
    """Who acts: `uniform`, `waypoints`, or an online algorithm with the layers of its policy."""

    kind: str
    layers: Layers | None = None

    def build(self, environment: Any) -> Any:
        """The policy for that environment."""
        if self.kind == "uniform":
            return UniformBehaviour(environment.action_space.shape[0])
        if self.kind == "waypoints":
            from qdq.data.mazes import WaypointController

            return WaypointController(environment.unwrapped.maze)
        assert self.layers is not None
        return BEHAVIOURS[self.kind](self.layers)


@dataclass(frozen=True)
class Share:
    """One policy's part of a dataset."""

    behaviour: Behaviour
    transitions: int
    entropy: tuple[int, ...]  # what, with a shard's number, decides its randomness


@dataclass(frozen=True)
class Shard:
    """Work for one process."""

    environment_id: str
    environment_options: str  # JSON, so that it can be a key of the cache of environments
    share: int
    behaviour: Behaviour
    transitions: int
    entropy: tuple[int, ...]


class Episodes(NamedTuple):
    """Whole episodes in flat arrays; episode e has `lengths[e]` transitions and one observation more."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    truncations: np.ndarray
    lengths: np.ndarray


def shards_of(environment_id: str, options: Mapping[str, Any], shares: Sequence[Share]) -> list[Shard]:
    """The shares cut into shards, in order."""
    text = json.dumps(dict(options), sort_keys=True)
    return [
        Shard(
            environment_id,
            text,
            index,
            share.behaviour,
            min(SHARD, share.transitions - first),
            (*share.entropy, number),
        )
        for index, share in enumerate(shares)
        for number, first in enumerate(range(0, share.transitions, SHARD))
    ]


def run_shards(shards: Sequence[Shard], workers: int) -> Iterator[tuple[int, Episodes]]:
    """(share, episodes) of every shard, in order."""
    if workers == 1 or len(shards) == 1:
        yield from map(collect_shard, shards)
        return
    # Spawned, not forked: a parent that already runs JAX has threads which a fork would lose.
    with multiprocessing.get_context("spawn").Pool(min(workers, len(shards))) as pool:
        yield from pool.imap(collect_shard, shards)


def collect_shard(shard: Shard) -> tuple[int, Episodes]:
    """Whole episodes until the shard's number of transitions is reached or passed."""
    environment = _environment(shard.environment_id, shard.environment_options)
    environment_seed, noise_seed = (int(word) for word in np.random.SeedSequence(shard.entropy).generate_state(2))
    policy = shard.behaviour.build(environment)
    random = np.random.default_rng(noise_seed)
    episodes: list[Episodes] = []
    total, seed = 0, environment_seed
    while total < shard.transitions:
        # Only the first reset is seeded: the environment's own generator goes on from there.
        episode = roll_out(environment, policy, random, seed if not episodes else None)
        episodes.append(episode)
        total += len(episode.rewards)
    return shard.share, concatenate(episodes)


def roll_out(environment: Any, policy: BehaviourPolicy, random: np.random.Generator, seed: int | None) -> Episodes:
    """One episode with sampled actions, stored in the environment's own units."""
    low, high = environment.action_space.low, environment.action_space.high
    if isinstance(policy, EpisodicBehaviour):
        policy.begin(random)
    observation, _ = environment.reset(seed=seed)
    observations, actions, rewards = [observation], [], []
    terminal = truncated = False
    while not (terminal or truncated):
        action = scale_action(policy.act(observation, random), low, high)
        observation, reward, terminal, truncated, _ = environment.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
    length = len(rewards)
    terminals, truncations = np.zeros((2, length), bool)
    terminals[-1], truncations[-1] = terminal, truncated and not terminal
    if isinstance(observation, Mapping):
        stacked: Any = {key: np.stack([row[key] for row in observations]) for key in observation}
    else:
        stacked = np.stack(observations)
    return Episodes(
        flatten_observation(stacked, layout_of(environment.observation_space)),
        np.asarray(actions, np.float32),
        np.asarray(rewards, np.float32),
        terminals,
        truncations,
        np.asarray([length], np.int64),
    )


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """All episodes of `parts`, in order."""
    return Episodes(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def first_episodes(episodes: Episodes, transitions: int) -> Episodes:
    """Whole episodes from the start until `transitions` is reached or passed; fewer where there are not enough."""
    count = int(np.searchsorted(np.cumsum(episodes.lengths), transitions)) + 1
    lengths = episodes.lengths[:count]
    steps = int(lengths.sum())
    return Episodes(
        episodes.observations[: steps + len(lengths)],
        episodes.actions[:steps],
        episodes.rewards[:steps],
        episodes.terminals[:steps],
        episodes.truncations[:steps],
        lengths,
    )


def cut(episodes: Episodes, transitions: int) -> tuple[Episodes, bool]:
    """Exactly the first `transitions`; the flag says whether that stopped the last episode before its end."""
    episodes = first_episodes(episodes, transitions)
    surplus = len(episodes.rewards) - transitions
    if surplus <= 0:
        return episodes, False
    lengths, truncations = episodes.lengths.copy(), episodes.truncations[:transitions].copy()
    lengths[-1] -= surplus
    truncations[-1] = True
    return (
        Episodes(
            episodes.observations[:-surplus],
            episodes.actions[:transitions],
            episodes.rewards[:transitions],
            episodes.terminals[:transitions],
            truncations,
            lengths,
        ),
        True,
    )


@lru_cache(maxsize=2)
def _environment(environment_id: str, options: str) -> Any:
    """Environments are kept between shards: building one takes longer than a short episode."""
    return make_environment(environment_id, **json.loads(options))
