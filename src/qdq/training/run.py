"""A run: all stages for one dataset and algorithm, seed after seed, into one folder that tells the whole story."""

import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq import algorithms, storage, uncertainty
from qdq.algorithms.problem import Problem
from qdq.config import Config
from qdq.data.episodes import Dataset
from qdq.data.inspect import CARD_FILE, inspect_dataset
from qdq.data.prepare import Prepared, prepare
from qdq.data.stream import feed
from qdq.errors import UsageError
from qdq.evaluation.rollout import Evaluator
from qdq.evaluation.statistics import summary
from qdq.normalisers import Affine
from qdq.q_distribution import QDistribution
from qdq.training import stages
from qdq.training.display import Display
from qdq.training.hooks import Checkpoints, CsvLog, Guard, Interrupt, JsonLines, TensorBoardLog
from qdq.training.loop import train
from qdq.training.versions import machine, revision, versions

FORMAT = 1
INITIALISE, TRAIN = 10, 11  # random roles of a seed


class DeployedPolicy(eqx.Module):
    """A policy with the normalisers it was trained with: raw observations in, actions in their own units out."""

    network: Any
    observation_normaliser: Affine
    action_scaler: Affine

    def __call__(self, observations: Any) -> jax.Array:
        return _act(jax.tree.structure(self), jax.tree.leaves(self), observations)

    def actor(self) -> Callable[[np.ndarray], np.ndarray]:
        """The policy as a function on NumPy arrays, for loops in which every microsecond counts."""
        leaves, structure = jax.tree.flatten(self)
        return lambda observations: np.asarray(_act(structure, leaves, observations))


@partial(jax.jit, static_argnums=0)
def _act(structure: Any, leaves: list[jax.Array], observations: Any) -> jax.Array:
    """Compiled once for all weights of one structure; a flat list of arguments is passed on fastest."""
    policy: DeployedPolicy = jax.tree.unflatten(structure, leaves)
    normalised = policy.observation_normaliser.forward(observations)
    return policy.action_scaler.inverse(jnp.clip(policy.network(normalised), -1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Stage:
    """Everything that the seeds of a run share."""

    dataset: Dataset
    config: Config
    prepared: Prepared
    problem: Problem
    distribution: QDistribution | None


def execute(
    dataset: Dataset,
    config: Config,
    seeds: list[int],
    out: Path,
    *,
    resume: bool = False,
    display: Display,
    evaluate: bool = True,
    memory: int | None = None,
    origin: str | None = None,
) -> dict[str, Any]:
    """Run every stage and seed into the folder `out` and return the result that is written there.

    A dataset that needs more than `memory` bytes is streamed. `origin` is how the dataset was named on the command line,
    for the record of how to make the run again.
    """
    fresh = _check_folder(out, config, dataset, resume)
    began = time.monotonic()
    prepared = prepare(dataset, config, memory)
    if not fresh:
        _check_stream(out, prepared)
    if prepared.streamed:
        display.line(
            f"streamed: blocks of {prepared.streamed['block_transitions']:,} of {dataset.transitions:,} transitions"
        )
    timings: dict[str, Any] = {
        "q_dataset": {"seconds": time.monotonic() - began, "windows": len(prepared.windows.index)}
    }
    evaluator = None
    if evaluate and dataset.metadata.environment_id is not None:
        evaluator = Evaluator(
            dataset.metadata, config.evaluation.episodes, dataset.observation_size, dataset.action_size
        )
    if fresh:  # only now: what is wrong with the request has shown itself, and nothing is left half-written
        _create_folder(out, config, dataset, seeds, prepared, origin)
    if prepared.streamed is None and not (out / CARD_FILE).exists():  # a card would need the whole dataset in memory
        q = config.q_dataset
        storage.write_json(out / CARD_FILE, inspect_dataset(dataset, q.width, q.stride, q.discount))
    distribution, rule = None, config.uncertainty
    if config.algorithm_name in algorithms.USES_Q_DISTRIBUTION and getattr(config.algorithm, "penalty", "") != "none":
        if not (out / "q_distribution" / "rule.json").exists():
            _adopt(stages.learn_distribution(prepared, dataset.sha256, config, display), prepared, config, out, display)
        distribution, rule, manifest = load_adopted(out, config, dataset.observation_size, dataset.action_size)
        timings |= manifest["stages"]
    problem = _problem(prepared, config, distribution, rule)
    shared = Stage(dataset, config, prepared, problem, distribution)
    for seed in seeds:
        _run_seed(shared, seed, out / f"seed_{seed}", evaluator, display)
    # Also seeds of an earlier call: the result tells of everything that is finished in this folder.
    outcomes = sorted((storage.read_json(path) for path in out.glob("seed_*/outcome.json")), key=lambda o: o["seed"])
    if evaluator is not None:
        evaluator.close()
    result = _result(shared, outcomes, timings)
    storage.write_json(out / "result.json", result)
    return result


def _identity(config: Config, dataset: Dataset) -> dict[str, str]:
    return {"config_hash": storage.content_hash(config.to_dict()), "dataset_sha256": dataset.sha256}


def _check_folder(out: Path, config: Config, dataset: Dataset, resume: bool) -> bool:
    """True if the run folder is to be created; an existing one must be the same run and asked for with `resume`."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not resume:
        raise UsageError(f"{out} exists already; add --resume to go on with it, or choose another --name or --out.")
    if {path.name for path in out.iterdir()} == {"config.json"}:  # stopped in its very first moment
        return True
    saved, identity = storage.read_json(out / "manifest.json"), _identity(config, dataset)
    if saved.get("dataset_sha256") != identity["dataset_sha256"]:
        raise UsageError(
            f"{out} was made from another dataset ({saved.get('dataset')}); choose another --name or --out."
        )
    if saved.get("config_hash") != identity["config_hash"]:
        changed = _difference(storage.read_json(out / "config.json"), config.to_dict())
        raise UsageError(
            f"{out} was started with another configuration ({changed}); choose another --name, or the same settings."
        )
    return False


def _check_stream(out: Path, prepared: Prepared) -> None:
    """A run goes on only with the blocks it was started with, because they decide its result."""
    before = storage.read_json(out / "manifest.json").get("streamed")
    if before == prepared.streamed:
        return
    if before is None:
        raise UsageError(f"{out} was started with its data in memory; go on without --memory, or with a larger one.")
    raise UsageError(f"{out} was started with another memory budget; go on with --memory {before['memory']}.")


def _create_folder(
    out: Path, config: Config, dataset: Dataset, seeds: list[int], prepared: Prepared, origin: str | None
) -> None:
    storage.write_json(out / "config.json", config.to_dict())
    manifest = {
        "format": FORMAT,
        **_identity(config, dataset),
        "dataset": dataset.name,
        "dataset_argument": origin,
        "task": dataset.metadata.task,
        "environment_id": dataset.metadata.environment_id,
        "environment_options": dataset.metadata.environment_options,
        "reference": dataclasses.asdict(dataset.metadata.reference) if dataset.metadata.reference else None,
        "observation_size": dataset.observation_size,
        "action_size": dataset.action_size,
        "seeds": seeds,
        "streamed": prepared.streamed,
        "versions": versions(),
        "revision": revision(),
        "machine": machine(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    storage.write_json(out / "manifest.json", manifest)


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """The first setting in which two saved configurations differ."""
    for section, values in new.items():
        if not isinstance(values, dict):
            if old.get(section) != values:
                return f"{section} was {old.get(section)}, is now {values}"
            continue
        for key, value in values.items():
            before = old.get(section, {}).get(key)
            if before != value:
                return f"{section}.{key} was {before}, is now {value}"
    return "an unknown setting"


def _adopt(artefact: stages.Artefact, prepared: Prepared, config: Config, out: Path, display: Display) -> None:
    """Copy the Q distribution into the run folder, so that the folder can be moved, and settle how H is computed."""
    folder = out / "q_distribution"
    for name in ("model.safetensors", "manifest.json", "config.json", "metrics.csv"):
        with storage.atomic_path(folder / name) as temporary:
            shutil.copyfile(artefact.path / name, temporary)
    sizes = prepared.dataset.observation_size, prepared.dataset.action_size
    distribution = stages.load_distribution(folder / "model.safetensors", config, *sizes, artefact.manifest)
    rule, gap = stages.choose_uncertainty_rule(distribution, prepared, config)
    if rule != config.uncertainty:
        name = "quadrature" if rule.rule == "gauss_hermite" else "equal-probability"
        display.line(
            f"uncertainty: {config.uncertainty.nodes} quadrature nodes are too few here, {rule.nodes} {name} nodes are used"
        )
    quantiles = stages.recorded_uncertainty(distribution, prepared, rule)
    content = {**dataclasses.asdict(rule), "quadrature_gap": gap, "recorded_uncertainty_percentiles": quantiles}
    storage.write_json(folder / "rule.json", content)  # last: its presence means that the folder is complete


def load_adopted(
    out: Path, config: Config, observation_size: int, action_size: int
) -> tuple[QDistribution, uncertainty.Config, dict[str, Any]]:
    """The Q distribution of a run folder, how H is computed for it, and its manifest."""
    folder = out / "q_distribution"
    manifest, saved = storage.read_json(folder / "manifest.json"), storage.read_json(folder / "rule.json")
    model = folder / "model.safetensors"
    distribution = stages.load_distribution(model, config, observation_size, action_size, manifest)
    return distribution, uncertainty.Config(saved["rule"], saved["nodes"], saved["samples"]), manifest


def _problem(
    prepared: Prepared, config: Config, distribution: QDistribution | None, rule: uncertainty.Config
) -> Problem:
    dataset = prepared.dataset
    return Problem(
        dataset.observation_size,
        dataset.action_size,
        config.training.steps,
        prepared.reward_range[0],
        prepared.windows.std,
        distribution,
        rule,
    )


def _run_seed(shared: Stage, seed: int, folder: Path, evaluator: Evaluator | None, display: Display) -> None:
    """Train and evaluate one seed, or go on with it, and write its part of the result."""
    config, problem = shared.config, shared.problem
    if (folder / "outcome.json").exists():
        display.line(f"seed {seed}: finished before")
        return
    algorithm = algorithms.get(config.algorithm_name)
    key = jax.random.key(seed)
    initialise = jax.jit(lambda key: algorithm.init(config.algorithm, problem, key))
    state = initialise(jax.random.fold_in(key, INITIALISE))
    config_hash = storage.content_hash(config.to_dict())
    checkpoints = Checkpoints(folder / "checkpoints", config_hash, config.training.checkpoint_every)
    first, state = checkpoints.restore(state)
    if first == 0 and checkpoints.files():
        display.line(f"seed {seed}: no checkpoint in {folder} can be read, so it starts anew")
    evaluations = JsonLines(folder / "evaluations.jsonl", first)
    guard = _guard(shared)
    before = storage.read_json(folder / "progress.json") if first and (folder / "progress.json").exists() else {}
    guard.warnings += before.get("warnings", [])
    events = TensorBoardLog(folder / "tensorboard", first)
    reference = shared.dataset.metadata.reference
    began = time.monotonic() - before.get("seconds", 0.0)
    evaluation_seconds = before.get("evaluation_seconds", 0.0)

    def save(step: int, state: Any) -> None:
        checkpoints.save(step, state)
        progress = {
            "step": step,
            "seconds": time.monotonic() - began,
            "evaluation_seconds": evaluation_seconds,
            "warnings": guard.warnings,
        }
        storage.write_json(folder / "progress.json", progress)

    def checkpoint(step: int, state: Any, metrics: dict[str, float]) -> None:
        if step % config.training.checkpoint_every == 0:
            save(step, state)

    def evaluate(step: int, state: Any, metrics: dict[str, float]) -> None:
        nonlocal evaluation_seconds
        if evaluator is None or (step % config.evaluation.every and step != config.training.steps):
            return
        started = time.monotonic()
        policy = _deploy(algorithm.policy(state), shared.prepared)
        episodes = evaluator.play(policy.actor(), seed=1_000_000 * (seed + 1) + step)
        scores = [float(reference.score(value)) for value in episodes.returns] if reference else None
        mean = float(np.mean(scores if scores is not None else episodes.returns))
        evaluations.append({"step": step, "score": mean, **dataclasses.asdict(episodes), "scores": scores})
        events(step, None, {"score": mean})
        evaluation_seconds += time.monotonic() - started
        display.score(f"score {mean:.1f}" if reference else f"return {mean:.1f}")

    display.begin(f"{config.algorithm_name} seed {seed}", config.training.steps, first)
    train_key, size = jax.random.fold_in(key, TRAIN), config.training.batch_size
    blocks = feed(shared.prepared.transitions, train_key, size, config.training.chunk, config.training.steps)
    with Interrupt(save) as interrupt, blocks as data:
        try:
            state = train(
                algorithm.steps(config.algorithm, problem),
                state,
                data,
                key=train_key,
                batch_size=size,
                start=first,
                stop=config.training.steps,
                chunk=config.training.chunk,
                hooks=[
                    guard,
                    CsvLog(folder / "metrics.csv", first),
                    events,
                    evaluate,
                    checkpoint,
                    interrupt,
                    lambda step, state, metrics: display.update(step, metrics),
                ],
            )
        finally:
            display.end()
            events.close()
    seconds = time.monotonic() - began
    save(config.training.steps, state)
    storage.save_pytree(folder / "policy.safetensors", _deploy(algorithm.policy(state), shared.prepared))
    outcome = {
        "seed": seed,
        "evaluations": [{"step": entry["step"], "score": entry["score"]} for entry in evaluations.entries],
        "final_score": final_score(evaluations.entries, config.evaluation.last),
        "warnings": guard.warnings,
        "seconds": seconds,
        "evaluation_seconds": evaluation_seconds,
        "steps_per_second": config.training.steps / max(seconds - evaluation_seconds, 1e-9),
    }
    storage.write_json(folder / "outcome.json", outcome)
    if outcome["final_score"] is not None:
        display.line(f"seed {seed}: final score {outcome['final_score']:.1f}")
    for warning in guard.warnings:
        display.line(f"seed {seed}: warning: {warning}")


def final_score(evaluations: list[dict[str, Any]], last: int) -> float | None:
    """Mean of the last evaluations: the number that is reported, never the best one."""
    if not evaluations:
        return None
    return float(np.mean([entry["score"] for entry in evaluations[-last:]]))


def _deploy(network: Any, prepared: Prepared) -> DeployedPolicy:
    return DeployedPolicy(network, prepared.observation_normaliser, prepared.action_scaler)


def _guard(shared: Stage) -> Guard:
    windows, magnitude = shared.prepared.windows, max(map(abs, shared.prepared.reward_range))
    discount = getattr(shared.config.algorithm, "discount", 0.99)
    return Guard(shared.config.algorithm_name, windows.minimum, windows.maximum, magnitude, discount)


def _result(shared: Stage, outcomes: list[dict[str, Any]], timings: dict[str, Any]) -> dict[str, Any]:
    dataset, config = shared.dataset, shared.config
    reference = dataset.metadata.reference
    finals = [outcome["final_score"] for outcome in outcomes if outcome["final_score"] is not None]
    timings["training"] = {
        "seconds": [outcome["seconds"] for outcome in outcomes],
        "evaluation_seconds": [outcome["evaluation_seconds"] for outcome in outcomes],
        "steps_per_second": [outcome["steps_per_second"] for outcome in outcomes],
    }
    return {
        "dataset": {
            "name": dataset.name,
            "sha256": dataset.sha256,
            "transitions": dataset.transitions,
            "episodes": dataset.episodes,
            "environment_id": dataset.metadata.environment_id,
            "behaviour_score": dataset.behaviour_score,
            "reference": dataclasses.asdict(reference) if reference else None,
        },
        "algorithm": config.algorithm_name,
        "preset": config.preset,
        "steps": config.training.steps,
        "score_unit": "score 0-100" if reference else "return",
        "seeds": outcomes,
        "score": summary(finals) if finals else None,
        "stages": timings,
        "versions": versions(),
    }
