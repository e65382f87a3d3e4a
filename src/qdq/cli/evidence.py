"""Commands that show what runs found: report, table, figures."""

from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional


def report(
    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")] = (), /, out: Path = Path("report")
) -> None:
    """Write one page with everything these runs found, and each of its figures as PNG, SVG and CSV.

    Args:
        runs: Run folders, or folders that hold them; unfinished runs are shown as such.
        out: Folder for index.html and figures/.
    """
    from qdq.errors import UsageError
    from qdq.report.methods import gather
    from qdq.report.page import write_report
    from qdq.report.runs import find_runs

    if not runs:
        raise UsageError("Give at least one run folder, or a folder that holds some.")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; --out names a folder.")
    evidence = gather(find_runs(runs))
    page, figures = write_report(evidence, out)
    print(f"{len(evidence.runs)} runs on {len(evidence.tasks)} datasets, {figures} figures: open {page}")


def table(
    number: Annotated[Positional[int], tyro.conf.arg(metavar="{1,2,5}")],
    /,
    runs: tuple[Path, ...] = (),
    markdown: bool = False,
    csv: bool = False,
) -> None:
    """Print a table of the paper with the published numbers, and ours beside them where runs exist.

    Args:
        number: 1 is Gym-MuJoCo, 2 is AntMaze, 5 is speed.
        runs: Run folders, or folders that hold them.
        markdown: Print Markdown.
        csv: Print CSV, one row per number.
    """
    from qdq.errors import UsageError
    from qdq.report.tables import build, render

    if number not in (1, 2, 5):
        raise UsageError(
            f"There is no table {number} here; the paper's Tables 1, 2 and 5 have results (3 and 4 are presets)."
        )
    if markdown and csv:
        raise UsageError("Choose one of --markdown and --csv.")
    evidence = None
    if runs:
        from qdq.report.methods import gather
        from qdq.report.runs import find_runs

        evidence = gather(find_runs(runs))
    print(render(build(number, evidence), "markdown" if markdown else "csv" if csv else "text"), end="")


def figures(
    name: Annotated[Positional[str], tyro.conf.arg(metavar="NAME")] = "list",
    sources: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="SOURCE...")] = (),
    out: Path = Path("figures"),
    columns: Path | None = None,
) -> None:
    """Draw a figure of the paper from a dataset or from run folders, as PNG, SVG and CSV.

    Args:
        name: Name of the figure; without one they are listed.
        sources: The dataset, or the run folders (or folders that hold them), that the figure is made from.
        out: Folder for the files.
        columns: TOML file that maps the columns of a CSV or Parquet dataset.
    """
    from qdq.errors import UsageError, suggest
    from qdq.report.figures import FIGURES

    if name == "list":
        for known, figure in FIGURES.items():
            print(f"{known:<17} from {figure.needs:<8} {figure.description}")
        return
    if name not in FIGURES:
        raise UsageError(f"Unknown figure {name!r}; {suggest(name, list(FIGURES))}")
    figure = FIGURES[name]
    if not sources or (figure.needs == "dataset" and len(sources) > 1):
        wanted = "one dataset" if figure.needs == "dataset" else "run folders, or folders that hold them"
        raise UsageError(f"Figure {name} is made from {wanted}: qdq figures {name} SOURCE.")
    from qdq.report import charts

    if figure.needs == "dataset":
        from qdq.data.load import load_dataset

        chart = figure.make(load_dataset(next(iter(sources)), columns=columns))
    else:
        from qdq.report.methods import gather
        from qdq.report.runs import find_runs

        chart = figure.make(gather(find_runs(map(Path, sources))))
    for path in charts.save(chart, out):
        print(path)
