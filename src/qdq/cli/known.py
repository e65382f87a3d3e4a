"""`qdq known`: learn known distributions and say how far off H is."""

from typing import Any

from tyro.conf import UseAppendAction

Overrides = UseAppendAction[tuple[str, ...]]


def known(
    seeds: int = 5,
    dimensions: tuple[int, ...] = (14, 23),
    samples: int = 50_000,
    units: int = 16,
    preset: str = "fast",
    json: bool = False,
    set: Overrides = (),
) -> None:
    """Learn known distributions and say how far off H is.

    Random tanh networks give the mean, the standard deviation (over a range of 5) and the weight of the mixture of a Q
    that has one peak or two; its samples are learned like a dataset, and H is compared with the truth at fresh inputs.

    Args:
        seeds: How many random truths for each number of dimensions and peaks.
        dimensions: Numbers of inputs, state and action together (14 is hopper's, 23 that of walker2d and halfcheetah).
        samples: Samples to learn from.
        units: Hidden units of the random networks.
        preset: Named set of values; see `qdq presets`.
        json: Print JSON instead of a table.
        set: Change one setting, such as quantile.steps=10000; may be repeated.
    """
    import json as json_module

    from qdq.training.compilation import configure_jax

    configure_jax()

    from qdq import presets
    from qdq.evaluation import known as measuring
    from qdq.training.display import Silent, choose

    config, _ = presets.build("qdq", preset, None, set)
    display = Silent() if json else choose()
    cases = list(measuring.measure_all(seeds, dimensions, samples, units, config, display))
    within = sum(case["within"] for case in cases)
    if json:
        print(json_module.dumps({"samples": samples, "units": units, "cases": cases, "within": within}))
        return
    _print_cases(cases)
    print(
        f"{within} of {len(cases)} cases have a relative error of at most {measuring.LARGEST_ERROR} and a rank correlation "
        f"of at least {measuring.SMALLEST_RANK}."
    )


def _print_cases(cases: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="H against the true standard deviation of Q, and shares of Q inside intervals")
    table.add_column("Q", no_wrap=True)
    shares = [share.replace("%", " %") for share in cases[0]["coverage"]]
    for column in ("inputs", "seed", "error", "rank", "ratio", *shares, "time"):
        table.add_column(column, justify="right")
    for case in cases:
        table.add_row(
            case["shape"],
            str(case["dimensions"]),
            str(case["seed"]),
            f"{case['relative_error']:.3f}",
            f"{case['rank']:.3f}",
            f"{case['ratio']:.2f}",
            *(f"{share:.2f}" for share in case["coverage"].values()),
            f"{case['seconds']:.0f} s",
        )
    Console(highlight=False).print(table)
