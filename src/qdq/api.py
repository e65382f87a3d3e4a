"""The Python interface: train, load, act, and ask how far a policy can be trusted."""

import shlex
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdq import algorithms, presets, storage
from qdq import config as configuration
from qdq.algorithms.problem import state_shapes
from qdq.behaviour import BehaviourModel
from qdq.data.episodes import Dataset
from qdq.data.load import load_dataset
from qdq.errors import DataError, UsageError
from qdq.memory import parse_memory
from qdq.normalisers import identity
from qdq.q_distribution import QDistribution
from qdq.settings import checked_seed
from qdq.training.compilation import configure_jax
from qdq.training.deployed import DeployedPolicy
from qdq.training.display import Display, choose
from qdq.training.hooks import read_entries
from qdq.training.layout import leading
from qdq.training.run import execute, load_behaviour, load_distribution
from qdq.training.seeds import POLICIES
from qdq.training.stages import surprise_of
from qdq.uncertainty import Config as UncertaintyConfig
from qdq.uncertainty import mean_and_std

LARGEST = float(np.finfo(np.float32).max)
BLOCK = 4096  # rows that are answered together, so that a large question needs little memory


def train(
    dataset: Dataset | str | Path,
    algorithm: str = "qdq",
    preset: str = "fast",
    seeds: Sequence[int] = (0,),
    *,
    steps: int | None = None,
    out: str | Path = "runs",
    name: str | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    display: Display | None = None,
    memory: str | int | None = None,
    origin: str | None = None,
    together: bool | None = None,
) -> "Run":
    """Run every stage on a dataset and return the finished run, which also lies in the folder `out/name`.

    A dataset that needs more than the budget `memory`, such as "2GiB", is streamed from disk. `origin` is what `qdq train`
    would be given for this dataset; a dataset given by name or path brings its own. `together` trains all seeds in one
    program over all devices (default: where there are several devices, or one that is no CPU).
    """
    if not len(seeds):
        raise UsageError("At least one seed is needed.")
    numbers = [checked_seed(seed) for seed in seeds]
    budget = None if memory is None else parse_memory(memory)
    if not isinstance(dataset, Dataset):
        origin = shlex.quote(str(dataset))
    data = dataset if isinstance(dataset, Dataset) else load_dataset(dataset, memory=budget)
    configure_jax()
    config, sources = presets.build_for(data, algorithm, preset, tuple(overrides), steps)
    if name is not None and (Path(name).name != name or "\0" in name):
        raise UsageError(f"A run cannot be called {name!r}; give a plain name, and its folder with --out.")
    folder = Path(out) / (name or f"{storage.slug(data.name)}-{algorithm}-{storage.slug(config.preset)}")
    shown = display or choose()
    if sources["q_dataset.width"] == presets.FITTED:
        shown.line(f"windows of {config.q_dataset.width} steps: {presets.FITTED}")
    options: dict[str, Any] = {"memory": budget, "origin": origin, "together": together}
    execute(data, config, numbers, folder, resume=resume, display=shown, **options)
    if leading():
        from qdq.report import plots

        plots.draw_run(folder, data, budget)
    return load_run(folder)


class Run:
    """A finished run: its policy, its Q distribution and its results, from its folder alone."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not (self.path / "manifest.json").exists():
            raise DataError(f"{self.path} is not a run folder (it has no manifest.json).")
        self.manifest: dict[str, Any] = _checked_manifest(self.path / "manifest.json")
        self.config = configuration.from_dict(storage.read_json(self.path / "config.json"))
        numbers = (p.parent.name.removeprefix("seed_") for p in self.path.glob("seed_*/policy.safetensors"))
        self.seeds = sorted(int(number) for number in numbers if number.isdecimal())
        if not self.seeds and any(self.path.glob("seed_*/outcome.json")):
            raise DataError(
                f"{self.path} is the record of a finished run without its weights; copy the whole run folder, or train it anew."
            )
        if not self.seeds:
            raise DataError(f"{self.path} holds no finished seed yet; finish it with --resume.")

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of result.json."""
        result = storage.read_json(self.path / "result.json")
        if not isinstance(result, dict):
            raise DataError(
                f"{self.path / 'result.json'} holds no result; run `qdq train` with --resume to write it again."
            )
        return result

    @cached_property
    def _policies(self) -> dict[int, DeployedPolicy]:
        return {}

    def deployed_policy(self, seed: int | None = None) -> DeployedPolicy:
        """The policy of one seed with its normalisers; the first seed by default."""
        seed = self.seeds[0] if seed is None else seed
        if seed not in self.seeds:
            raise UsageError(f"{self.path} has no finished seed {seed}; it has {', '.join(map(str, self.seeds))}.")
        if seed not in self._policies:
            self._policies[seed] = self._load_policy(self.path / f"seed_{seed}" / "policy.safetensors")
        return self._policies[seed]

    def kept_policies(self, seed: int) -> dict[int, DeployedPolicy]:
        """The policies that a seed kept along the way (`evaluation.keep_policies`), by their step."""
        files = sorted((self.path / f"seed_{seed}" / POLICIES).glob("step_*.safetensors"))
        numbers = [path.stem.removeprefix("step_") for path in files]
        found = zip(numbers, files, strict=True)
        return {int(number): self._load_policy(path) for number, path in found if number.isdecimal()}

    def mean_returns(self, seed: int) -> dict[int, float]:
        """The mean return of every evaluation of a seed, by its step."""
        entries = read_entries(self.path / f"seed_{seed}" / "evaluations.jsonl")
        lists = {entry["step"]: entry.get("returns") for entry in entries}
        whole = {k: v for k, v in lists.items() if isinstance(v, list) and v and all(map(_is_number, v))}
        return {step: float(np.mean(returns)) for step, returns in whole.items()}

    def _load_policy(self, path: Path) -> DeployedPolicy:
        sizes = self.manifest["observation_size"], self.manifest["action_size"]
        network = algorithms.get(self.config.algorithm_name).policy(state_shapes(self.config, *sizes))
        # As shapes: what a manifest claims is compared with the file before anything of that size is made.
        like = DeployedPolicy(network, *(jax.eval_shape(lambda size=size: identity(size)) for size in sizes))
        return _finite(path, storage.load_pytree(path, like)[0])

    def policy(self, observations: np.ndarray, seed: int | None = None) -> np.ndarray:
        """Actions, in their own units, for one observation or a batch."""
        rows, single = self._rows("observations", observations, self.manifest["observation_size"])
        actions = np.asarray(self.deployed_policy(seed)(rows))
        return actions[0] if single else actions

    @cached_property
    def _adopted(self) -> tuple[QDistribution, UncertaintyConfig]:
        if not self.knows_returns:
            raise UsageError(f"{self.path} has no Q distribution: its algorithm or settings do not learn one.")
        folder = self.path / "q_distribution"
        manifest, rule = storage.read_json(folder / "manifest.json"), storage.read_json(folder / "rule.json")
        if not _are_numbers(manifest, "q_minimum", "q_maximum") or manifest["q_minimum"] >= manifest["q_maximum"]:
            raise DataError(f"{folder / 'manifest.json'} gives no range of Q; copy the run again or train it anew.")
        try:
            config = self.config
            for key in ("rule", "nodes", "samples"):
                config = configuration.replace(config, f"uncertainty.{key}", rule[key])
            configuration.check(config)
        except (KeyError, TypeError, UsageError) as error:
            raise DataError(
                f"{folder / 'rule.json'} holds no rule for H; copy the run again or train it anew."
            ) from error
        sizes = self.manifest["observation_size"], self.manifest["action_size"]
        origin = self.manifest.get("dataset_sha256", "")
        distribution, rule, _ = load_distribution(self.path, self.config, *sizes, origin)
        return _finite(folder / "model.safetensors", distribution), rule

    @property
    def distribution(self) -> QDistribution:
        """The learned Q distribution, on normalised inputs."""
        return self._adopted[0]

    @property
    def uncertainty_rule(self) -> UncertaintyConfig:
        """How H is computed for this model."""
        return self._adopted[1]

    def q_samples(self, observations: np.ndarray, actions: np.ndarray, count: int = 50, seed: int = 0) -> np.ndarray:
        """Samples of Q for each observation and action, in reward units: shape (count, rows)."""
        states, scaled = self._normalised(observations, actions)
        if count < 1 or not len(states):
            raise DataError("At least one row and one sample are needed.")
        rows = max(1, 400_000 // count)  # in blocks, so that a large question needs little memory
        blocks = [
            self.distribution.sample(states[i : i + rows], scaled[i : i + rows], jax.random.key(seed + i), count)
            for i in range(0, len(states), rows)
        ]
        return np.concatenate([np.asarray(block) for block in blocks], axis=1)

    def uncertainty(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """H of Eq. 6: the standard deviation of the learned Q distribution at each row, in reward units."""
        states, scaled = self._normalised(observations, actions)
        if not len(states):
            raise DataError("There are no observations to judge; give at least one row.")
        spreads = []
        for i in range(0, len(states), BLOCK):
            block = slice(i, i + BLOCK)
            _, spread = mean_and_std(
                self.distribution, states[block], scaled[block], self.uncertainty_rule, jax.random.key(0)
            )
            spreads.append(np.asarray(spread))
        return np.concatenate(spreads)

    @cached_property
    def _behaviour(self) -> tuple[BehaviourModel, float]:
        folder = self.path / "behaviour"
        if not folder.exists():
            raise UsageError(f"{self.path} has no model of the recorded actions: its settings do not learn one.")
        if not _are_numbers(storage.read_json(folder / "manifest.json"), "surprise_border"):
            raise DataError(f"{folder / 'manifest.json'} gives no border; copy the run again or train it anew.")
        sizes = self.manifest["observation_size"], self.manifest["action_size"]
        model, border, _ = load_behaviour(self.path, self.config, *sizes, self.manifest.get("dataset_sha256", ""))
        return _finite(folder / "model.safetensors", model), border

    @property
    def behaviour(self) -> BehaviourModel:
        """The model of the recorded actions, on normalised inputs."""
        return self._behaviour[0]

    @property
    def surprise_border(self) -> float:
        """The surprise that few recorded actions of unseen episodes exceed: the border of the risk set."""
        return self._behaviour[1]

    def surprise(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """-log of the density of recorded actions at each row: what nobody did at such states is surprising."""
        states, scaled = self._normalised(observations, actions)
        if not len(states):
            raise DataError("There are no observations to judge; give at least one row.")
        blocks = [
            surprise_of(self.behaviour, states[i : i + BLOCK], scaled[i : i + BLOCK])
            for i in range(0, len(states), BLOCK)
        ]
        return np.concatenate([np.asarray(block) for block in blocks])

    def risky(self, observations: np.ndarray, actions: np.ndarray, quantile: float = 0.95) -> np.ndarray:
        """Whether the data does not vouch for each row's action.

        Where the run has a model of the recorded actions: their surprise is beyond its border. Elsewhere: H is beyond
        a quantile of that of the recorded actions, which says little about the action (docs/uncertainty.md).
        """
        if self.watches_actions:
            return self.surprise(observations, actions) > self.surprise_border
        return self.uncertainty(observations, actions) > self.uncertainty_border(quantile)

    @property
    def watches_actions(self) -> bool:
        """Whether the run has a model of the recorded actions."""
        return (self.path / "behaviour").exists()

    @property
    def knows_returns(self) -> bool:
        """Whether the run has a Q distribution."""
        return (self.path / "q_distribution").exists()

    def uncertainty_border(self, quantile: float = 0.95) -> float:
        """The quantile of H over the recorded actions: H above it is unusual for this data."""
        path = self.path / "q_distribution" / "rule.json"
        saved = storage.read_json(path)
        recorded = saved.get("recorded_uncertainty_percentiles") if isinstance(saved, dict) else None
        if not isinstance(recorded, list) or len(recorded) != 101 or not all(map(_is_number, recorded)):
            raise DataError(f"{path} lacks the percentiles of H; copy the run again or train it anew.")
        return float(np.interp(100.0 * quantile, np.arange(101), recorded))

    def save(self, path: str | Path) -> Path:
        """Copy the run folder to `path`, which must not exist."""
        target = Path(path)
        if target.exists():
            raise UsageError(f"{target} exists already; choose another path.")
        return Path(shutil.copytree(self.path, target))

    def _normalised(self, observations: np.ndarray, actions: np.ndarray) -> tuple[jax.Array, jax.Array]:
        states, _ = self._rows("observations", observations, self.manifest["observation_size"])
        choices, _ = self._rows("actions", actions, self.manifest["action_size"])
        if len(states) != len(choices):
            raise DataError(
                f"There are {len(states)} observations but {len(choices)} actions; give one action per observation."
            )
        policy = self.deployed_policy()
        return policy.observation_normaliser.forward(states), policy.action_scaler.forward(choices)

    def _rows(self, label: str, array: np.ndarray, size: int) -> tuple[jax.Array, bool]:
        try:
            values = np.asarray(array, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"The {label} are not an array of numbers; give one row of {size} numbers each.") from error
        single = values.ndim == 1
        values = values[None] if single else values
        if values.ndim != 2 or values.shape[1] != size:
            raise DataError(
                f"This run was trained with {label} of size {size}, but got an array of shape {np.shape(array)}."
            )
        if not np.isfinite(values).all():
            raise DataError(f"The {label} hold NaN or infinity; remove such rows.")
        return jnp.asarray(values), single


def _checked_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run, with sound values wherever this interface and `qdq evaluate` use them."""
    manifest = storage.read_json(path)
    kinds = {"dataset": str, "environment_id": str | None, "environment_options": dict, "reference": dict | None}
    for key, kind in kinds.items():
        if not isinstance(manifest, dict) or key not in manifest or not isinstance(manifest[key], kind):
            raise DataError(f"{path} does not give {key} as it should; copy the run again or train it anew.")
    for key in ("observation_size", "action_size"):
        if type(manifest.get(key)) is not int or not 0 < manifest[key] <= configuration.LARGEST:
            raise DataError(f"{path} does not give {key} as a positive number; copy the run again or train it anew.")
    reference = manifest["reference"]
    if reference is not None and not (
        _are_numbers(reference, "random", "expert")
        and set(reference) == {"random", "expert", "origin"}
        and isinstance(reference["origin"], str)
        and reference["random"] != reference["expert"]
    ):
        raise DataError(f"{path} has a reference without two different returns; copy the run again or train it anew.")
    return manifest


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _are_numbers(content: Any, *keys: str) -> bool:
    return isinstance(content, dict) and all(_is_number(content.get(key)) for key in keys)


def _finite(path: Path, tree: Any) -> Any:
    """Loaded weights, unless they hold what no training leaves behind."""
    if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree)):
        raise DataError(f"{path} holds NaN or infinity; it is damaged, so copy the run again or train it anew.")
    return tree


def load_run(path: str | Path) -> Run:
    """Open the folder of a finished run."""
    configure_jax()
    return Run(path)
