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

    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, but is {seeds}.")
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
    numbers = list(range(first_seed, first_seed + seeds))
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
    quantile: float = 0.95,
    format: Literal["text", "json"] = "text",
) -> None:
    """H and the risk flag for observations and actions of your own.

    Args:
        run: Run folder of algorithm qdq.
        input: NPZ file with arrays `observations` and `actions`, one row each.
        output: NPZ file to write `uncertainty`, `risky` and `border` to (default: print).
        quantile: An action is flagged where its H exceeds this quantile of H over the run's own data.
        format: How to print without --output.
    """
    import json

    import numpy as np

    import qdq
    from qdq import storage
    from qdq.data.npz import read_arrays
    from qdq.errors import DataError, UsageError

    if not 0.0 < quantile < 1.0:
        raise UsageError(f"--quantile must lie between 0 and 1, but is {quantile}.")
    opened = qdq.load_run(run)
    arrays = read_arrays(input, ("observations", "actions"))
    for name in ("observations", "actions"):
        if name not in arrays:
            raise DataError(f"{input} has no array {name!r}; it needs observations and actions, one row each.")
    spread = opened.uncertainty(arrays["observations"], arrays["actions"])
    border = opened.uncertainty_border(quantile)
    risky = spread > border
    if output is not None:
        with storage.atomic_path(output) as temporary, open(temporary, "wb") as file:
            np.savez(file, uncertainty=spread, risky=risky, border=np.float32(border))
        print(f"{len(spread)} rows, {risky.mean():.1%} risky (H above {border:.4g}), written to {output}")
    elif format == "json":
        print(json.dumps({"border": border, "uncertainty": spread.tolist(), "risky": risky.tolist()}))
    else:
        print(f"# border {border:.6g}: the {quantile:.0%} quantile of H over recorded actions")
        print("row  H  risky")
        for row, (value, flag) in enumerate(zip(spread, risky, strict=True)):
            print(f"{row}  {value:.6g}  {'yes' if flag else 'no'}")
