"""The seeds of a run: each with its own folder, logs, checkpoints and score; trained alone or side by side."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array

from qdq import algorithms, storage
from qdq.algorithms.problem import Problem
from qdq.config import Config
from qdq.data.episodes import Dataset
from qdq.data.prepare import Prepared
from qdq.data.stream import feed
from qdq.errors import DivergedError
from qdq.evaluation.rollout import Evaluator
from qdq.normalisers import Affine
from qdq.q_distribution import QDistribution
from qdq.training.averaging import averaging
from qdq.training.deployed import deploy
from qdq.training.display import Display
from qdq.training.hooks import Checkpoints, CsvLog, Guard, Interrupt, JsonLines, Metrics, TensorBoardLog
from qdq.training.layout import anywhere, choose, leading, meet
from qdq.training.loop import Step, train
from qdq.training.noise import with_state_noise

INITIALISE, TRAIN = 10, 11  # random roles of a seed
POLICIES = "policies"  # the folder of those that are kept along the way


@dataclass(frozen=True, eq=False)
class Shared:
    """Everything that the seeds of a run share."""

    dataset: Dataset
    config: Config
    prepared: Prepared
    problem: Problem
    distribution: QDistribution | None
    evaluator: Evaluator | None
    display: Display


class Saved(eqx.Module):
    """What a checkpoint holds. The step's number, in its metadata, is also the position in the data."""

    state: Any
    key: Array
    observation_normaliser: Affine
    action_scaler: Affine


class Seed:
    """One seed of a run, from its first step to its outcome."""

    def __init__(self, shared: Shared, number: int, out: Path):
        config = shared.config
        self.shared, self.number, self.folder = shared, number, out / f"seed_{number}"
        self.algorithm = averaging(algorithms.get(config.algorithm_name), config.training.average_rate)
        self.key = jax.random.fold_in(jax.random.key(number), TRAIN)
        identity = {"config": config.to_dict(), "dataset": shared.dataset.sha256, "seed": number}
        self.checkpoints = Checkpoints(
            self.folder / "checkpoints",
            storage.content_hash(identity),
            config.training.checkpoint_every,
            lambda text: shared.display.line(f"seed {number}: {text}"),
        )
        self.guard = _guard(shared)
        self.notes: dict[str, Any] = {}
        self.score: float | None = None
        self.events: TensorBoardLog | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return (self.folder / "outcome.json").exists()

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """The right to write into this seed's folder, which one process, or one distributed run, holds at a time."""
        if not leading():
            yield
            return
        with storage.claim(self.folder / ".lock", f"Seed {self.number} in {self.folder.parent}"):
            for folder in (self.folder, self.folder / "checkpoints", self.folder / POLICIES):
                storage.remove_partial(folder)  # a killed process may have left them
            yield

    def initial(self) -> Any:
        """The state before the first step."""
        key = jax.random.fold_in(jax.random.key(self.number), INITIALISE)
        config, problem = self.shared.config.algorithm, self.shared.problem
        return jax.jit(lambda key: self.algorithm.init(config, problem, key))(key)

    def steps(self) -> tuple[Step, ...]:
        """The cycle of training steps."""
        config = self.shared.config
        cycle = self.algorithm.steps(config.algorithm, self.shared.problem)
        return with_state_noise(cycle, config.training.state_noise)

    def restore(self, initial: Any, step: int | None = None) -> tuple[int, Any]:
        """Go back to the newest checkpoint, or to that of `step`; returns the step and the state."""
        restored = self.checkpoints.restore(self._saved(initial), step)
        self.notes = restored.notes
        return restored.step, restored.state.state

    def _saved(self, state: Any) -> Saved:
        prepared = self.shared.prepared
        return Saved(state, jax.random.key_data(self.key), prepared.observation_normaliser, prepared.action_scaler)

    def begin(self, first: int) -> None:
        """Open the logs after step `first`; what they hold beyond it is dropped."""
        self.guard.warnings += self.notes.get("warnings", [])
        self.guard.settled = self.notes.get("settled", False)
        self.began = time.monotonic() - self.notes.get("seconds", 0.0)
        self.evaluation_seconds = self.notes.get("evaluation_seconds", 0.0)
        self.evaluations = JsonLines(self.folder / "evaluations.jsonl", first)
        self.metrics = CsvLog(self.folder / "metrics.csv", first)
        self.events = TensorBoardLog(self.folder / "tensorboard", first)

    def after(self, step: int, state: Callable[[], Any], metrics: Metrics, stopped: Callable[[], bool]) -> None:
        """What follows a chunk: guard, logs, an evaluation and a checkpoint where they are due."""
        self.guard(step, None, metrics)
        self.metrics(step, None, metrics)
        self._publish(step, metrics)
        if self.shared.config.evaluation.keep_policies and self._scheduled(step):
            self.keep_policy(step, state())
        if self._evaluation_due(step):
            self.evaluate(step, state(), stopped)
        if step % self.checkpoints.every == 0:
            self.save(step, state())

    def _publish(self, step: int, values: Metrics) -> None:
        if self.events is not None:
            self.events(step, None, values)

    def _scheduled(self, step: int) -> bool:
        config = self.shared.config
        return step % config.evaluation.every == 0 or step == config.training.steps

    def _evaluation_due(self, step: int) -> bool:
        missing = all(entry["step"] != step for entry in self.evaluations.entries)
        return self._scheduled(step) and self.shared.evaluator is not None and missing

    def keep_policy(self, step: int, state: Any) -> None:
        """Save the policy of `step`; a run that goes on from before writes the same one again."""
        policy = deploy(self.algorithm.policy(state), self.shared.prepared)
        storage.save_pytree(self.folder / POLICIES / f"step_{step:09d}.safetensors", policy)

    def evaluate(self, step: int, state: Any, stopped: Callable[[], bool]) -> None:
        """Play the episodes of `step`; an evaluation that is stopped is played when the run goes on."""
        evaluator, reference = self.shared.evaluator, self.shared.dataset.metadata.reference
        assert evaluator is not None
        began = time.monotonic()
        policy = jax.device_put(deploy(self.algorithm.policy(state), self.shared.prepared), jax.local_devices()[0])
        episodes = evaluator.play_unless(policy.actor(), 1_000_000 * (self.number + 1) + step, stopped)
        if episodes is None:
            return
        scores = [float(reference.score(value)) for value in episodes.returns] if reference else None
        self.score = float(np.mean(scores if scores is not None else episodes.returns))
        self.evaluations.append({"step": step, "score": self.score, **dataclasses.asdict(episodes), "scores": scores})
        self._publish(step, {"score": self.score})
        self.evaluation_seconds += time.monotonic() - began

    def catch_up(self, step: int, state: Callable[[], Any], stopped: Callable[[], bool]) -> None:
        """Play the evaluation that was stopped at the step where the run goes on."""
        if step and self._evaluation_due(step):
            self.evaluate(step, state(), stopped)

    def save(self, step: int, state: Any) -> None:
        """Write a checkpoint."""
        progress = {
            "step": step,
            "seconds": time.monotonic() - self.began,
            "evaluation_seconds": self.evaluation_seconds,
            "warnings": self.guard.warnings,
        }
        self.checkpoints.save(step, self._saved(state), progress | {"settled": self.guard.settled})
        storage.write_json(self.folder / "progress.json", progress)  # for people and reports

    def finish(self, state: Any) -> None:
        """Write the policy and the outcome."""
        config, display = self.shared.config, self.shared.display
        seconds = time.monotonic() - self.began
        self.save(config.training.steps, state)
        policy = deploy(self.algorithm.policy(state), self.shared.prepared)
        storage.save_pytree(self.folder / "policy.safetensors", policy)
        entries = self.evaluations.entries
        outcome = {
            "seed": self.number,
            "evaluations": [{"step": entry["step"], "score": entry["score"]} for entry in entries],
            "final_score": final_score(entries, config.evaluation.last),
            "warnings": self.guard.warnings,
            "seconds": seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "steps_per_second": config.training.steps / max(seconds - self.evaluation_seconds, 1e-9),
        }
        storage.write_json(self.folder / "outcome.json", outcome)  # last: its presence means that the seed is finished
        if outcome["final_score"] is not None:
            display.line(f"seed {self.number}: final score {outcome['final_score']:.1f}")
        for warning in self.guard.warnings:
            display.line(f"seed {self.number}: warning: {warning}")


def final_score(evaluations: list[dict[str, Any]], last: int) -> float | None:
    """Mean of the last evaluations: the number that is reported, never the best one."""
    if not evaluations:
        return None
    return float(np.mean([entry["score"] for entry in evaluations[-last:]]))


def _guard(shared: Shared) -> Guard:
    windows, magnitude = shared.prepared.windows, max(map(abs, shared.prepared.reward_range))
    discount = getattr(shared.config.algorithm, "discount", 0.99)
    return Guard(shared.config.algorithm_name, windows.minimum, windows.maximum, magnitude, discount)


def run_seeds(shared: Shared, numbers: list[int], out: Path, together: bool) -> None:
    """Train every seed that is not finished: one after the other, or all in one program over all devices."""
    seeds = [Seed(shared, number, out) for number in numbers]
    for seed in seeds:
        if seed.finished:
            shared.display.line(f"seed {seed.number}: finished before")
    waiting = [seed for seed in seeds if not seed.finished]
    if not together:
        for seed in waiting:
            with seed.claim():
                _train_alone(seed)
        return
    with contextlib.ExitStack() as claims:
        for seed in waiting:
            claims.enter_context(seed.claim())
        groups = _in_step(waiting)
        meet("every process has seen where to go on")
        for first, group in groups.items():
            _train_together(group, first)


def _train_alone(seed: Seed) -> None:
    shared = seed.shared
    first, state = seed.restore(seed.initial())
    seed.begin(first)

    def after(step: int, state: Any, metrics: Metrics) -> None:
        seed.after(step, lambda: state, metrics, lambda: interrupt.requested)
        _show(shared, step, metrics, [seed])
        interrupt(step, state, metrics)

    config = shared.config.training
    blocks = feed(shared.prepared.transitions, seed.key, config.batch_size, config.chunk, config.steps)
    with _shown(shared, [seed], first), Interrupt(seed.save) as interrupt, blocks as data:
        seed.catch_up(first, lambda: state, lambda: interrupt.requested)
        interrupt(first, state, {})
        state = train(
            seed.steps(),
            state,
            data,
            key=seed.key,
            batch_size=config.batch_size,
            start=first,
            stop=config.steps,
            chunk=config.chunk,
            hooks=[after],
        )
    seed.finish(state)


def _in_step(seeds: list[Seed]) -> dict[int, list[Seed]]:
    """Seeds by the step from which they go on; those that were trained together meet at their last common checkpoint."""
    newest = {seed: seed.restore(seed.initial())[0] for seed in seeds}
    common = min(newest.values(), default=0)
    if common and all((seed.checkpoints.directory / f"step_{common:09d}.safetensors").exists() for seed in seeds):
        return {common: seeds}
    groups: dict[int, list[Seed]] = {}
    for seed, step in newest.items():
        groups.setdefault(step, []).append(seed)
    return groups


def _train_together(seeds: list[Seed], first: int) -> None:
    """Train seeds side by side from the same step."""
    shared, config = seeds[0].shared, seeds[0].shared.config.training
    layout = choose(len(seeds), config.batch_size)
    if layout is None:
        _train_alone(seeds[0])
        return
    initial = [seed.initial() for seed in seeds]
    states = [seed.restore(state, first)[1] if first else state for seed, state in zip(seeds, initial, strict=True)]
    owned = {member: seed for member, seed in enumerate(seeds) if layout.owns(member)}

    def save(step: int, stacked: Any) -> None:
        for member, seed in owned.items():
            seed.save(step, layout.member(stacked, member))

    def after(step: int, stacked: Any, metrics: dict[str, Array]) -> None:
        rows, diverged = [], []
        for member, seed in owned.items():
            values = {name: float(value) for name, value in layout.member(metrics, member).items()}
            rows.append(values)
            try:
                seed.after(step, lambda member=member: layout.member(stacked, member), values, stopped)
            except DivergedError as error:
                diverged.append((seed, error))
        if diverged:  # the others lose nothing
            for member, seed in owned.items():
                if all(seed is not other for other, _ in diverged):
                    seed.save(step, layout.member(stacked, member))
            seed, error = diverged[0]
            raise DivergedError(f"Seed {seed.number}: {error}")
        means = {name: float(np.mean([row[name] for row in rows])) for name in (rows[0] if rows else {})}
        _show(shared, step, means, list(owned.values()))
        interrupt.requested = anywhere(interrupt.requested)
        interrupt(step, stacked, means)

    def stopped() -> bool:
        return interrupt.requested

    with contextlib.ExitStack() as stack:
        for seed in owned.values():
            seed.begin(first)
        stack.enter_context(_shown(shared, seeds, first))
        interrupt = stack.enter_context(Interrupt(save))
        stacked = layout.place(states)
        for member, seed in owned.items():
            seed.catch_up(first, lambda member=member: states[member], stopped)
        interrupt.requested = anywhere(interrupt.requested)
        interrupt(first, stacked, {})
        stacked = train(
            seeds[0].steps(),
            stacked,
            layout.replicate(shared.prepared.transitions),
            key=layout.place([jax.random.key_data(seed.key) for seed in seeds]),
            batch_size=config.batch_size,
            start=first,
            stop=config.steps,
            chunk=config.chunk,
            hooks=[after],
            layout=layout,
        )
        for member, seed in owned.items():
            seed.finish(layout.member(stacked, member))


@contextlib.contextmanager
def _shown(shared: Shared, seeds: list[Seed], first: int) -> Iterator[None]:
    """The display of some seeds, and the end of their logs, however training ends."""
    numbers = [seed.number for seed in seeds]
    name = f"seed {numbers[0]}" if len(numbers) == 1 else f"seeds {', '.join(map(str, numbers))}"
    shared.display.begin(f"{shared.config.algorithm_name} {name}", shared.config.training.steps, first)
    try:
        yield
    finally:
        shared.display.end()
        for seed in seeds:
            if seed.events is not None:
                seed.events.close()


def _show(shared: Shared, step: int, metrics: Metrics, seeds: list[Seed]) -> None:
    scores = [seed.score for seed in seeds if seed.score is not None]
    if scores:
        unit = "score" if shared.dataset.metadata.reference else "return"
        shared.display.score(f"{unit} {np.mean(scores):.1f}")
    shared.display.update(step, metrics)
