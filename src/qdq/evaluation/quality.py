"""How good the uncertainty is, as numbers: what tells actions apart, and is the learned Q distribution calibrated?

    detection    AUROC of H, and of the surprise where the run has a model of the recorded actions: recorded actions against
                 random, perturbed, another policy's and the trained policy's actions
    flags        the share of each kind of action whose surprise is beyond the border; of recorded ones, false alarms
    action share how much of the variance of log H, or of the surprise, is due to the action rather than to the state
    border       the paper's check: which quantile of H over random actions the 95 % quantile over recorded ones is
    calibration  coverage of central intervals, CRPS and PIT of the recorded truncated returns
    yardstick    the AUROC of the density of the policies that collected the data, where they are known
    checkpoints  surprise of the policies that a run kept along the way beside their distance to the recorded pairs

Each is measured twice: with the run's own models, which have seen all of the data, and with second ones that are learned
with the same settings on 90 % of the episodes and asked about the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp, ndtri

from qdq import config as configuration
from qdq import storage
from qdq.api import Run
from qdq.behaviour import BehaviourModel
from qdq.config import Config
from qdq.data.blocks import take
from qdq.data.episodes import Dataset
from qdq.data.factory import collecting_policies
from qdq.data.prepare import Prepared, prepare
from qdq.data.tasks import recognise
from qdq.errors import UsageError, suggest
from qdq.evaluation.measures import auroc, border_quantile, calibration, share_within, spearman, starting_beta
from qdq.online.acting import BehaviourPolicy, DensityBehaviour
from qdq.online.snapshots import RECIPES, load_snapshots, snapshot_path
from qdq.q_distribution import QDistribution
from qdq.training import stages
from qdq.training.deployed import DeployedPolicy
from qdq.training.display import Display, Silent
from qdq.uncertainty import Config as Rule
from qdq.uncertainty import mean_and_std

FORMAT = 1
DISTANCES = (0.05, 0.1, 0.2, 0.5, 1.0)  # of a perturbed action, in units of half the action's range
QUANTILES = 100  # of the learned distribution at each window
HELD_OUT = 0.1  # of the episodes
ACTIONS_PER_STATE = 8
BLOCK = 4096  # rows that are computed together

Actions = dict[str, np.ndarray]  # of each kind, in [-1, 1], one row for each measured state


@dataclass(frozen=True)
class OtherPolicy:
    """Another behaviour policy to compare recorded actions with."""

    name: str
    policy: BehaviourPolicy  # acts in [-1, 1]


@dataclass(frozen=True)
class Watch:
    """A model of the recorded actions with the border of its risk set."""

    model: BehaviourModel
    border: float
    border_from_unseen: bool  # whether it was set by episodes that the model has not learned from

    @classmethod
    def of(cls, model: BehaviourModel, manifest: dict[str, Any]) -> "Watch":
        """A trained model and what its manifest says."""
        return cls(model, float(manifest["surprise_border"]), manifest.get("calibrated_on_held_out_episodes") is True)


@dataclass(frozen=True)
class View:
    """A Q distribution, where there is one a model of the recorded actions, and what they are asked about."""

    distribution: QDistribution
    watch: Watch | None
    prepared: Prepared  # whose normalisers belong to both
    marginal: np.ndarray  # quantiles of all returns that it was learned from
    observations: np.ndarray  # in their own units, one row for each transition below
    actions: np.ndarray  # in [-1, 1]
    window_observations: np.ndarray
    window_actions: np.ndarray
    window_returns: np.ndarray
    all_observations: np.ndarray  # of every transition of the episodes, for what is cheap enough to ask of all
    all_actions: np.ndarray
    episodes: int

    def inputs(self, observations: np.ndarray, actions: np.ndarray) -> tuple[jax.Array, jax.Array]:
        """Observations and scaled actions as the distribution wants them."""
        return self.prepared.observation_normaliser.forward(jnp.asarray(observations)), jnp.asarray(actions)

    def uncertainty(self, actions: np.ndarray, rule: Rule, observations: np.ndarray | None = None) -> np.ndarray:
        """H of one action for each transition."""
        states = self.observations if observations is None else observations

        def spread(rows: slice) -> jax.Array:
            inputs = self.inputs(states[rows], actions[rows])
            return mean_and_std(self.distribution, *inputs, rule, jax.random.key(0))[1]

        return _in_blocks(spread, len(states))

    def surprise(self, actions: np.ndarray, observations: np.ndarray | None = None) -> np.ndarray:
        """The surprise of one action for each transition."""
        assert self.watch is not None, "the surprise needs a model of the recorded actions"
        model, states = self.watch.model, self.observations if observations is None else observations
        return _in_blocks(
            lambda rows: stages.surprise_of(model, *self.inputs(states[rows], actions[rows])), len(states)
        )

    def quantiles(self) -> np.ndarray:
        """Quantiles of the learned distribution at each window: shape (QUANTILES, windows)."""
        z = jnp.asarray(ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES), jnp.float32)[:, None]

        def levels(rows: slice) -> jax.Array:
            states, actions = self.inputs(self.window_observations[rows], self.window_actions[rows])
            return _values(self.distribution, states, actions, jnp.broadcast_to(z, (QUANTILES, len(states))))

        return _in_blocks(levels, len(self.window_returns), BLOCK // 16)


@eqx.filter_jit
def _values(distribution: QDistribution, observations: jax.Array, actions: jax.Array, z: jax.Array) -> jax.Array:
    return distribution.values(observations, actions, z)


def _in_blocks(function: Callable[[slice], jax.Array], count: int, block: int = BLOCK) -> np.ndarray:
    parts = [np.asarray(function(slice(i, i + block)), np.float64) for i in range(0, count, block)]
    return np.concatenate(parts, axis=-1)


def quality(
    run: Run,
    dataset: Dataset,
    other_policy: OtherPolicy | None = None,
    states: int = 4096,
    seed: int = 0,
    display: Display | None = None,
    checkpoints: bool = False,
) -> dict[str, Any]:
    """Everything above for a finished run and the dataset it was trained on, as JSON.

    At most `states` transitions and as many windows are drawn for each measurement. The second models are learned on the
    first call and found in the cache afterwards. A dataset of one episode has no held-out part. With `checkpoints` the
    policies that the run kept along the way are measured, too.
    """
    _check_request(run, dataset, states, seed)
    kept = _kept_policies(run) if checkpoints else None
    prepared = prepare(dataset, run.config)
    everything = np.arange(dataset.episodes)
    watch = _own_watch(run)
    views = {
        "in_sample": _view(run.distribution, watch, prepared, prepared, dataset, everything, states, seed),
        "held_out": _held_out_view(run, prepared, dataset, states, seed, display or Silent()),
    }
    result: dict[str, Any] = {
        "format": FORMAT,
        "dataset": dataset.name,
        "dataset_sha256": dataset.sha256,
        "states": states,
        "seed": seed,
        "other_policy": other_policy.name if other_policy else None,
    }
    collectors = collecting_policies(dataset)
    for name, view in views.items():
        if view is None:
            result[name] = None
            continue
        kinds = compared_actions(view, run, other_policy, seed)
        result[name] = _measure(view, run, kinds, seed)
        if name == "held_out":
            result[name]["collecting_policy"] = _yardstick(view, collectors, kinds)
    own = views["in_sample"]
    result["checkpoints"] = None if kept is None or own is None else _along_the_way(own, run, kept)
    return result


def _own_watch(run: Run) -> Watch | None:
    """The run's own model of the recorded actions; None where it has none."""
    if not run.watches_actions:
        return None
    return Watch.of(run.behaviour, storage.read_json(run.path / "behaviour" / "manifest.json"))


def recorded_and_random(run: Run, dataset: Dataset, states: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """H of recorded and of uniformly random actions at the same states, with the run's own Q distribution."""
    _check_request(run, dataset, states, seed)
    prepared = prepare(dataset, run.config)
    view = _view(run.distribution, None, prepared, prepared, dataset, np.arange(dataset.episodes), states, seed)
    random = compared_actions(view, run, None, seed)["random"]
    return view.uncertainty(view.actions, run.uncertainty_rule), view.uncertainty(random, run.uncertainty_rule)


def _check_request(run: Run, dataset: Dataset, states: int, seed: int) -> None:
    if states < 2 * ACTIONS_PER_STATE:
        raise UsageError(f"--states must be at least {2 * ACTIONS_PER_STATE}, but is {states}.")
    if seed < 0:
        raise UsageError(f"--seed must not be negative, but is {seed}.")
    check_dataset(run, dataset)
    _ = run.distribution  # a run without one is refused before anything is computed


def check_dataset(run: Run, dataset: Dataset) -> None:
    """Refuse a dataset that is not the one a run was trained on."""
    if run.manifest.get("dataset_sha256") != dataset.sha256:
        raise UsageError(
            f"{run.path} was not trained on dataset {dataset.name!r} but on {run.manifest['dataset']!r} (by the hash of its "
            "arrays); give the dataset it was trained on."
        )


def hold_out(episodes: int, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """A random split into kept and held-out episodes, both in order; None where there is only one."""
    if episodes < 2:
        return None
    order = np.random.default_rng([seed, 0]).permutation(episodes)
    count = max(1, round(HELD_OUT * episodes))
    return np.sort(order[count:]), np.sort(order[:count])


def _held_out_view(
    run: Run, prepared: Prepared, dataset: Dataset, states: int, seed: int, display: Display
) -> View | None:
    split = hold_out(dataset.episodes, seed)
    if split is None:
        return None
    kept, held = split
    config: Config = run.config
    # The rewards are shifted and scaled already, so that both distributions are in the same units.
    for key, value in (("data.reward_scaling", "none"), ("data.reward_shift", 0.0)):
        config = configuration.replace(config, key, value)
    rest = prepared.dataset.select(kept)
    learned_from = prepare(rest, config)
    display.line(f"held out: {len(held)} of {dataset.episodes} episodes; second models of the others")
    artefact = stages.learn_distribution(learned_from, rest.sha256, config, display)
    sizes = dataset.observation_size, dataset.action_size
    distribution = stages.load_distribution(artefact.path / "model.safetensors", config, *sizes, artefact.manifest)
    watch = None
    if run.watches_actions:
        artefact = stages.learn_behaviour(learned_from, rest.sha256, config, display)
        model = stages.load_behaviour(artefact.path / "model.safetensors", config, *sizes)
        watch = Watch.of(model, artefact.manifest)
    return _view(distribution, watch, learned_from, prepared, dataset, held, states, seed)


def _view(
    distribution: QDistribution,
    watch: Watch | None,
    learned_from: Prepared,
    asked: Prepared,
    dataset: Dataset,
    episodes: np.ndarray,
    states: int,
    seed: int,
) -> View:
    """Models asked about random transitions and windows of some episodes."""
    random = np.random.default_rng([seed, 1])
    inside = np.zeros(dataset.episodes, bool)
    inside[episodes] = True
    member = np.repeat(inside, dataset.lengths)
    index = _choose(np.flatnonzero(member), states, random)
    starts = np.asarray(asked.windows.index)
    windows = _choose(np.flatnonzero(member[starts]), states, random)
    scaled = np.clip(np.asarray(asked.action_scaler.forward(jnp.asarray(dataset.actions))), -1.0, 1.0)
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return View(
        distribution,
        watch,
        learned_from,
        np.quantile(np.asarray(learned_from.windows.values, np.float64), levels, method="hazen")[:, None],
        dataset.observations[dataset.rows_of(index)],
        scaled[index],
        dataset.observations[dataset.rows_of(starts[windows])],
        scaled[starts[windows]],
        np.asarray(take(asked.windows.values, windows), np.float64),
        dataset.observations[dataset.rows_of(np.flatnonzero(member))],
        scaled[member],
        len(episodes),
    )


def _choose(candidates: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    if len(candidates) <= count:
        return candidates
    return np.sort(random.choice(candidates, count, replace=False))


def _measure(view: View, run: Run, kinds: Actions, seed: int) -> dict[str, Any]:
    rule = run.uncertainty_rule
    recorded = view.uncertainty(view.actions, rule)
    spreads = {name: view.uncertainty(actions, rule) for name, actions in kinds.items()}
    quantile = border_quantile(recorded, spreads["random"])
    smallest = np.finfo(np.float32).tiny
    return {
        "states": len(recorded),
        "auroc": {name: auroc(recorded, spread) for name, spread in spreads.items()},
        "action_share": _action_share(
            view, lambda actions, states: np.log(np.maximum(view.uncertainty(actions, rule, states), smallest)), seed
        ),
        "border_quantile": quantile,
        "starting_beta": starting_beta(quantile),
        "surprise": None if view.watch is None else measure_surprise(view, view.watch, kinds, seed),
        "calibration": calibration(view.quantiles(), view.window_returns, view.marginal) | {"episodes": view.episodes},
    }


def measure_surprise(view: View, watch: Watch, kinds: Actions, seed: int) -> dict[str, Any]:
    """What the surprise tells apart, and what it flags; of recorded actions, all are asked: those are false alarms."""
    recorded = view.surprise(view.actions)
    every = view.surprise(view.all_actions, view.all_observations)
    surprises = {name: view.surprise(actions) for name, actions in kinds.items()}
    return {
        "border": watch.border,
        "border_from_unseen": watch.border_from_unseen,
        "auroc": {name: auroc(recorded, surprise) for name, surprise in surprises.items()},
        "flagged": {
            name: float(np.mean(surprise > watch.border)) for name, surprise in {"recorded": every, **surprises}.items()
        },
        "action_share": _action_share(view, view.surprise, seed),
    }


def _yardstick(view: View, collectors: Sequence[DensityBehaviour], kinds: Actions) -> dict[str, Any] | None:
    """The AUROC of the density of the policies that collected the data; None where they are not known."""
    if not collectors:
        return None
    recorded = mixture_log_density(collectors, view.observations, view.actions)
    areas = {
        name: auroc(-recorded, -mixture_log_density(collectors, view.observations, actions))
        for name, actions in kinds.items()
    }
    return {"policies": len(collectors), "auroc": areas}


def mixture_log_density(
    policies: Sequence[DensityBehaviour], observations: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """The log density of each row's action under policies that act equally often."""
    each = [policy.log_density(observations, actions) for policy in policies]
    return np.asarray(logsumexp(each, axis=0)) - np.log(len(each))


def _kept_policies(run: Run) -> dict[int, DeployedPolicy]:
    kept = run.kept_policies(run.seeds[0])
    if not kept:
        raise UsageError(
            f"{run.path} kept no policies along the way; train it with --set evaluation.keep_policies=true."
        )
    return kept


def _along_the_way(view: View, run: Run, kept: dict[int, DeployedPolicy]) -> dict[str, Any]:
    """Mean surprise and mean H of each kept policy's actions, and how far it is from the nearest recorded pair."""
    pairs, rows = stages.recorded_pairs(view.prepared), []
    for step, policy in kept.items():
        actions = _scaled(view, policy(view.observations))

        def distance(rows: slice, actions: np.ndarray = actions) -> jax.Array:
            return pairs.distance(*view.inputs(view.observations[rows], actions[rows]))

        row: dict[str, Any] = {"step": step, "distance": float(np.mean(_in_blocks(distance, len(actions), 1024)))}
        row |= {"uncertainty": float(np.mean(view.uncertainty(actions, run.uncertainty_rule)))}
        row |= {"surprise": None, "flagged": None}
        if view.watch is not None:
            surprise = view.surprise(actions)
            row |= {"surprise": float(np.mean(surprise)), "flagged": float(np.mean(surprise > view.watch.border))}
        rows.append(row)
    correlations = {name: _rank_correlation(rows, name) for name in ("surprise", "uncertainty")}
    return {"seed": run.seeds[0], "policies": rows, "spearman": correlations}


def _rank_correlation(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Of a signal and the distance over policies; None where one of them does not vary, or was not measured."""
    signal, distance = ([row[key] for row in rows] for key in (name, "distance"))
    if None in signal:
        return None
    found = spearman(np.array(signal), np.array(distance))
    return None if np.isnan(found) else found


def compared_actions(view: View, run: Run, other_policy: OtherPolicy | None, seed: int) -> Actions:
    """The kinds of actions that an uncertainty should tell from the recorded ones, at the same states, in [-1, 1]."""
    random = np.random.default_rng([seed, 2])
    shape = view.actions.shape
    kinds = {"random": random.uniform(-1.0, 1.0, shape)}
    for distance in DISTANCES:
        noise = random.uniform(-distance, distance, shape)
        kinds[f"noise_{distance:g}"] = np.clip(view.actions + noise, -1.0, 1.0)
    if other_policy is not None:
        kinds["other_policy"] = np.clip(other_policy.policy.act(view.observations, random), -1.0, 1.0)
    kinds["policy"] = _scaled(view, run.policy(view.observations))
    return {name: np.asarray(actions, np.float32) for name, actions in kinds.items()}


def _scaled(view: View, actions: Any) -> np.ndarray:
    """A policy's actions in [-1, 1]."""
    return np.asarray(view.prepared.action_scaler.forward(jnp.asarray(actions, jnp.float32)))


def _action_share(view: View, signal: Callable[[np.ndarray, np.ndarray], np.ndarray], seed: int) -> float:
    """The share of the variance of a signal that is due to the action, for random actions at the same states."""
    count = max(2, len(view.observations) // ACTIONS_PER_STATE)
    chosen = np.linspace(0, len(view.observations) - 1, count).astype(int)
    states = np.repeat(view.observations[chosen], ACTIONS_PER_STATE, axis=0)
    shape = len(states), view.actions.shape[1]
    actions = np.random.default_rng([seed, 3]).uniform(-1.0, 1.0, shape).astype(np.float32)
    return share_within(signal(actions, states).reshape(count, ACTIONS_PER_STATE))


def find_other_policy(dataset: Dataset, name: str | None = None) -> OtherPolicy | None:
    """A snapshot of the dataset factory, such as hopper-expert, that acts in the dataset's environment.

    Without a name the expert of the environment's family (the medium level for expert data); None where there is none.
    """
    environment = (dataset.metadata.environment_id or "").split("-v")[0]
    families = {family: recipe.environment_id.split("-v")[0] for family, recipe in RECIPES.items()}
    if name is None:
        own = next((family for family, known in families.items() if known == environment), None)
        if own is None or not snapshot_path(own).exists():
            return None
        recognised = recognise(dataset.metadata.task or dataset.name)
        expert = recognised is not None and recognised.name == f"{own}-expert"
        name = f"{own}-{'medium' if expert else 'expert'}"
    names = [f"{family}-{level}" for family in families for level in ("expert", "medium")]
    if name not in names:
        raise UsageError(f"There is no snapshot {name!r}; {suggest(name, [*names, 'none'])}")
    family, _, level = name.rpartition("-")
    loaded = load_snapshots(family)
    snapshot = loaded.snapshots[loaded.levels.expert if level == "expert" else loaded.levels.medium]
    fits = len(snapshot.layers[0][0]) == dataset.observation_size
    if not fits or (environment and environment != families[family]):
        raise UsageError(
            f"Snapshot {name!r} acts in another environment than dataset {dataset.name!r}; use --against none."
        )
    return OtherPolicy(name, snapshot.policy(loaded.algorithm))
