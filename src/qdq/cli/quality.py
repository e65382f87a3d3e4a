"""Commands about the quality of the uncertainty: quality, suggest-beta."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from qdq.cli.runs import DatasetArgument, RunArgument

OptionalDataset = Annotated[Positional[str | None], tyro.conf.arg(metavar="DATASET")]


def quality(
    run: RunArgument,
    dataset: DatasetArgument,
    /,
    states: int = 4096,
    seed: int = 0,
    against: str = "auto",
    checkpoints: bool = False,
    columns: Path | None = None,
    json: bool = False,
) -> None:
    """Measure what the uncertainty of a run is worth, and keep it in the run folder as quality.json.

    What holds for new episodes needs second models, learned on 90 % of the episodes; they are kept in the cache.

    Args:
        run: Run folder of algorithm qdq.
        dataset: The dataset that the run was trained on.
        states: How many states, and how many windows, are drawn for each measurement.
        seed: Seed of what is drawn: held-out episodes, states and actions.
        against: Snapshot whose actions are compared with the recorded ones, such as hopper-expert; auto is the expert of the
            environment where there is one, none is none.
        checkpoints: Also every policy that the first seed kept along the way (evaluation.keep_policies): its surprise beside its
            distance to the nearest recorded state and action.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        json: Print JSON instead of tables.
    """
    import json as json_module

    import qdq
    from qdq import storage
    from qdq.data.load import load_dataset
    from qdq.evaluation import quality as measuring
    from qdq.report.runs import QUALITY
    from qdq.settings import checked_seed
    from qdq.training.display import Silent, choose

    checked_seed(seed)
    opened = qdq.load_run(run)
    data = load_dataset(dataset, columns=columns)
    measuring.check_dataset(opened, data)
    other = None if against == "none" else measuring.find_other_policy(data, None if against == "auto" else against)
    display = Silent() if json else choose()
    measured = measuring.quality(opened, data, other, states, seed, display, checkpoints)
    path = run / QUALITY
    storage.write_json(path, measured)
    measured = storage.read_json(path)  # as everybody else will read it
    if json:
        print(json_module.dumps(measured))
    else:
        _print_quality(measured, path)


def _print_quality(measured: dict[str, Any], path: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from qdq.evaluation.measures import COVERAGES, describe_actions

    parts = [measured[name] for name in ("in_sample", "held_out")]
    name = escape(measured["dataset"])
    tables: list[Table] = []

    def start(title: str, first: str, *more: str) -> Table:
        table = Table(title=title)
        table.add_column(first)
        for column in ("all data", "held out", *more):
            table.add_column(column, justify="right", max_width=11)  # so that labels fit on a line of 80
        tables.append(table)
        return table

    def add(table: Table, label: str, values: list[float | None], digits: int = 2) -> None:
        table.add_row(label, *("" if value is None else f"{value:.{digits}f}" for value in values))

    def each(*keys: str) -> list[Any]:
        """One number of each part; none of a part that could not be measured."""
        return [_within(part, *keys) for part in parts]

    yardstick = _within(parts[1], "collecting_policy", "auroc")
    watched = any(each("surprise"))

    def add_kinds(table: Table, *keys: str) -> None:
        """The AUROC of each kind of action; the yardstick beside the last signal."""
        for kind in parts[0]["auroc"]:
            beside = [yardstick.get(kind)] if yardstick and (keys or not watched) else []
            add(table, describe_actions(kind, measured["other_policy"]), each(*keys, "auroc", kind) + beside)
        if measured["other_policy"] is None:
            table.add_row("actions of another policy", "not measured", "")
        table.add_section()

    beside = ("density of the collecting policy itself",) if yardstick else ()
    detection = start(f"H on {name}", "AUROC of H: recorded against", *(() if watched else beside))
    add_kinds(detection)
    add(detection, "share of var(log H) due to the action", each("action_share"))
    add(detection, "95 % of recorded = this quantile of random", each("border_quantile"))
    if watched:
        surprise = start(f"Surprise on {name}", "AUROC of the surprise: recorded against", *beside)
        add_kinds(surprise, "surprise")
        add(surprise, "share of var(surprise) due to the action", each("surprise", "action_share"))
        flags = start("Flagged as risky: surprise beyond the border", "share of")
        for kind in ("recorded", *parts[0]["auroc"]):
            add(flags, describe_actions(kind, measured["other_policy"]), each("surprise", "flagged", kind), 3)
        flags.add_section()
        add(flags, "the border", each("surprise", "border"))
    calibration = start("Learned Q distribution against recorded returns", "calibration")
    for share in COVERAGES:
        label = f"{share:.0%}"
        add(calibration, f"inside the {share:.0%} interval".replace("%", " %"), each("calibration", "coverage", label))
    add(calibration, "CRPS, in reward units", each("calibration", "crps"))
    add(calibration, "CRPS skill over the marginal distribution", each("calibration", "crps_skill"))
    add(calibration, "windows", each("calibration", "windows"), 0)
    add(calibration, "episodes", each("calibration", "episodes"), 0)
    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    if parts[1] is None:
        console.print("Nothing could be held out: the dataset has a single episode.")
    if not watched:
        console.print("The run has no model of the recorded actions, so there is no surprise to measure.")
    elif False in each("surprise", "border_from_unseen"):
        console.print("There are too few episodes to set the border by unseen ones, so it promises nothing about them.")
    if measured["checkpoints"] is not None:
        _print_checkpoints(console, measured["checkpoints"])
    console.print(f"Written to {path}", soft_wrap=True, markup=False)


def _within(content: Any, *keys: str) -> Any:
    """What lies behind the keys; None where a part is missing on the way."""
    for key in keys:
        content = content.get(key) if content is not None else None
    return content


def _print_checkpoints(console: Any, found: dict[str, Any]) -> None:
    from rich.table import Table

    from qdq.evaluation.measures import describe_correlation

    table = Table(title=f"Policies that seed {found['seed']} kept, at the same states")
    for column in ("step", "surprise", "flagged", "H", "distance to the nearest recorded pair"):
        table.add_column(column, justify="right")
    for row in found["policies"]:
        numbers = (row[key] for key in ("surprise", "flagged", "uncertainty", "distance"))
        table.add_row(f"{row['step']:,}", *("" if value is None else f"{value:.3g}" for value in numbers))
    console.print(table)
    console.print(describe_correlation(found), soft_wrap=True)


def suggest_beta(
    run: RunArgument,
    dataset: OptionalDataset = None,
    /,
    states: int = 4096,
    seed: int = 0,
    columns: Path | None = None,
    json: bool = False,
) -> None:
    """The beta to start tuning with, by the paper's comparison of H over recorded and over random actions.

    Args:
        run: Run folder of algorithm qdq.
        dataset: The dataset that the run was trained on, to measure H anew (default: what the run saved when it finished).
        states: How many states of the dataset are drawn.
        seed: Seed of the states and the random actions.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        json: Print JSON instead of sentences.
    """
    import json as json_module

    from qdq.evaluation import measures
    from qdq.settings import checked_seed

    checked_seed(seed)
    if dataset is None:
        recorded, random = _saved_uncertainty(run)
    else:
        import qdq
        from qdq.data.load import load_dataset
        from qdq.evaluation.quality import recorded_and_random

        opened = qdq.load_run(run)
        recorded, random = recorded_and_random(opened, load_dataset(dataset, columns=columns), states, seed)
    quantile, area = measures.border_quantile(recorded, random), measures.auroc(recorded, random)
    beta = measures.starting_beta(quantile)
    if json:
        print(json_module.dumps({"beta": beta, "border_quantile": quantile, "auroc": area, "states": len(recorded)}))
        return
    print(
        f"The 95 % quantile of H over recorded actions is the {100 * quantile:.0f} % quantile over random ones "
        "(the paper: about 75 %)."
    )
    print(f"Start with beta = {beta:g}: --set algorithm.beta={beta:g}")
    if quantile >= measures.RECORDED_QUANTILE:
        print(
            f"H does not set random actions apart here (AUROC {area:.2f}), so nothing speaks for one beta over another."
        )
    elif quantile < measures.BETAS[0]:
        print("The check itself gives less; beta also weighs every value off the risk set, so it stops there.")
    if _settings(run).get("uncertainty") == "behaviour":
        print("This run tells risky actions by their surprise, so that beta changes nothing in it; it is for H.")


def _settings(run: Path) -> dict[str, Any]:
    """The algorithm's settings in a run folder, or none where they cannot be read."""
    from qdq import storage

    path = run / "config.json"
    content = storage.read_json(path) if path.exists() else None
    found = content.get("algorithm") if isinstance(content, dict) else None
    return found if isinstance(found, dict) else {}


def _saved_uncertainty(run: Path) -> tuple[Any, Any]:
    """H of recorded and of random actions as a finished run saved them."""
    from qdq.errors import DataError
    from qdq.report.runs import read_run

    if not (run / "manifest.json").exists():
        raise DataError(f"{run} is not a run folder (it has no manifest.json).")
    panels = read_run(run).panels
    if panels is None:
        raise DataError(
            f"{run} has saved no H of recorded and random actions; give its dataset as well: qdq suggest-beta RUN DATASET."
        )
    return panels["recorded_uncertainty"], panels["random_uncertainty"]
