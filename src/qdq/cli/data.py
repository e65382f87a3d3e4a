"""`qdq data`: list, make, inspect, convert and find datasets."""

from pathlib import Path

import tyro


def list_datasets() -> None:
    """List the datasets that can be made, those installed for Minari, and downloaded D4RL files."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from qdq.data.factory import CATALOGUE, FAMILIES, dataset_id
    from qdq.data.minari_format import installed
    from qdq.online.snapshots import snapshot_path
    from qdq.storage import cache_directory

    present = installed()
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("name", "state", "what it is"):
        table.add_column(heading)
    for name, description in CATALOGUE.items():
        family, _, level = name.partition("-")
        possible = family not in FAMILIES or level == "random" or snapshot_path(family).exists()
        state = "made" if dataset_id(name) in present else "can be made" if possible else "needs qdq snapshots"
        table.add_row(name, state, description)
    made = {dataset_id(name) for name in CATALOGUE}
    for identifier in present:
        if identifier not in made:
            table.add_row(identifier, "installed", "Minari dataset")
    for file in sorted((cache_directory() / "d4rl").glob("*.hdf5")):
        table.add_row(f"d4rl:{file.stem}", "downloaded", "D4RL file")
    Console().print(table)


def make(
    name: tyro.conf.Positional[str],
    transitions: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    force: bool = False,
) -> None:
    """Make a benchmark dataset offline, from shipped policies, and store it for Minari.

    Args:
        name: Name of the dataset, as listed by "qdq data list".
        transitions: Number of transitions; D4RL's size by default.
        seed: Seed of environments and policies.
        workers: Processes that roll out; one per core by default.
        force: Replace a dataset that was made before.
    """
    from qdq.data.factory import make_dataset
    from qdq.settings import checked_seed

    checked_seed(seed)
    print(make_dataset(name, transitions=transitions, seed=seed, workers=workers, force=force))


def inspect(
    name_or_path: tyro.conf.Positional[str],
    columns: Path | None = None,
    json: bool = False,
    html: Path | None = None,
    q_width: int = 200,
    q_stride: int = 10,
    discount: float = 0.99,
) -> None:
    """Check a dataset before training: counts, returns, ranges, coverage, the Q dataset, and the classic faults.

    Args:
        name_or_path: Name, file or folder of a dataset.
        columns: TOML file that names the columns of a table.
        json: Print everything as JSON.
        html: Write a page with plots to this file.
        q_width: Window width T of the Q dataset preview, in steps.
        q_stride: Distance k between windows, in steps.
        discount: Discount per step inside a window.
    """
    from qdq.data.inspect import inspect_dataset
    from qdq.data.load import load_dataset
    from qdq.errors import UsageError

    if q_width < 1 or q_stride < 1 or not 0.0 <= discount <= 1.0:
        raise UsageError("The Q preview needs a width and a stride of at least 1 and a discount from 0 to 1.")
    dataset = load_dataset(name_or_path, columns=columns)
    summary = inspect_dataset(dataset, q_width, q_stride, discount)
    if json:
        from json import dumps

        print(dumps(summary, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        from qdq.report.data_text import print_data_card

        print_data_card(summary, Console())
    if html is not None:
        from qdq.report.data_card import write_data_card

        write_data_card(summary, html)
        if not json:
            print(f"Written to {html}")


def convert(
    source: tyro.conf.Positional[str], destination: tyro.conf.Positional[str], columns: Path | None = None
) -> None:
    """Write a dataset in another format, given by the ending (.hdf5, .npz, .csv, .parquet, / for a mapped folder) or by minari:ID.

    Args:
        source: Name, file or folder of a dataset.
        destination: File or folder/ to write, or minari:ID to install it for Minari.
        columns: TOML file that names the columns of the source, if it is a table.
    """
    from qdq.data import load

    dataset, where = load.convert(source, destination, columns=columns)
    print(f"{dataset.transitions:,} transitions in {dataset.episodes:,} episodes written to {where}")


def path(name: tyro.conf.Positional[str]) -> None:
    """Print where a dataset is stored.

    Args:
        name: Name, file or folder of a dataset, or d4rl:NAME or minari:ID.
    """
    from qdq.data.load import locate

    print(locate(name))
