"""From a study to its jobs: one command line each, in a graph of two levels.

The first level learns Q distributions, one job for each that differs; the second trains one seed of one run. A run waits
only for the Q distribution it uses. Every run folder is named by what decides its content, so that the same study finds
its finished runs and a changed one makes new folders.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdq import algorithms, presets, storage
from qdq.config import Config
from qdq.errors import UsageError
from qdq.settings import to_dict
from qdq.sweep.study import Study, Variant


@dataclass(frozen=True)
class Source:
    """A dataset of a study: how it is named on the command line, and what decides its runs."""

    argument: str
    name: str
    task: str | None
    sha256: str


@dataclass(frozen=True)
class Job:
    """One command line of `qdq`. A job that trains has a run folder and a seed; the others learn a Q distribution."""

    name: str
    arguments: tuple[str, ...]
    dataset: str
    method: str
    needs: str | None = None  # name of the job that must be done before
    folder: Path | None = None
    seed: int | None = None
    steps: int = 0
    last_evaluations: int = 0

    @property
    def label(self) -> str:
        """What a person calls it."""
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.dataset} {self.method}{seed}"

    @property
    def finished(self) -> bool:
        """True if its seed is trained and told of in the run's result, whoever did it."""
        if self.folder is None or not (self.folder / f"seed_{self.seed}" / "outcome.json").exists():
            return False
        result = self.folder / "result.json"
        return result.exists() and self.seed in [entry["seed"] for entry in storage.read_json(result)["seeds"]]


def load_sources(study: Study) -> list[Source]:
    """Read every dataset once: a missing or unsound one is found here, and its content enters the runs' names."""
    from qdq.data.load import load_dataset

    sources = []
    for argument in study.datasets:
        data = load_dataset(argument)
        sources.append(Source(argument, data.name, data.metadata.task, data.sha256))
    names = [source.name for source in sources]
    return [
        source
        if names.count(source.name) == 1
        else Source(source.argument, source.argument, source.task, source.sha256)
        for source in sources
    ]


def make_plan(study: Study, sources: list[Source]) -> list[Job]:
    """Every job of a study, those of the first level in front; wrong settings are found here."""
    learning: dict[str, Job] = {}
    training: list[tuple[int, Job]] = []
    seen: dict[str, str] = {}
    for source in sources:
        for variant in study.variants:
            for algorithm in variant.algorithms:
                config, _ = presets.build(algorithm, variant.preset, source.task, variant.overrides, variant.steps)
                method = f"{algorithm} {variant.name}".strip()
                digest = storage.content_hash({"dataset": source.sha256, "config": config.to_dict()})
                if digest in seen:
                    raise UsageError(
                        f"{source.name}: {method!r} is the same run as {seen[digest]!r}; remove one of them from the study."
                    )
                seen[digest] = method
                needs = None
                if algorithms.uses_distribution(config.algorithm_name, config.algorithm):
                    job = _learning_job(source, variant, config)
                    needs = learning.setdefault(job.name, job).name
                name = "-".join(storage.slug(part) for part in (source.name, *method.split(" ", 1), config.preset))
                folder = study.runs / f"{name}-{digest[:8]}"
                for position, seed in enumerate(study.seeds):
                    job = _training_job(source, variant, algorithm, config, folder, seed, method, needs)
                    training.append((position, job))
    # Seed after seed: the first whole table is there as early as possible.
    return [*learning.values(), *(job for _, job in sorted(training, key=lambda entry: entry[0]))]


def _learning_job(source: Source, variant: Variant, config: Config) -> Job:
    stages = {"quantile": "quantile", "distilled": "consistency", "teacher": "diffusion"}
    learner = stages[config.q_distribution.learner]
    decides: dict[str, Any] = {
        "dataset": source.sha256,
        "data": to_dict(config.data),
        "q_dataset": to_dict(config.q_dataset),
        "network": {key: value for key, value in to_dict(config.q_distribution).items() if key != "learner"},
        learner: to_dict(getattr(config, learner)),
        "teacher": to_dict(config.diffusion) if learner == "consistency" else None,
    }
    name = f"{storage.slug(source.name)}-{learner}-{storage.content_hash(decides)[:8]}"
    arguments = ["stage", learner, source.argument, "--preset", variant.preset, *_overrides(variant)]
    return Job(name, tuple(arguments), source.name, learner)


def _training_job(
    source: Source,
    variant: Variant,
    algorithm: str,
    config: Config,
    folder: Path,
    seed: int,
    method: str,
    needs: str | None,
) -> Job:
    arguments = ["train", source.argument, "--algorithm", algorithm, "--preset", variant.preset]
    arguments += ["--seeds", "1", "--first-seed", str(seed)]
    arguments += [] if variant.steps is None else ["--steps", str(variant.steps)]
    arguments += ["--out", str(folder.parent), "--name", folder.name, "--resume", *_overrides(variant)]
    return Job(
        f"{folder.name}-seed-{seed}",
        tuple(arguments),
        source.name,
        method,
        needs,
        folder,
        seed,
        config.training.steps,
        config.evaluation.last,
    )


def _overrides(variant: Variant) -> list[str]:
    return [word for override in variant.overrides for word in ("--set", override)]
