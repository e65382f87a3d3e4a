"""A run: all stages for one dataset and algorithm, seed after seed, into one folder that tells the whole story."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import jax

from qdq import algorithms, storage, uncertainty
from qdq.algorithms.problem import Problem
from qdq.behaviour import BehaviourModel
from qdq.config import Config
from qdq.data.episodes import Dataset
from qdq.data.inspect import CARD_FILE, inspect_dataset
from qdq.data.prepare import Prepared, prepare
from qdq.errors import DataError, UsageError
from qdq.evaluation.rollout import Evaluator
from qdq.evaluation.statistics import summary
from qdq.q_distribution import QDistribution
from qdq.training import stages
from qdq.training.display import Display, Silent
from qdq.training.layout import leading, meet
from qdq.training.seeds import Shared, run_seeds
from qdq.training.versions import machine, revision, versions

FORMAT = 1
LOCK = ".lock"


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
    together: bool | None = None,
) -> dict[str, Any]:
    """Run every stage and seed into the folder `out` and return the result that is written there.

    A dataset that needs more than `memory` bytes is streamed. `origin` is how the dataset was named on the command line,
    for the record of how to make the run again. `together` trains all seeds in one program over all devices; by default
    where there are several devices, or one that is no CPU. Several processes may train different seeds of one folder.
    """
    if not leading():
        display = Silent()
    fresh = leading() and _check_folder(out, config, dataset, resume)
    if not fresh:
        _check_weights(out, seeds)
    began = time.monotonic()
    prepared = prepare(dataset, config, memory)
    if prepared.streamed:
        display.line(
            f"streamed: blocks of {prepared.streamed['block_transitions']:,} of {dataset.transitions:,} transitions"
        )
    together = _together(together, prepared)
    timings: dict[str, Any] = {
        "q_dataset": {"seconds": time.monotonic() - began, "windows": len(prepared.windows.index)}
    }
    evaluator = None
    if evaluate and dataset.metadata.environment_id is not None:
        evaluator = Evaluator(
            dataset.metadata, config.evaluation.episodes, dataset.observation_size, dataset.action_size
        )
    uses_distribution = algorithms.uses_distribution(config.algorithm_name, config.algorithm)
    uses_behaviour = algorithms.uses_behaviour(config.algorithm_name, config.algorithm)
    # Only now: what is wrong with the request has shown itself, and nothing is left half-written.
    if leading():
        with storage.exclusive(out / LOCK):
            storage.remove_partial(out)
            if fresh and _check_folder(out, config, dataset, resume):  # nobody else has made it in the meantime
                _create_folder(out, config, dataset, seeds, prepared, origin)
            _check_stream(out, prepared)
            if prepared.streamed is None and not (out / CARD_FILE).exists():  # a card needs the whole dataset in memory
                q = config.q_dataset
                storage.write_json(out / CARD_FILE, inspect_dataset(dataset, q.width, q.stride, q.discount))
            if uses_distribution and not _adopted(out / "q_distribution", "rule.json", display):
                artefact = stages.learn_distribution(prepared, dataset.sha256, config, display)
                _adopt_distribution(artefact, prepared, config, out, display)
            if uses_behaviour and not _adopted(out / "behaviour", "manifest.json", display):
                _adopt(stages.learn_behaviour(prepared, dataset.sha256, config, display), out / "behaviour")
    meet("the run folder is complete")
    problem = _problem(prepared, config)
    sizes = dataset.observation_size, dataset.action_size
    distribution = None
    if uses_distribution:
        distribution, rule, manifest = load_distribution(out, config, *sizes, dataset.sha256)
        problem = dataclasses.replace(problem, distribution=distribution, uncertainty=rule)
        timings |= manifest["stages"]
    if uses_behaviour:
        behaviour, border, manifest = load_behaviour(out, config, *sizes, dataset.sha256)
        problem = dataclasses.replace(problem, behaviour=behaviour, surprise_border=border)
        timings |= manifest["stages"]
    shared = Shared(dataset, config, prepared, problem, distribution, evaluator, display)
    run_seeds(shared, seeds, out, together)
    meet("every seed is finished")
    if evaluator is not None:
        evaluator.close()
    if leading():
        with storage.exclusive(out / LOCK):
            # Also seeds of an earlier call: the result tells of everything that is finished in this folder.
            outcomes = [storage.read_json(path) for path in out.glob("seed_*/outcome.json")]
            result = _result(shared, sorted(outcomes, key=lambda outcome: outcome["seed"]), timings)
            storage.write_json(out / "result.json", result)
    meet("the result is written")
    return storage.read_json(out / "result.json")


def _together(asked: bool | None, prepared: Prepared) -> bool:
    """Whether seeds are trained in one program; a stream has an order of its own for each seed."""
    if asked is None:
        several = len(jax.devices()) > 1 or jax.default_backend() != "cpu"
        return several and prepared.streamed is None
    if asked and prepared.streamed is not None:
        raise UsageError("A streamed dataset cannot serve several seeds at once; leave out --together, or --memory.")
    return asked


def _identity(config: Config, dataset: Dataset) -> dict[str, str]:
    return {"config_hash": storage.content_hash(config.to_dict()), "dataset_sha256": dataset.sha256}


def _check_folder(out: Path, config: Config, dataset: Dataset, resume: bool) -> bool:
    """True if the run folder is to be created; an existing one must be the same run and asked for with `resume`."""
    if not out.exists():
        return True
    if not out.is_dir():
        raise DataError(f"{out} is a file where a run folder is needed; move it, or choose another --name or --out.")
    present = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    if not present:
        return True
    if not resume:
        raise UsageError(f"{out} exists already; add --resume to go on with it, or choose another --name or --out.")
    if present == {"config.json"}:  # stopped in its very first moment
        return True
    saved, identity = storage.read_json(out / "manifest.json"), _identity(config, dataset)
    if not isinstance(saved, dict):
        raise DataError(f"{out / 'manifest.json'} does not describe a run; choose another --name or --out.")
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


def _check_weights(out: Path, seeds: list[int]) -> None:
    """A record whose weights were not kept can be read, and more seeds can be trained into it; there is nothing else to do."""
    finished = all((out / f"seed_{seed}" / "outcome.json").exists() for seed in seeds)
    if finished and not any(out.glob("seed_*/policy.safetensors")):
        raise UsageError(
            f"{out} is the record of a finished run without its weights, so there is nothing to go on with; `qdq report` shows "
            "what it holds, and another --name or --out trains it again."
        )


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


def _adopt(artefact: stages.Artefact, folder: Path) -> None:
    """Copy what a stage has learned into the run folder, so that the folder can be moved; the manifest last."""
    for name in ("model.safetensors", "config.json", "metrics.csv", "manifest.json"):
        with storage.atomic_path(folder / name) as temporary:
            shutil.copyfile(artefact.path / name, temporary)


def _adopt_distribution(
    artefact: stages.Artefact, prepared: Prepared, config: Config, out: Path, display: Display
) -> None:
    """Copy the Q distribution into the run folder, and settle how H is computed."""
    folder = out / "q_distribution"
    _adopt(artefact, folder)
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


def _adopted(folder: Path, last: str, display: Display) -> bool:
    """Whether the run folder has what a stage learned, complete and undamaged; `last` is the file that was written last."""
    if not (folder / last).exists():
        return False
    try:
        storage.load_checked(folder / "model.safetensors")
    except DataError as error:
        display.line(f"{error} It is fetched again.")
        return False
    return True


def load_behaviour(
    out: Path, config: Config, observation_size: int, action_size: int, dataset_sha256: str
) -> tuple[BehaviourModel, float, dict[str, Any]]:
    """The model of the recorded actions of a run folder, the border of the risk set, and its manifest."""
    folder = out / "behaviour"
    manifest = storage.read_json(folder / "manifest.json")
    stages.check_origin(folder, manifest, dataset_sha256)
    model = stages.load_behaviour(folder / "model.safetensors", config, observation_size, action_size)
    return model, float(manifest["surprise_border"]), manifest


def load_distribution(
    out: Path, config: Config, observation_size: int, action_size: int, dataset_sha256: str
) -> tuple[QDistribution, uncertainty.Config, dict[str, Any]]:
    """The Q distribution of a run folder, how H is computed for it, and its manifest."""
    folder = out / "q_distribution"
    manifest, saved = storage.read_json(folder / "manifest.json"), storage.read_json(folder / "rule.json")
    stages.check_origin(folder, manifest, dataset_sha256)
    model = folder / "model.safetensors"
    distribution = stages.load_distribution(model, config, observation_size, action_size, manifest)
    return distribution, uncertainty.Config(saved["rule"], saved["nodes"], saved["samples"]), manifest


def _problem(prepared: Prepared, config: Config) -> Problem:
    dataset = prepared.dataset
    nearest = getattr(config.algorithm, "uncertainty", None) == "nearest"
    return Problem(
        dataset.observation_size,
        dataset.action_size,
        config.training.steps,
        prepared.reward_range[0],
        prepared.windows.std,
        prepared.windows.mean,
        recorded=stages.recorded_pairs(prepared) if nearest else None,
    )


def _result(shared: Shared, outcomes: list[dict[str, Any]], timings: dict[str, Any]) -> dict[str, Any]:
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
