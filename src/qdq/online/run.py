"""An online run: collect, train, evaluate, keep snapshots of the policy, and go on after an interruption.

A run is a folder:

    config.json          settings and versions
    metrics.csv          one row every 1,000 environment steps
    evaluations.jsonl    one line per snapshot: stochastic returns of the policy
    snapshots/           the policy in float16, every `snapshot_every` environment steps, from the untrained one on
    checkpoints/         networks, optimisers and replay buffer; the newest two

Environment steps are counted from the first step of the policy: the random warm-up comes before step 0.
"""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import print as rich_print

from qdq.data.batches import ReplayBuffer
from qdq.data.references import d4rl_reference
from qdq.errors import DataError, InterruptedRun, UsageError, suggest
from qdq.numpy_networks import host_layers
from qdq.online import sac, td3
from qdq.online.acting import BEHAVIOURS, UniformBehaviour, evaluate, make_environment
from qdq.online.collect import Collector
from qdq.online.records import RunRecords, versions
from qdq.online.snapshots import save_snapshot
from qdq.storage import load_pytree, read_json, save_pytree, write_json
from qdq.training.loop import train

ALGORITHMS: dict[str, ModuleType] = {"sac": sac, "td3": td3}
EVALUATION_SEED = 10_000  # far from the seeds of training


@dataclass(frozen=True)
class RunConfig:
    """Settings of an online run; intervals are in environment steps and multiples of `block`."""

    environment_id: str
    algorithm: str = "sac"
    steps: int = 1_000_000
    seed: int = 1
    snapshot_every: int = 10_000
    checkpoint_every: int = 50_000
    evaluation_episodes: int = 3
    warmup: int = 5_000  # uniformly random environment steps before training
    block: int = 200  # environment steps between two rounds of updates
    updates_per_block: int = 100
    capacity: int = 1_000_000  # transitions kept for replay
    algorithm_settings: dict[str, Any] = field(default_factory=dict)  # what differs from the algorithm's own defaults

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UsageError(
                f"There is no online algorithm {self.algorithm!r}; {suggest(self.algorithm, tuple(ALGORITHMS))}"
            )
        known = tuple(entry.name for entry in fields(ALGORITHMS[self.algorithm].Config))
        for name in self.algorithm_settings:
            if name not in known:
                raise UsageError(f"{self.algorithm} has no setting {name!r}; {suggest(name, known)}")
        for name in ("steps", "snapshot_every", "checkpoint_every", "warmup", "capacity"):
            value = getattr(self, name)
            if value <= 0 or value % self.block:
                raise UsageError(f"The option {name} is {value}, but it must be a positive multiple of {self.block}.")

    def updates(self, environment_steps: int) -> int:
        """The number of updates done after so many environment steps."""
        return environment_steps // self.block * self.updates_per_block

    def environment_steps(self, updates: int) -> int:
        """The number of environment steps done after so many updates."""
        return updates // self.updates_per_block * self.block


def train_online(
    environment_id: str,
    algorithm: str = "sac",
    steps: int = 1_000_000,
    seed: int = 1,
    out: Path | None = None,
    *,
    resume: bool = False,
    **settings: Any,
) -> Path:
    """Train a policy online and return the run's folder; `settings` are further fields of `RunConfig`."""
    config = RunConfig(environment_id, algorithm, steps, seed, **settings)
    folder = Path(out) if out is not None else Path("runs") / f"{environment_id}-{algorithm}-{seed}"
    environment, evaluation_environment = make_environment(environment_id), make_environment(environment_id)
    observation_size, action_size = _sizes(environment, environment_id)
    _prepare(folder, config, resume)

    method = ALGORITHMS[algorithm]
    settings_of_method = method.Config(**config.algorithm_settings)
    key = jax.random.key(seed)
    state = method.init(settings_of_method, observation_size, action_size, jax.random.fold_in(key, 0))
    buffer = ReplayBuffer.empty(config.capacity, observation_size, action_size)
    records = RunRecords(folder, d4rl_reference(environment_id))
    restored = _restore(folder, config, state, buffer) if resume else None
    if restored is None:
        start, collector = 0, Collector(environment, seed)
        uniform = UniformBehaviour(action_size)
        for _ in range(config.warmup // config.block):
            buffer = buffer.insert(collector.block(config.block, uniform))
    else:
        start, state, buffer = restored
        # The simulator's state is not part of a checkpoint: a new episode starts, from a seed of its own.
        collector = Collector(environment, int(np.random.SeedSequence([seed, start]).generate_state(1)[0]))
    records.rewind(start)
    if start >= steps:
        rich_print(f"{folder} is complete: {start:,} environment steps.")
        return folder

    make_behaviour, began = BEHAVIOURS[algorithm], time.monotonic()

    def collect(updates: int, state: Any) -> ReplayBuffer:
        nonlocal buffer
        del updates
        buffer = buffer.insert(collector.block(config.block, make_behaviour(host_layers(state.policy.network))))
        return buffer

    def snapshot(updates: int, state: Any) -> None:
        reached = config.environment_steps(updates)
        layers = host_layers(state.policy.network)
        returns = evaluate(
            evaluation_environment,
            make_behaviour(layers),
            config.evaluation_episodes,
            first_seed=EVALUATION_SEED,
            noise_seed=updates,
        )
        row = records.evaluation(reached, returns, collector.returns[-10:])
        save_snapshot(folder, layers, {**asdict(config), "environment_steps": reached, "score": row["score"]})
        speed = (reached - start) / max(time.monotonic() - began, 1e-9)
        left = f", about {(steps - reached) / speed / 60:.0f} min left" if speed else ""
        value = f"return {row['return']:.1f}" if row["score"] is None else f"score {row['score']:.1f}"
        rich_print(f"{environment_id} {algorithm} seed {seed}: {reached:,} of {steps:,} steps, {value}{left}")

    with _stop_requests() as stop:

        def after_chunk(updates: int, state: Any, metrics: dict[str, float]) -> None:
            reached = config.environment_steps(updates)
            records.metrics(reached, updates, metrics, collector.returns)
            if reached % config.snapshot_every == 0 or reached == steps:
                snapshot(updates, state)
            if reached % config.checkpoint_every == 0 or reached == steps or stop:
                _checkpoint(folder, config, reached, state, buffer)
            if stop and reached < steps:
                raise InterruptedRun(
                    f"Stopped at {reached:,} of {steps:,} environment steps; go on with --out {folder} --resume."
                )

        if start == 0:
            snapshot(0, state)
        train(
            method.steps(settings_of_method, action_size),
            state,
            collect,
            key=jax.random.fold_in(key, 1),
            batch_size=settings_of_method.batch_size,
            start=config.updates(start),
            stop=config.updates(steps),
            chunk=config.updates_per_block,
            hooks=[after_chunk],
        )
    return folder


def _sizes(environment: Any, environment_id: str) -> tuple[int, int]:
    from gymnasium.spaces import Box

    observation, action = environment.observation_space, environment.action_space
    for label, space in (("observation", observation), ("action", action)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UsageError(
                f"{environment_id} has the {label} space {space}, but online training needs vectors (a flat Box)."
            )
    return observation.shape[0], action.shape[0]


def _prepare(folder: Path, config: RunConfig, resume: bool) -> None:
    """Create the folder, or check that a resumed one has the same settings (apart from `steps`, which may grow)."""
    path = folder / "config.json"
    if folder.exists() and any(folder.iterdir()) and not resume:
        raise UsageError(f"{folder} exists already; choose another --out, or add --resume to go on with it.")
    algorithm = ALGORITHMS[config.algorithm].Config(**config.algorithm_settings)
    content = {"run": asdict(config), "algorithm": asdict(algorithm), "versions": versions()}
    if path.exists():
        saved = read_json(path)
        for group in ("run", "algorithm"):
            # As JSON, where tuples are lists; settings of the algorithm are compared with its defaults filled in.
            for name, value in json.loads(json.dumps(content[group])).items():
                before = saved.get(group, {}).get(name)
                if name not in ("steps", "algorithm_settings") and before != value:
                    raise UsageError(
                        f"{folder} was started with {name} = {before}, not {value}; resume with the same settings."
                    )
    write_json(path, content)


def _checkpoint(folder: Path, config: RunConfig, reached: int, state: Any, buffer: ReplayBuffer) -> None:
    """Save everything a resumed run needs, then drop all but the newest two checkpoints."""
    filled = min(config.warmup + reached, config.capacity)
    tree = {"state": state, "transitions": jax.tree.map(partial(_first_rows, count=filled), buffer.transitions)}
    save_pytree(folder / "checkpoints" / f"{reached:08d}.safetensors", tree, {"environment_steps": str(reached)})
    for old in sorted((folder / "checkpoints").glob("*.safetensors"))[:-2]:
        old.unlink()


def _first_rows(array: Any, count: int) -> np.ndarray:
    """On the host, because a slice on the device would be compiled anew for every size."""
    return np.asarray(array)[:count]


def _padded(array: Any, count: int) -> Any:
    """`array` with rows of zeros appended up to `count`."""
    whole = np.zeros((count, *array.shape[1:]), np.float32)
    whole[: len(array)] = array
    return jnp.asarray(whole)


def _restore(folder: Path, config: RunConfig, state: Any, buffer: ReplayBuffer) -> tuple[int, Any, ReplayBuffer] | None:
    """Environment steps, state and replay buffer of the newest readable checkpoint; None where there is none."""
    failure: DataError | None = None
    for path in sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True):
        reached = int(path.stem)
        filled = min(config.warmup + reached, config.capacity)
        like = {"state": state, "transitions": jax.tree.map(partial(_first_rows, count=filled), buffer.transitions)}
        try:
            tree, _ = load_pytree(path, like)
        except DataError as error:
            rich_print(f"{error} Trying the checkpoint before it.")
            failure = error
            continue
        transitions = jax.tree.map(partial(_padded, count=config.capacity), tree["transitions"])
        restored = ReplayBuffer(transitions, jnp.asarray(config.warmup + reached, jnp.int32))
        return reached, tree["state"], restored
    if failure is not None:
        raise failure
    return None


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """A list that fills when the user asks to stop, so that the run ends between two chunks; twice stops at once."""
    requests: list[int] = []

    def note(number: int, frame: Any) -> None:
        del frame
        if requests:
            raise KeyboardInterrupt
        requests.append(number)

    try:
        previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # only the main thread may listen for signals
        yield requests
        return
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
