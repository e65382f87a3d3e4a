"""`qdq demo`: from nothing to a policy that beats its data, with every stage on the way."""

from pathlib import Path
from typing import Any

DATASET = "hopper-medium-replay"


def demo_dataset() -> tuple[Any, bool]:
    """The demo's dataset and whether it was there before; one of another size or seed is refused, not replaced."""
    import qdq
    from qdq.data.factory import dataset_id, default_size, make_dataset
    from qdq.data.minari_format import minari_path
    from qdq.errors import UsageError

    path = minari_path(dataset_id(DATASET))
    reused = path.exists()
    if not reused:
        make_dataset(DATASET)
    data = qdq.load_dataset(DATASET)
    size, seed = default_size(DATASET), data.metadata.details.get("seed")
    if data.transitions != size or seed != 0:
        raise UsageError(
            f"The demo needs {DATASET} with {size:,} transitions and seed 0, but {path} has {data.transitions:,} and seed "
            f'{seed}; make it again with "qdq data make {DATASET} --force".'
        )
    return data, reused


def demo(seed: int = 0, out: Path = Path("demo")) -> None:
    """Make a dataset of mixed quality, run every stage of QDQ on it, and compare with the data and simpler methods.

    Args:
        seed: Seed of the trained policies.
        out: Folder for the runs and their pictures; runs of the same seed that are finished are not repeated.
    """
    from rich.console import Console
    from rich.table import Table

    import qdq
    from qdq.report import plots
    from qdq.settings import checked_seed

    checked_seed(seed)
    console = Console(highlight=False)
    data, reused = demo_dataset()
    console.print(
        f"{data.name}{' (made before, used again)' if reused else ''}: {data.transitions:,} transitions, "
        f"{data.episodes:,} episodes, behaviour score {data.behaviour_score:.1f}",
        soft_wrap=True,
    )
    rows = [("behaviour (the data)", data.behaviour_score or 0.0)]
    for label, algorithm, overrides in (
        ("BC (imitation)", "bc", ()),
        (
            "advantage-weighted extraction alone",
            "qdq",
            ("algorithm.objective=awr", "algorithm.extraction_share=1", "algorithm.penalty=none"),
        ),
        ("QDQ", "qdq", ()),
    ):
        name = f"{label.split()[0].lower()}-seed-{seed}"
        console.print(f"\n[bold]{label}[/]")
        run = qdq.train(
            data, algorithm, "demo", [seed], out=out, name=name, overrides=overrides, resume=(out / name).exists()
        )
        rows.append((label, run.result["score"]["mean"]))
    table = Table(title=f"{DATASET}, seed {seed}: mean of the last five evaluations, score 0-100")
    table.add_column("policy")
    table.add_column("score", justify="right")
    for label, score in rows:
        table.add_row(label, f"{score:.1f}")
    console.print(table)
    picture = plots.overview(out / f"qdq-seed-{seed}", out / f"overview-seed-{seed}.png")
    console.print(f"Pictures: {picture}; each run's folder in {out} has them one by one.", soft_wrap=True)
