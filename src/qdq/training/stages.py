"""The stages before the actor-critic as saved artefacts: same data and same configuration, no second training.

An artefact is a folder named by the hash of everything that decides its content. It holds `model.safetensors`,
`config.json`, `manifest.json` (hashes of what it was made from, versions, timing) and `metrics.csv`.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qdq import behaviour, calibration, consistency, diffusion, quantile, storage, uncertainty
from qdq import q_distribution as q_distribution_module
from qdq.behaviour import BehaviourModel
from qdq.config import STAGE_CHUNK, Config
from qdq.controls import RECORDED_PAIRS, RecordedPairs
from qdq.data.batches import LoggedTransitions, SomeTransitions, TransitionData, WindowData
from qdq.data.prepare import Prepared
from qdq.data.stream import StreamedWindows, feed
from qdq.errors import DataError, UsageError
from qdq.evaluation.measures import COVERAGES
from qdq.networks import ConditionalScalar
from qdq.normalisers import unit_interval
from qdq.q_distribution import LevelMap, QDistribution, TeacherDistribution
from qdq.settings import to_dict
from qdq.training.display import Display
from qdq.training.hooks import Checkpoints, CsvLog, Guard, Interrupt
from qdq.training.loop import train
from qdq.training.versions import versions

FORMAT = 4
STAGE_KEYS = {"initialise": 0, "diffusion": 1, "consistency": 2, "quantile": 3, "behaviour": 4}
CALIBRATION_ROWS = 20_000  # held-out actions that set the border of the risk set


@dataclass(frozen=True)
class Artefact:
    """A finished stage on disk."""

    stage: str
    path: Path
    manifest: dict[str, Any]

    @property
    def hash(self) -> str:
        return self.manifest["hash"]


def _key(stage: str) -> jax.Array:
    """Stages are shared by all seeds of a run, so their randomness depends on the stage alone."""
    return jax.random.fold_in(jax.random.key(0), STAGE_KEYS[stage])


def _identity(stage: str, prepared: Prepared, source_hash: str, config: Config, upstream: str | None) -> dict[str, Any]:
    identity = {
        "format": FORMAT,
        "stage": stage,
        "dataset_sha256": source_hash,
        "data": to_dict(config.data),
        stage: to_dict(getattr(config, stage)),
        "upstream": upstream,
    }
    if stage != "behaviour":
        identity["q_dataset"] = to_dict(config.q_dataset)
        identity["network"] = {k: v for k, v in to_dict(config.q_distribution).items() if k != "learner"}
    if prepared.streamed is not None:  # then the blocks decide the result, too
        identity["streamed"] = prepared.streamed
    return identity


def _train_stage(
    stage: str,
    module: ModuleType,
    start_network: Any,
    prepared: Prepared,
    source_hash: str,
    config: Config,
    display: Display,
    upstream: Artefact | None = None,
    data: Any = None,
    findings: Callable[[Any], dict[str, Any]] = lambda network: {},
) -> Artefact:
    """Train one network, or find it finished; an interrupted training goes on from its last checkpoint.

    `data` are the windows of the Q dataset by default. `findings` go into the manifest of the trained network.
    """
    identity = _identity(stage, prepared, source_hash, config, upstream.hash if upstream else None)
    digest = storage.content_hash(identity)
    path = storage.cache_directory() / "stages" / stage / digest[:24]
    with storage.exclusive(path.with_suffix(".lock")):  # a second run that needs the same artefact waits for this one
        return _find_or_train(
            stage, module, start_network, prepared, config, display, upstream, identity, path, data, findings
        )


def _find_or_train(
    stage: str,
    module: ModuleType,
    start_network: Any,
    prepared: Prepared,
    config: Config,
    display: Display,
    upstream: Artefact | None,
    identity: dict[str, Any],
    path: Path,
    data: Any,
    findings: Callable[[Any], dict[str, Any]],
) -> Artefact:
    digest = storage.content_hash(identity)
    if (path / "manifest.json").exists():
        manifest = storage.read_json(path / "manifest.json")
        if not isinstance(manifest, dict) or manifest.get("identity") != identity:
            raise UsageError(f"{path} holds another artefact than its name says; remove that folder and run again.")
        try:
            storage.load_checked(path / "model.safetensors")
            display.line(f"{stage}: found, trained before on the same data with the same settings")
            return Artefact(stage, path, manifest)
        except DataError as error:
            display.line(f"{stage}: {error} It is trained again.")
    settings = getattr(config, stage)
    state = module.init(settings, start_network)
    for folder in (path, path / "checkpoints"):
        storage.remove_partial(folder)
    say = lambda text: display.line(f"{stage}: {text}")  # noqa: E731
    checkpoints = Checkpoints(path / "checkpoints", digest, config.training.checkpoint_every, say)
    first, state, _ = checkpoints.restore(state)
    guard = Guard(stage, prepared.windows.minimum, prepared.windows.maximum, 1.0, 0.99)
    began = time.monotonic()
    display.begin(stage, settings.steps, first)
    source = prepared.window_data if data is None else data
    blocks = feed(source, _key(stage), settings.batch_size, STAGE_CHUNK, settings.steps)
    with Interrupt(checkpoints.save, "go on with the same command") as interrupt, blocks as data:
        try:
            hooks = [
                guard,
                CsvLog(path / "metrics.csv", first),
                lambda step, state, metrics: display.update(step, metrics),
                checkpoints,
                interrupt,
            ]
            state = train(
                module.steps(settings),
                state,
                data,
                key=_key(stage),
                batch_size=settings.batch_size,
                start=first,
                stop=settings.steps,
                chunk=STAGE_CHUNK,
                hooks=hooks,
            )
        finally:
            display.end()
    network = getattr(state, "learned", state.network)
    found = findings(network)
    seconds = time.monotonic() - began
    storage.save_pytree(path / "model.safetensors", network)
    manifest = {
        "hash": digest,
        "identity": identity,
        "dataset": prepared.dataset.name,
        "windows": len(prepared.windows.index),
        "q_minimum": prepared.windows.minimum,
        "q_maximum": prepared.windows.maximum,
        "stages": (upstream.manifest["stages"] if upstream else {})
        | {stage: {"seconds": seconds, "steps_per_second": (settings.steps - first) / max(seconds, 1e-9)}},
        "versions": versions(),
        **found,
    }
    storage.write_json(path / "config.json", config.to_dict())
    storage.write_json(path / "manifest.json", manifest)  # last: its presence means that the artefact is complete
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return Artefact(stage, path, manifest)


def _initialise(config: Config, observation_size: int, action_size: int) -> Callable[[jax.Array], ConditionalScalar]:
    return lambda key: q_distribution_module.build_network(config.q_distribution, observation_size, action_size, key)


def _fresh_network(prepared: Prepared, config: Config) -> ConditionalScalar:
    dataset = prepared.dataset
    return jax.jit(_initialise(config, dataset.observation_size, dataset.action_size))(_key("initialise"))


def learn_diffusion(prepared: Prepared, source_hash: str, config: Config, display: Display) -> Artefact:
    """Stage 2: the diffusion teacher."""
    return _train_stage(
        "diffusion", diffusion, _fresh_network(prepared, config), prepared, source_hash, config, display
    )


def learn_consistency(prepared: Prepared, source_hash: str, config: Config, display: Display) -> Artefact:
    """Stage 3: the consistency student, after its teacher."""
    teacher = learn_diffusion(prepared, source_hash, config, display)
    network, _ = storage.load_pytree(teacher.path / "model.safetensors", _fresh_network(prepared, config))
    return _train_stage("consistency", consistency, network, prepared, source_hash, config, display, teacher)


def learn_quantile(prepared: Prepared, source_hash: str, config: Config, display: Display) -> Artefact:
    """Stages 2 and 3 at once: the quantile learner, calibrated on windows that it has not seen."""
    say = lambda text: display.line(f"quantile: {text}")  # noqa: E731
    data, kept_back = _split_windows(prepared, config.quantile.calibration_share, say)

    def levels(network: ConditionalScalar) -> dict[str, Any]:
        found = None if kept_back is None else calibration.to_json(_calibrate(network, kept_back, say))
        return {"calibration": found}

    start = _fresh_network(prepared, config)
    return _train_stage("quantile", quantile, start, prepared, source_hash, config, display, data=data, findings=levels)


def _split_windows(
    prepared: Prepared, share: float, say: Callable[[str], None]
) -> tuple[WindowData | StreamedWindows, WindowData | None]:
    """The windows to learn from, and those of episodes that are kept back for calibration."""
    windows = prepared.window_data
    if share == 0.0:
        return windows, None
    if not isinstance(windows, WindowData):
        say("streamed data is not calibrated; all of it is learned from")
        return windows, None
    dataset = prepared.dataset
    chosen = np.zeros(dataset.episodes, bool)
    chosen[calibration.choose_episodes(dataset.episodes, share)] = True
    if not chosen.any():
        say(f"{dataset.episodes} episodes are too few to keep some back, so the distribution is not calibrated")
        return windows, None
    back = np.repeat(chosen, dataset.lengths)[prepared.windows.index]
    learned, kept = (
        WindowData(windows.transitions, windows.index[rows], windows.values[rows])
        for rows in (np.flatnonzero(~back), np.flatnonzero(back))
    )
    say(f"{chosen.sum():,} of {dataset.episodes:,} episodes are kept back for calibration")
    return learned, kept


def _calibrate(network: ConditionalScalar, windows: WindowData, say: Callable[[str], None]) -> LevelMap:
    """The map of levels that these windows need, whose values lie in [-1, 1] as the network's do."""
    count = min(calibration.WINDOWS, len(windows.index))
    rows = np.linspace(0, len(windows.index) - 1, count).astype(int)
    transitions, index = windows.transitions, windows.index[rows]
    observations, actions = transitions.observations[transitions.rows[index]], transitions.actions[index]
    values = np.asarray(windows.values[rows], np.float64)
    distribution = QDistribution(network, unit_interval(-1.0, 1.0))
    found = calibration.positions(distribution, observations, actions, values)
    inside = ", ".join(f"{100 * calibration.inside(found, share):.0f}" for share in COVERAGES)
    say(f"before calibration {inside} % of their returns lie in the 50, 80, 95 % intervals")
    return calibration.fit(found)


def learn_distribution(prepared: Prepared, source_hash: str, config: Config, display: Display) -> Artefact:
    """The Q distribution by the learner that the configuration names."""
    learners = {"quantile": learn_quantile, "distilled": learn_consistency, "teacher": learn_diffusion}
    return learners[config.q_distribution.learner](prepared, source_hash, config, display)


def learn_behaviour(prepared: Prepared, source_hash: str, config: Config, display: Display) -> Artefact:
    """The model of the recorded actions, and the border of the risk set from episodes that it has not seen."""
    sizes = prepared.dataset.observation_size, prepared.dataset.action_size
    start = jax.jit(lambda key: BehaviourModel(*sizes, config.behaviour, key))(_key("initialise"))
    data, unseen, episodes = _split_transitions(prepared, config.behaviour)

    def border(network: BehaviourModel) -> dict[str, Any]:
        surprises = np.asarray(surprise_of(network, unseen.observations, unseen.actions))
        return {
            "surprise_border": behaviour.conformal_border(surprises, episodes, config.behaviour.false_alarms),
            "recorded_surprise_percentiles": np.percentile(surprises.astype(np.float64), np.arange(101)).tolist(),
            "calibrated_on_held_out_episodes": isinstance(data, SomeTransitions),
        }

    return _train_stage(
        "behaviour", behaviour, start, prepared, source_hash, config, display, data=data, findings=border
    )


@eqx.filter_jit
def surprise_of(network: BehaviourModel, observations: jax.Array, actions: jax.Array) -> jax.Array:
    """The surprise of each action at its normalised state."""
    return network.surprise(observations, actions)


def _split_transitions(prepared: Prepared, config: behaviour.Config) -> tuple[Any, LoggedTransitions, np.ndarray]:
    """What the model of recorded actions learns from, and the actions that set its border with the episode of each.

    Streamed data, and a handful of episodes, are not split: then the border is that of the actions learned from.
    """
    dataset = prepared.dataset
    flags = behaviour.held_out_episodes(dataset.episodes, config)
    learned, candidates = prepared.transitions, np.arange(dataset.transitions)
    if isinstance(prepared.transitions, TransitionData) and flags.any():
        held = np.repeat(flags, dataset.lengths)
        learned = SomeTransitions(prepared.transitions, jnp.asarray(np.flatnonzero(~held), jnp.int32))
        candidates = np.flatnonzero(held)
    index = candidates[np.linspace(0, len(candidates) - 1, min(CALIBRATION_ROWS, len(candidates))).astype(int)]
    episodes = np.searchsorted(np.cumsum(dataset.lengths), index, side="right")
    return learned, prepared.transitions.at(jnp.asarray(index, jnp.int32)), episodes


def load_behaviour(model: Path, config: Config, observation_size: int, action_size: int) -> BehaviourModel:
    """The trained model of the recorded actions from its file."""
    sizes = observation_size, action_size
    like = jax.eval_shape(lambda key: BehaviourModel(*sizes, config.behaviour, key), _key("initialise"))
    return storage.load_pytree(model, like)[0]


def check_origin(folder: Path, manifest: dict[str, Any], dataset_sha256: str) -> None:
    """Refuse what was learned from other data, or written by another version."""
    identity = manifest.get("identity") if isinstance(manifest, dict) else None
    identity = identity if isinstance(identity, dict) else {}
    if identity.get("dataset_sha256") != dataset_sha256:
        raise UsageError(f"{folder} was learned from another dataset; remove that folder and go on.")
    if identity.get("format") != FORMAT:
        raise UsageError(f"{folder} was written by another version of qdq; remove that folder and go on.")


def load_distribution(
    model: Path, config: Config, observation_size: int, action_size: int, manifest: dict[str, Any]
) -> QDistribution:
    """The trained distribution from its file."""
    network, _ = storage.load_pytree(
        model, jax.eval_shape(_initialise(config, observation_size, action_size), _key("initialise"))
    )
    kind = TeacherDistribution if config.q_distribution.learner == "teacher" else QDistribution
    saved = manifest.get("calibration")
    levels = None if saved is None else calibration.from_json(saved)
    return kind(network, unit_interval(manifest["q_minimum"], manifest["q_maximum"]), levels)


def _spread_out(prepared: Prepared, count: int) -> LoggedTransitions:
    """`count` transitions evenly spaced over the dataset."""
    return prepared.transitions.at(jnp.linspace(0, prepared.dataset.transitions - 1, count).astype(jnp.int32))


def recorded_uncertainty(distribution: QDistribution, prepared: Prepared, rule: uncertainty.Config) -> list[float]:
    """The percentiles 0, 1, ... 100 of H over recorded actions: what a new action's H is compared with."""
    batch = _spread_out(prepared, 4096)
    _, spread = uncertainty.mean_and_std(distribution, batch.observations, batch.actions, rule, jax.random.key(0))
    return np.percentile(np.asarray(spread, np.float64), np.arange(101)).tolist()


def recorded_pairs(prepared: Prepared) -> RecordedPairs:
    """Recorded states and actions for the control that measures the distance to them."""
    batch = _spread_out(prepared, min(RECORDED_PAIRS, prepared.dataset.transitions))
    return RecordedPairs.of(batch.observations, batch.actions)


def choose_uncertainty_rule(
    distribution: QDistribution, prepared: Prepared, config: Config
) -> tuple[uncertainty.Config, float]:
    """Compare the quadrature with a finer one on 512 data points and fall back where they disagree."""
    batch = _spread_out(prepared, 512)
    return uncertainty.choose_rule(distribution, batch.observations, batch.actions, config.uncertainty)
