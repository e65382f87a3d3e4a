"""Commands for one stage before the actor-critic at a time."""

from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction

DatasetArgument = Annotated[Positional[str], tyro.conf.arg(metavar="DATASET")]
Overrides = UseAppendAction[tuple[str, ...]]


def _prepare(
    dataset: str, preset: str, overrides: tuple[str, ...], columns: Path | None, memory: str | None
) -> tuple[Any, Any, Any]:
    from qdq import presets
    from qdq.data.load import load_dataset
    from qdq.data.prepare import prepare
    from qdq.memory import parse_memory

    data = load_dataset(dataset, columns=columns, memory=memory)
    config, _ = presets.build_for(data, "qdq", preset, overrides)
    return data, config, prepare(data, config, None if memory is None else parse_memory(memory))


def q_dataset(
    dataset: DatasetArgument,
    /,
    preset: str = "fast",
    output: Path | None = None,
    columns: Path | None = None,
    memory: str | None = None,
    set: Overrides = (),
) -> None:
    """Truncated returns of a dataset (Eq. 5): counts, range and, on request, the windows themselves.

    Args:
        dataset: Name or path of a dataset.
        preset: Named set of values; see `qdq presets`.
        output: NPZ file for the windows: `index` (transition at which each starts) and `values`.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data may take, such as 2GiB; a larger dataset is streamed (default: all data in memory).
        set: Change one setting, such as q_dataset.width=100; may be repeated.
    """
    import numpy as np

    from qdq import storage

    data, config, prepared = _prepare(dataset, preset, set, columns, memory)
    windows = prepared.windows
    settings = config.q_dataset
    print(
        f"{data.name}: {len(windows.index):,} windows from {data.episodes:,} episodes and {data.transitions:,} transitions"
    )
    print(f"width {settings.width}, stride {settings.stride}, discount {settings.discount}, tail {settings.tail}")
    print(
        f"minimum {windows.minimum:.6g}, mean {windows.values.mean():.6g}, maximum {windows.maximum:.6g}, std {windows.values.std():.6g}"
    )
    if output is not None:
        with storage.atomic_path(output) as temporary, open(temporary, "wb") as file:
            np.savez(file, index=windows.index, values=windows.values)
        print(f"written to {output}")


def _learn(
    stage: str, dataset: str, preset: str, overrides: tuple[str, ...], columns: Path | None, memory: str | None
) -> None:
    from qdq.training import stages
    from qdq.training.compilation import configure_jax
    from qdq.training.display import choose

    configure_jax()

    data, config, prepared = _prepare(dataset, preset, overrides, columns, memory)
    artefact = getattr(stages, f"learn_{stage}")(prepared, data.sha256, config, choose())
    print(f"{artefact.stage}: {artefact.path}")


def diffusion(
    dataset: DatasetArgument,
    /,
    preset: str = "fast",
    columns: Path | None = None,
    memory: str | None = None,
    set: Overrides = (),
) -> None:
    """Train the diffusion teacher on a dataset, or find it trained.

    Args:
        dataset: Name or path of a dataset.
        preset: Named set of values; see `qdq presets`.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data may take, such as 2GiB; a larger dataset is streamed (default: all data in memory).
        set: Change one setting, such as diffusion.steps=20000; may be repeated.
    """
    _learn("diffusion", dataset, preset, set, columns, memory)


def consistency(
    dataset: DatasetArgument,
    /,
    preset: str = "fast",
    columns: Path | None = None,
    memory: str | None = None,
    set: Overrides = (),
) -> None:
    """Distil the teacher into the consistency student (training the teacher first where it is missing).

    Args:
        dataset: Name or path of a dataset.
        preset: Named set of values; see `qdq presets`.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data may take, such as 2GiB; a larger dataset is streamed (default: all data in memory).
        set: Change one setting, such as consistency.intervals=40; may be repeated.
    """
    _learn("consistency", dataset, preset, set, columns, memory)


def quantile(
    dataset: DatasetArgument,
    /,
    preset: str = "fast",
    columns: Path | None = None,
    memory: str | None = None,
    set: Overrides = (),
) -> None:
    """Learn the Q distribution directly by quantile regression.

    Args:
        dataset: Name or path of a dataset.
        preset: Named set of values; see `qdq presets`.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data may take, such as 2GiB; a larger dataset is streamed (default: all data in memory).
        set: Change one setting, such as quantile.steps=4000; may be repeated.
    """
    _learn("quantile", dataset, preset, set, columns, memory)


def behaviour(
    dataset: DatasetArgument,
    /,
    preset: str = "fast",
    columns: Path | None = None,
    memory: str | None = None,
    set: Overrides = (),
) -> None:
    """Learn the model of the recorded actions, and the border of the risk set from episodes kept from learning.

    Args:
        dataset: Name or path of a dataset.
        preset: Named set of values; see `qdq presets`.
        columns: TOML file that maps the columns of a CSV or Parquet file.
        memory: Memory that the data may take, such as 2GiB; a larger dataset is streamed (default: all data in memory).
        set: Change one setting, such as behaviour.steps=4000; may be repeated.
    """
    _learn("behaviour", dataset, preset, set, columns, memory)
