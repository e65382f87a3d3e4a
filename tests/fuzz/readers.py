"""Every reader of files, with sound files for it and what must hold for whatever it returns."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Folder = Callable[[Path], None]


@dataclass(frozen=True)
class Reader:
    """How to make sound files in an empty folder, how to read them, and which of them are damaged and how."""

    make: Folder
    read: Folder
    files: dict[str, str]  # names in the folder, and the kind of damage: bytes, text or json
    structure: str | None = None  # the name of a strategy in `structures` that makes whole folders


def rows(lengths: tuple[int, ...] = (4, 3, 2)) -> dict[str, np.ndarray]:
    """A few short episodes, so that most bytes of a file are structure."""
    random = np.random.default_rng(0)
    states = [np.cumsum(random.normal(size=(n + 1, 2)), axis=0).astype(np.float32) for n in lengths]
    final = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    terminal = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    return {
        "observations": np.concatenate([s[:-1] for s in states]),
        "actions": random.uniform(-1, 1, (sum(lengths), 1)).astype(np.float32),
        "rewards": random.normal(size=sum(lengths)).astype(np.float32),
        "terminals": final & terminal,
        "truncations": final & ~terminal,
        "next_observations": np.concatenate([s[1:] for s in states]),
    }


def dataset() -> Any:
    """A small dataset with all the metadata there is."""
    from qdq.data.episodes import Metadata, from_arrays
    from qdq.data.references import Reference

    metadata = Metadata(
        "walk",
        "arrays",
        "Hopper-v4",
        {"reset_noise_scale": 0.1},
        None,
        Reference(-1.0, 5.0, "here"),
        {"how": ["walk", 1]},
    )
    return from_arrays(**rows(), action_low=[-1.5], action_high=[1.5], metadata=metadata)


def check_dataset(data: Any) -> None:
    """What every dataset promises, written down a second time."""
    transitions, episodes = len(data.rewards), len(data.lengths)
    assert transitions > 0, "a dataset without transitions"
    assert data.observations.shape == (transitions + episodes, data.observation_size), "observations"
    assert data.actions.shape == (transitions, data.action_size), "actions"
    assert data.terminals.shape == data.truncations.shape == (transitions,), "flags"
    assert data.action_low.shape == data.action_high.shape == (data.action_size,), "bounds"
    assert min(data.observation_size, data.action_size, int(data.lengths.min())) > 0, "an empty axis"
    assert int(data.lengths.sum()) == transitions, "lengths"
    for name in ("observations", "actions", "rewards", "action_low", "action_high"):
        column = getattr(data, name)
        assert column.dtype == np.float32, f"{name} of another type"
        assert np.isfinite(column).all(), f"{name} not finite"
    for name in ("terminals", "truncations"):
        assert getattr(data, name).dtype == np.bool_, f"{name} of another type"
        assert (np.asarray(getattr(data, name)).view(np.uint8) <= 1).all(), f"{name} neither true nor false"
    metadata = data.metadata
    assert isinstance(metadata.name, str)
    assert isinstance(metadata.environment_id, str | None)
    assert isinstance(metadata.environment_options, dict)
    if metadata.reference is not None:
        assert np.isfinite([metadata.reference.random, metadata.reference.expert]).all(), "a reference without a value"
    assert len(data.sha256) == 64


def _loaded(name: str) -> Folder:
    def read(folder: Path) -> None:
        from qdq.data.load import load_dataset

        check_dataset(load_dataset(folder / name))

    return read


def _written(name: str) -> Folder:
    def make(folder: Path) -> None:
        from qdq.data.load import write_dataset

        write_dataset(dataset(), str(folder / name))

    return make


def _make_foreign_hdf5(folder: Path) -> None:
    """A file as D4RL wrote them: plain arrays, attributes, no metadata of ours."""
    import h5py

    with h5py.File(folder / "hopper_medium-v0.hdf5", "w") as file:
        for key, value in rows().items():
            if key not in ("truncations", "next_observations"):
                file[key] = value
        file.attrs["env_id"] = "Walk-v0"
        file.attrs["reference_min_return"] = 1.0
        file.attrs["reference_max_return"] = 5.0
        file.create_group("metadata").attrs["sizes"] = "[1, 2]"


def _make_late_hdf5(folder: Path) -> None:
    """The newest layout of the library: other headers, checksums, chunks of another index."""
    import h5py

    with h5py.File(folder / "late.hdf5", "w", libver="latest") as file:
        for key, value in rows().items():
            name = "timeouts" if key == "truncations" else key
            shape = (None, *value.shape[1:])
            file.create_dataset(
                name, data=value, chunks=(4, *value.shape[1:]), maxshape=shape, fletcher32=True, shuffle=True
            )


def _make_minari(folder: Path) -> None:
    import os

    from qdq.data.minari_format import write_minari

    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    try:
        data = dataset()
        write_minari(dataclasses.replace(data, metadata=dataclasses.replace(data.metadata, name="walk")), "walk-v0")
        header = json.loads((folder / "walk-v0" / "data" / "metadata.json").read_text(encoding="utf-8"))
    finally:
        if before is None:
            del os.environ["MINARI_DATASETS_PATH"]
        else:
            os.environ["MINARI_DATASETS_PATH"] = before
    # A second folder over the same data, with the header that others write.
    (folder / "other-v0" / "data").mkdir(parents=True)
    del header["qdq"]
    (folder / "other-v0" / "data" / "metadata.json").write_text(json.dumps(header), encoding="utf-8")


def _read_minari(folder: Path) -> None:
    from qdq.data.minari_format import read_minari

    check_dataset(read_minari(folder / "walk-v0"))


def _read_other_minari(folder: Path) -> None:
    from qdq.data.minari_format import read_minari

    main, link = folder / "walk-v0" / "data" / "main_data.hdf5", folder / "other-v0" / "data" / "main_data.hdf5"
    if not link.exists():
        link.symlink_to(main)
    check_dataset(read_minari(folder / "other-v0"))


def _make_table_with_columns(folder: Path) -> None:
    from qdq.data.load import write_dataset

    write_dataset(dataset(), str(folder / "table.csv"))
    (folder / "table.toml").rename(folder / "columns.toml")


def _read_table_with_columns(folder: Path) -> None:
    from qdq.data.load import load_dataset

    check_dataset(load_dataset(folder / "table.csv", columns=folder / "columns.toml"))


def _make_mapped(folder: Path) -> None:
    from qdq.data.mapped import write_mapped

    write_mapped(dataset(), folder / "mapped")


def _tree() -> dict[str, Any]:
    return {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": [np.ones(3, np.int32), np.float32(2.5)]}


def _make_tree(folder: Path) -> None:
    from qdq.storage import save_pytree

    save_pytree(folder / "tree.safetensors", _tree(), {"step": "5"})


def _read_arrays(folder: Path) -> None:
    from qdq.storage import load_arrays

    arrays, metadata = load_arrays(folder / "tree.safetensors")
    assert all(isinstance(key, str) and isinstance(value, np.ndarray) for key, value in arrays.items())
    assert all(isinstance(part, str) for item in metadata.items() for part in item)


def _read_tree(folder: Path) -> None:
    import jax

    from qdq.storage import load_pytree

    like = _tree()
    tree, _ = load_pytree(folder / "tree.safetensors", like)
    for found, expected in zip(jax.tree.leaves(tree), jax.tree.leaves(like), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _make_json(folder: Path) -> None:
    from qdq.storage import write_json

    write_json(folder / "study.json", {"name": "study", "trials": [{"value": 1.5, "steps": [1, 2, 3]}], "best": None})


def _read_json(folder: Path) -> None:
    from qdq.storage import content_hash, read_json

    content_hash(read_json(folder / "study.json"))


def _make_download(folder: Path) -> None:
    (folder / "file.hdf5").write_bytes(b"content")
    from qdq.data.download import verify

    verify(folder / "file.hdf5")


def _read_download(folder: Path) -> None:
    from qdq.data.download import verify

    verify(folder / "file.hdf5")


def _layers() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    sizes = ((3, 4), (4, 2))
    return [
        (random.normal(size=size).astype(np.float16), random.normal(size=size[1]).astype(np.float16)) for size in sizes
    ]


def _make_snapshots(folder: Path) -> None:
    from safetensors.numpy import save_file

    from qdq.online.snapshots import save_snapshot

    save_snapshot(folder, _layers(), {"environment_steps": 0, "score": 1.0})
    described = [{"environment_steps": step, "score": 1.5, "return": 20.0} for step in (0, 200)]
    content = {
        "environment_id": "Hopper-v4",
        "algorithm": "td3",
        "seed": 1,
        "levels": {"expert": 200, "medium": 0, "replay": [0, 200]},
        "snapshots": described,
        "versions": {"gymnasium": "1", "mujoco": "3"},
    }
    arrays = {
        f"{step:08d}.layers.{i}.{part}": array
        for step in (0, 200)
        for i, layer in enumerate(_layers())
        for part, array in zip(("weight", "bias"), layer, strict=True)
    }
    save_file(arrays, str(folder / "hopper.safetensors"), metadata={"set": json.dumps(content)})


def _read_snapshot_set(folder: Path) -> None:
    from qdq.online.snapshots import read_snapshot_set

    found = read_snapshot_set(folder / "hopper.safetensors")
    observation = np.zeros(3, np.float32)
    for step in (found.levels.expert, found.levels.medium, *found.levels.replay):
        action = found.snapshots[step].policy(found.algorithm).act(observation, None)
        assert np.isfinite(action).all(), "an action that is no number"
    found.describe(found.levels.replay)


def _read_snapshot(folder: Path) -> None:
    from qdq.online.snapshots import load_snapshot

    for weight, bias in load_snapshot(folder, 0):
        assert weight.shape[1:] == bias.shape, "layers that do not fit"
        assert weight.dtype == bias.dtype == np.float32


def _make_online(folder: Path) -> None:
    from qdq.online.records import RunRecords

    records = RunRecords(folder, None)
    for step in (0, 1000, 2000):
        records.metrics(step, step, {"loss": 1.5}, [1.0, 2.0])
        records.evaluation(step, np.array([1.0, 2.0]), [1.0])


def _read_online(folder: Path) -> None:
    from qdq.online.records import RunRecords, read_evaluations

    for row in read_evaluations(folder):
        assert isinstance(row["environment_steps"], int)
    RunRecords(folder, None).rewind(1000)


def _make_run(folder: Path) -> None:
    """A finished run of QDQ whose networks were never trained."""
    import jax

    from qdq import algorithms, presets, q_distribution, storage
    from qdq.algorithms.problem import Problem
    from qdq.behaviour import BehaviourModel
    from qdq.normalisers import identity
    from qdq.report.runs import PANEL_ARRAYS, PANELS, QUALITY, SURPRISE_ARRAYS
    from qdq.training import stages
    from qdq.training.deployed import DeployedPolicy

    small = (
        "algorithm.policy_hidden=8,8",
        "q_distribution.hidden=8,8",
        "q_distribution.groups=2",
        "behaviour.hidden=8",
    )
    config, _ = presets.build("qdq", "fast", None, small, 400)
    storage.write_json(folder / "config.json", config.to_dict())
    manifest = {
        "format": 1,
        "config_hash": storage.content_hash(config.to_dict()),
        "dataset": "walk",
        "dataset_sha256": "0" * 64,
        "task": None,
        "environment_id": "Hopper-v4",
        "environment_options": {},
        "reference": {"random": 0.0, "expert": 1.0, "origin": "here"},
        "observation_size": 3,
        "action_size": 2,
        "seeds": [0, 1],
        "streamed": None,
        "versions": {"qdq": "0"},
        "machine": {"cores": 2},
        "created": "2026-01-01T00:00:00Z",
    }
    storage.write_json(folder / "manifest.json", manifest)
    module, key = algorithms.get("qdq"), jax.random.key(0)
    model = BehaviourModel(3, 2, config.behaviour, key)
    problem = Problem(3, 2, 400, 0.0, 1.0, behaviour=model)
    policy = DeployedPolicy(module.policy(module.init(config.algorithm, problem, key)), identity(3), identity(2))
    storage.save_pytree(folder / "seed_0" / "policy.safetensors", policy)
    storage.save_pytree(folder / "seed_0" / "policies" / "step_000000200.safetensors", policy)
    storage.write_text(folder / "seed_0" / "evaluations.jsonl", '{"step": 200, "score": 1.5, "returns": [1.0, 2.5]}\n')
    network = q_distribution.build_network(config.q_distribution, 3, 2, key)
    storage.save_pytree(folder / "q_distribution" / "model.safetensors", network)
    origin = {"dataset_sha256": manifest["dataset_sha256"], "format": stages.FORMAT}
    levels = {"z": [-1.0, 0.0, 1.0], "mapped": [-1.5, 0.25, 1.5]}
    learned = {"q_minimum": 0.0, "q_maximum": 1.0, "stages": {}, "identity": origin, "calibration": levels}
    storage.write_json(folder / "q_distribution" / "manifest.json", learned)
    rule = {"rule": "gauss_hermite", "nodes": 8, "samples": 50, "agreement": 0.02, "quadrature_gap": 0.0}
    storage.write_json(
        folder / "q_distribution" / "rule.json", {**rule, "recorded_uncertainty_percentiles": list(range(101))}
    )
    storage.save_pytree(folder / "behaviour" / "model.safetensors", model)
    found = {"surprise_border": 1.5, "calibrated_on_held_out_episodes": True, "stages": {}, "identity": origin}
    storage.write_json(folder / "behaviour" / "manifest.json", found)
    arrays = {name: np.linspace(0, 1, 5) for name in PANEL_ARRAYS + SURPRISE_ARRAYS} | {"surprise_border": np.ones(1)}
    with open(folder / PANELS, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    evaluations = [{"step": step, "score": 10.0 + step} for step in (200, 400)]
    outcome = {"seed": 0, "evaluations": evaluations, "final_score": 12.0, "warnings": ["late"]}
    outcome |= {"seconds": 5.0, "evaluation_seconds": 1.0, "steps_per_second": 100.0}
    storage.write_json(folder / "seed_0" / "outcome.json", outcome)
    storage.write_json(folder / "seed_1" / "progress.json", {"step": 200, "seconds": 1.0, "warnings": []})
    storage.write_text(folder / "seed_1" / "evaluations.jsonl", '{"step": 200, "score": 1.5}\n{"step": 400, "sc')
    storage.write_text(folder / "seed_1" / "metrics.csv", "step,loss\n200,1.5\n400,0.5\n")
    result = {"dataset": {"behaviour_score": 3.0}, "stages": {"quantile": {"seconds": 2.0}}, "seeds": [outcome]}
    storage.write_json(folder / "result.json", result)
    storage.write_json(folder / "data_card.json", {"score": 3.0, "name": "walk"})
    storage.write_json(folder / QUALITY, _quality())


def _quality() -> dict[str, Any]:
    calibration = {
        "windows": 100,
        "episodes": 10,
        "coverage": {"50%": 0.5, "80%": 0.75, "95%": 0.9},
        "crps": 1.5,
        "crps_skill": 0.25,
        "pit_histogram": 20 * [0.05],
    }
    part = {
        "auroc": {"random": 0.6, "noise_0.1": 0.5, "other_policy": 0.4},
        "action_share": 0.1,
        "border_quantile": 0.9,
    }
    part |= {"starting_beta": 0.9, "calibration": calibration}
    flagged = {"recorded": 0.05, "random": 0.5, "other_policy": 0.25}
    surprise = {"auroc": {"random": 0.9, "other_policy": 0.7}, "flagged": flagged, "action_share": 0.9, "border": 3.5}
    part["surprise"] = surprise
    rows = [{"step": 200, "surprise": 1.5, "flagged": 0.1, "uncertainty": 2.5, "distance": 0.5}]
    checkpoints = {"seed": 0, "policies": rows, "spearman": {"surprise": 1.0, "uncertainty": None}}
    held_out = part | {"collecting_policy": {"policies": 1, "auroc": {"random": 0.95}}}
    content = {"dataset_sha256": "0", "other_policy": "walk-expert", "in_sample": part, "held_out": held_out}
    return content | {"checkpoints": checkpoints}


def _read_run(folder: Path) -> None:
    import jax

    import qdq

    run = qdq.load_run(folder)
    for tree in (run.deployed_policy(), run.distribution, run.behaviour, *run.kept_policies(0).values()):
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree)), "weights that are no numbers"
    assert np.isfinite([run.uncertainty_border(), run.surprise_border]).all(), "a border that is no number"
    assert run.uncertainty_rule.nodes > 0
    assert isinstance(run.result, dict)
    assert all(np.isfinite(value) for value in run.mean_returns(0).values()), "a return that is no number"


def _read_report(folder: Path) -> None:
    from qdq.report import plots
    from qdq.report.methods import Evidence, Row
    from qdq.report.quality import section
    from qdq.report.runs import find_runs, mean_curve

    for run in find_runs([folder]):
        assert section(Evidence([run], [Row("walk", "QDQ", [run], run.seeds)]))[1]
        _ = (run.name, run.dataset, run.algorithm, run.preset, run.steps, run.task, run.unit, run.finished, run.stages)
        _ = (run.data_card, run.behaviour_score)
        if run.panels is not None:
            plots.uncertainties(run.panels, "H", "surprise")
        for seed in run.seeds:
            assert all(column.dtype == np.float64 for column in seed.metrics.values())
        mean_curve(run.seeds)


def _make_stopped(folder: Path) -> None:
    from qdq import storage
    from qdq.training.hooks import Checkpoints

    for step in (200, 400):
        Checkpoints(folder, "one", 200, print).save(step, _tree(), {"seconds": 1.0, "warnings": []})
    storage.write_text(folder / "metrics.csv", "step,loss\n200,1.5\n400,0.5\n600,0.25\n")
    storage.write_text(folder / "evaluations.jsonl", '{"step": 200, "score": 1.5}\n{"step": 400, "score": 2.5}\n')


def _read_stopped(folder: Path) -> None:
    from qdq.errors import DataError
    from qdq.training.hooks import Checkpoints, CsvLog, JsonLines

    said: list[str] = []
    step, _, notes = Checkpoints(folder, "one", 200, said.append).restore(_tree())
    assert step in (0, 200, 400)
    assert isinstance(notes, dict)
    assert step == 400 or said, "a checkpoint that was passed over in silence"
    assert all(entry["step"] <= 400 for entry in JsonLines(folder / "evaluations.jsonl", 400).entries)
    CsvLog(folder / "metrics.csv", 400)(600, None, {"loss": 0.25})
    if said:  # the harness counts what is noticed
        raise DataError(said[0])


STOPPED_FILES = {
    "step_000000400.safetensors": "safetensors",
    "metrics.csv": "text",
    "evaluations.jsonl": "text",
}
RUN_FILES = {
    "manifest.json": "json",
    "config.json": "json",
    "result.json": "json",
    "seed_0/policy.safetensors": "safetensors",
    "seed_0/policies/step_000000200.safetensors": "safetensors",
    "seed_0/evaluations.jsonl": "text",
    "q_distribution/model.safetensors": "safetensors",
    "q_distribution/manifest.json": "json",
    "q_distribution/rule.json": "json",
    "behaviour/model.safetensors": "safetensors",
    "behaviour/manifest.json": "json",
}
REPORT_FILES = {
    "manifest.json": "json",
    "config.json": "json",
    "result.json": "json",
    "data_card.json": "json",
    "quality.json": "json",
    "q_distribution/panels.npz": "bytes",
    "seed_0/outcome.json": "json",
    "seed_1/progress.json": "json",
    "seed_1/evaluations.jsonl": "text",
    "seed_1/metrics.csv": "text",
}
MAPPED = {f"mapped/{name}.npy": "bytes" for name in ("observations", "rewards", "terminals", "lengths", "action_low")}

READERS = {
    "stopped": Reader(_make_stopped, _read_stopped, STOPPED_FILES),
    "d4rl": Reader(_written("data.hdf5"), _loaded("data.hdf5"), {"data.hdf5": "bytes"}, "hdf5"),
    "d4rl-foreign": Reader(
        _make_foreign_hdf5, _loaded("hopper_medium-v0.hdf5"), {"hopper_medium-v0.hdf5": "bytes"}, "hdf5"
    ),
    "d4rl-late": Reader(_make_late_hdf5, _loaded("late.hdf5"), {"late.hdf5": "bytes"}, "hdf5"),
    "minari": Reader(
        _make_minari,
        _read_minari,
        {"walk-v0/data/metadata.json": "json", "walk-v0/data/main_data.hdf5": "bytes"},
        "minari",
    ),
    "minari-other": Reader(_make_minari, _read_other_minari, {"other-v0/data/metadata.json": "json"}),
    "npz": Reader(_written("data.npz"), _loaded("data.npz"), {"data.npz": "bytes"}, "npz"),
    "csv": Reader(_written("data.csv"), _loaded("data.csv"), {"data.csv": "text", "data.toml": "text"}),
    "columns": Reader(_make_table_with_columns, _read_table_with_columns, {"columns.toml": "text"}, "toml"),
    "parquet": Reader(_written("data.parquet"), _loaded("data.parquet"), {"data.parquet": "bytes"}, "parquet"),
    "mapped": Reader(_make_mapped, _loaded("mapped"), {"mapped/dataset.json": "json", **MAPPED}),
    "arrays": Reader(_make_tree, _read_arrays, {"tree.safetensors": "safetensors"}),
    "pytree": Reader(_make_tree, _read_tree, {"tree.safetensors": "safetensors"}),
    "json": Reader(_make_json, _read_json, {"study.json": "json"}),
    "download": Reader(_make_download, _read_download, {"file.json": "json"}),
    "snapshot-set": Reader(_make_snapshots, _read_snapshot_set, {"hopper.safetensors": "safetensors"}),
    "snapshot": Reader(_make_snapshots, _read_snapshot, {"snapshots/00000000.safetensors": "safetensors"}),
    "online": Reader(_make_online, _read_online, {"evaluations.jsonl": "text", "metrics.csv": "text"}),
    "run": Reader(_make_run, _read_run, RUN_FILES),
    "report": Reader(_make_run, _read_report, REPORT_FILES),
}
