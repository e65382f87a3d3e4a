"""Commands about runs: train, evaluate, uncertainty."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction

DatasetArgument = Annotated[Positional[str], tyro.conf.arg(metavar="DATASET")]
RunArgument = Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]


def train(
    dataset: DatasetArgument,
    /,
    algorithm: str = "qdq",
    preset: str = "fast",
    seeds: int = 1,
    first_seed: int = 0,
    steps: int | None = None,
    out: Path = Path("runs"),
    name: str | None = None,
    resume: bool = False,
    columns: Path | None = None,
    memory: str | None = None,
    together: bool | None = None,
    distributed: bool = False,
    set: UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Run every stage on a dataset: a trained policy, its score and its pictures in one folder.

    Args:
        dataset: Name of a made dataset, path of a file or folder, minari:ID, or d4rl:NAME.
        algorithm: qdq, bc, td3-bc or iql.
        preset: Named set of values; see `qdq presets`.
        seeds: How many seeds to run, one after the other.
        first_seed: Number of the first seed; the others follow it.
        steps: Gradient steps of the actor-critic (default: the preset's).
        out: Folder that holds runs.
        name: Name of the run folder (default: made from dataset, algorithm and preset).
        resume: Go on with an existing run folder from its last checkpoint.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data and the networks may take, such as 2GiB or 500MB; a larger dataset is streamed from
            disk (default: all data in memory).
        together: True trains all seeds in one program over all devices, False one after the other (default: together where
            there are several devices, or one that is no CPU).
        distributed: This process is one of several of one run (jax.distributed): on Slurm, MPI and TPU pods it finds the
            others, elsewhere JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name them.
        set: Change one setting: section.key=value; may be repeated. `qdq presets show fast` lists them.
    """
    from qdq.errors import UsageError
    from qdq.settings import checked_seed

    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, but is {seeds}.")
    numbers = list(range(checked_seed(first_seed), checked_seed(first_seed + seeds - 1) + 1))
    if distributed:
        from qdq.training.compilation import join_others

        join_others()
    import shlex

    import qdq
    from qdq.data.load import load_dataset

    data = load_dataset(dataset, columns=columns, memory=memory)
    origin = shlex.join([dataset] if columns is None else [dataset, "--columns", str(columns)])
    options: dict[str, Any] = {"steps": steps, "out": out, "name": name, "resume": resume, "memory": memory}
    options["together"] = together
    run = qdq.train(data, algorithm, preset, numbers, overrides=set, origin=origin, **options)
    _print_result(run)


def _print_result(run: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    result = run.result
    console = Console(highlight=False)
    if result["score"] is None and result["dataset"]["behaviour_score"] is None:
        console.print(f"Trained without a score: dataset {result['dataset']['name']!r} names no environment.")
        console.print(f"Everything is in {run.path}", soft_wrap=True, markup=False)
        return
    table = Table(title=f"{result['dataset']['name']}, {result['steps']:,} steps, {result['score_unit']}")
    for column in ("policy", "mean", "std", "IQM", "95 % interval", "seeds"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    behaviour = result["dataset"]["behaviour_score"]
    if behaviour is not None:
        table.add_row("behaviour (the data)", f"{behaviour:.1f}", "", "", "", "")
    score = result["score"]
    if score is not None:
        interval, spread = "needs more seeds", ""
        if score["interval_95"] is not None:
            low, high = score["interval_95"]
            interval, spread = f"{low:.1f} to {high:.1f}", f"{score['std']:.1f}"
        table.add_row(
            result["algorithm"], f"{score['mean']:.1f}", spread, f"{score['iqm']:.1f}", interval, str(score["seeds"])
        )
    console.print(table)
    console.print(f"Everything is in {run.path}", soft_wrap=True, markup=False)


def evaluate(
    run: RunArgument,
    /,
    episodes: int = 10,
    seed: int = 0,
    json: bool = False,
    ope: Literal["fqe"] | None = None,
    dataset: str | None = None,
    columns: Path | None = None,
    checkpoints: bool = False,
    steps: int | None = None,
    discount: float | None = None,
) -> None:
    """Play fresh episodes with every trained policy of a run, or estimate their values from the data alone (--ope).

    Args:
        run: Run folder.
        episodes: Episodes for each trained seed.
        seed: Seed of the episodes' starts, or of the estimate; the same seed gives the same numbers.
        json: Print JSON instead of text.
        ope: Off-policy evaluation without an environment: fqe is fitted Q evaluation.
        dataset: With --ope: the dataset that the run was trained on.
        columns: With --ope: TOML file that maps the columns of a CSV or Parquet file.
        checkpoints: With --ope: every policy that was kept along the way (evaluation.keep_policies), into fqe.json.
        steps: With --ope: gradient steps (default: 20,000).
        discount: With --ope: discount per step (default: 0.99).
    """
    from qdq.errors import UsageError
    from qdq.settings import checked_seed

    checked_seed(seed)
    if ope is not None:
        if dataset is None:
            raise UsageError("--ope needs the recorded episodes; add --dataset with what the run was trained on.")
        from qdq.cli.offline import evaluate_offline

        return evaluate_offline(run, dataset, columns, checkpoints, json, steps=steps, discount=discount, seed=seed)
    if dataset is not None or columns is not None or checkpoints or steps is not None or discount is not None:
        raise UsageError("--dataset, --columns, --checkpoints, --steps and --discount belong to --ope fqe; add it.")
    import json as json_module

    import numpy as np

    import qdq
    from qdq.data.episodes import Metadata
    from qdq.data.references import Reference
    from qdq.evaluation.rollout import Evaluator

    if episodes < 1:
        raise UsageError(f"--episodes must be at least 1, but is {episodes}.")
    opened = qdq.load_run(run)
    saved = opened.manifest
    metadata = Metadata(
        saved["dataset"],
        environment_id=saved["environment_id"],
        environment_options=saved["environment_options"],
    )
    reference = Reference(**saved["reference"]) if saved["reference"] else None
    evaluator = Evaluator(metadata, episodes, opened.manifest["observation_size"], opened.manifest["action_size"])
    rows = []
    for trained in opened.seeds:
        played = evaluator.play(opened.deployed_policy(trained).actor(), seed=seed)
        mean = float(np.mean(played.returns))
        rows.append(
            {
                "seed": trained,
                "mean_return": mean,
                "score": float(np.mean(reference.score(played.returns))) if reference else None,
                "returns": played.returns,
                "lengths": played.lengths,
            }
        )
    evaluator.close()
    if json:
        print(
            json_module.dumps(
                {"run": str(run), "environment_id": saved["environment_id"], "episodes": episodes, "seeds": rows}
            )
        )
        return
    for row in rows:
        score = "" if row["score"] is None else f", score {row['score']:.1f}"
        print(f"seed {row['seed']}: return {row['mean_return']:.1f} over {episodes} episodes{score}")


def uncertainty(
    run: RunArgument,
    /,
    input: Path,
    output: Path | None = None,
    quantile: float | None = None,
    format: Literal["text", "json"] = "text",
) -> None:
    """H, the surprise and the risk flag for observations and actions of your own.

    An action is flagged where its surprise is beyond the border that the run has set by recorded actions of unseen episodes.
    A run without a model of the recorded actions has no surprise; it flags by H, which says little about the action.

    Args:
        run: Run folder of algorithm qdq.
        input: NPZ file with arrays `observations` and `actions`, one row each.
        output: NPZ file to write `uncertainty`, `surprise`, `risky` and `border` to (default: print).
        quantile: Without a model of the recorded actions: an action is flagged where its H exceeds this quantile of H over the
            run's own data (default: 0.95).
        format: How to print without --output.
    """
    import json

    import numpy as np

    import qdq
    from qdq import storage
    from qdq.data.npz import read_arrays
    from qdq.errors import DataError, UsageError

    if quantile is not None and not 0.0 < quantile < 1.0:
        raise UsageError(f"--quantile must lie between 0 and 1, but is {quantile}.")
    opened = qdq.load_run(run)
    watched = opened.watches_actions
    if watched and quantile is not None:
        raise UsageError(
            f"{run} flags actions by their surprise, whose border was set when it was trained; leave out --quantile."
        )
    arrays = read_arrays(input, ("observations", "actions"))
    for name in ("observations", "actions"):
        if name not in arrays:
            raise DataError(f"{input} has no array {name!r}; it needs observations and actions, one row each.")
    rows = arrays["observations"], arrays["actions"]
    quantile = 0.95 if quantile is None else quantile
    # A model of the recorded actions may stand alone: not every run with one learns a Q distribution.
    spread = opened.uncertainty(*rows) if opened.knows_returns or not watched else None
    surprise = opened.surprise(*rows) if watched else None
    border = opened.surprise_border if watched else opened.uncertainty_border(quantile)
    risky = (surprise if surprise is not None else np.asarray(spread)) > border
    found = {"uncertainty": spread, "surprise": surprise, "risky": risky}
    columns = {name: values for name, values in found.items() if values is not None}
    signal = "surprise" if watched else "H"
    if output is not None:
        with storage.atomic_path(output) as temporary, open(temporary, "wb") as file:
            np.savez(file, **columns, border=np.float32(border))  # type: ignore[arg-type]
        print(f"{len(risky)} rows, {risky.mean():.1%} risky ({signal} above {border:.4g}), written to {output}")
    elif format == "json":
        plain = {name: values.tolist() for name, values in columns.items()}
        print(json.dumps({"border": border, "signal": signal, **plain}))
    else:
        origin = f"the {quantile:.0%} quantile of H over recorded actions; the run has no model of the recorded actions"
        if watched:
            origin = f"the surprise that at most {opened.config.behaviour.false_alarms:.0%} of recorded actions exceed"
        print(f"# border {border:.6g}: {origin}")
        print("  ".join(["row", *({"uncertainty": "H"}.get(name, name) for name in columns)]))
        for row, values in enumerate(zip(*columns.values(), strict=True)):
            shown = (("yes" if value else "no") if value.dtype == bool else f"{value:.6g}" for value in values)
            print("  ".join([str(row), *shown]))
