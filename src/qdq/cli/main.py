"""`qdq`: dispatch to a command, and turn every error into one sentence and an exit code."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from qdq.cli import bench, data, demo, evidence, known, online, presets, quality, runs, stages, stress, sweep
from qdq.errors import QDQError

Commands = dict[str, Callable[..., Any]]

GROUPS: dict[str, tuple[str, Commands]] = {
    "data": (
        "List, make, inspect and convert datasets.",
        {
            "list": data.list_datasets,
            "make": data.make,
            "inspect": data.inspect,
            "convert": data.convert,
            "path": data.path,
        },
    ),
    "stage": (
        "Run one stage before the actor-critic on its own.",
        {
            "q-dataset": stages.q_dataset,
            "diffusion": stages.diffusion,
            "consistency": stages.consistency,
            "quantile": stages.quantile,
            "behaviour": stages.behaviour,
        },
    ),
    "presets": (
        "List presets, or show one with the origin of every value.",
        {"list": presets.list_presets, "show": presets.show},
    ),
}

COMMANDS: Commands = {
    "train": runs.train,
    "sweep": sweep.sweep,
    "ablate": sweep.ablate,
    "evaluate": runs.evaluate,
    "uncertainty": runs.uncertainty,
    "quality": quality.quality,
    "suggest-beta": quality.suggest_beta,
    "known": known.known,
    "report": evidence.report,
    "table": evidence.table,
    "figures": evidence.figures,
    "online": online.online,
    "snapshots": online.snapshots,
    "demo": demo.demo,
    "bench": bench.bench,
    "stress": stress.stress,
    "doctor": presets.doctor,
}

DESCRIPTION = "Offline reinforcement learning that says where it cannot be trusted: Q-Distribution guided Q-learning."


def _top_level() -> Commands:
    """The commands, with one placeholder per group so that `qdq --help` lists it."""
    commands = dict(COMMANDS)
    for name, (description, _) in GROUPS.items():

        def placeholder() -> None: ...

        placeholder.__doc__ = description
        commands[name] = placeholder
    return commands


def _dispatch(arguments: Sequence[str]) -> None:
    config = (tyro.conf.OmitArgPrefixes,)
    if arguments and arguments[0] in GROUPS:
        description, commands = GROUPS[arguments[0]]
        rest = list(arguments[1:])
        if arguments[0] == "presets" and not rest:
            rest = ["list"]
        tyro.extras.subcommand_cli_from_dict(
            commands, prog=f"qdq {arguments[0]}", description=description, args=rest, config=config
        )
        return
    tyro.extras.subcommand_cli_from_dict(
        _top_level(), prog="qdq", description=DESCRIPTION, args=list(arguments), config=config
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 fine, 2 usage, 3 data, 4 diverged, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # Policies act in NumPy on a few rows at a time: more threads are slower there, and may round differently.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _dispatch(arguments)
    except QDQError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("Interrupted.", 130)
    except BrokenPipeError:  # the reader of our output went away, as in `qdq presets | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.strerror or error} ({error.filename or 'no file named'}).", 3)
    except Exception as error:
        if os.environ.get("QDQ_TRACEBACK"):
            raise
        _fail(
            f"Internal error: {type(error).__name__}: {error}. This is a bug in qdq; please report it with the output of "
            "the same command under QDQ_TRACEBACK=1.",
            1,
        )


def _fail(sentence: str, code: int) -> None:
    print(f"qdq: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
