"""The ablations of the method as studies: one setting in several values, or H replaced by what should not work."""

from qdq import presets
from qdq.errors import UsageError, suggest
from qdq.sweep.study import Variant

# The paper's four tasks; its maze is an AntMaze, ours is one that can be made without a download.
DATASETS = ("halfcheetah-medium", "hopper-medium", "walker2d-medium-expert", "pointmaze-umaze")

Changes = dict[str, tuple[str, ...]]


def _values(key: str, symbol: str, values: tuple[float, ...], *others: str) -> Changes:
    return {f"{symbol} {value:g}": (f"algorithm.{key}={value:g}", *others) for value in values}


def _nodes(nodes: int) -> tuple[str, ...]:
    return (f"uncertainty.nodes={nodes}", "uncertainty.agreement=1", *PAPERS_H)


# `fast` asks H nothing and has no penalty, so without these its runs would not differ; `paper` and `release` have a penalty.
PENALTY = "algorithm.penalty=signed"
# What `fast` holds its policy to the data with; `paper` and `release` have no such thing to let go of.
LET_GO = "algorithm.risk_weight=0"
PAPERS_H = ("algorithm.uncertainty=q_distribution", PENALTY)

ABLATIONS: dict[str, Changes] = {
    "alpha": _values("alpha", "alpha", (0.9, 0.95, 0.99, 0.995), *PAPERS_H),
    "beta": _values("beta", "beta", (0.7, 0.8, 0.9, 0.99), *PAPERS_H),  # a border within the batch: only H has one
    # Only Eq. 9 has the term; it needs the policy's own next action and the paper's H.
    "entropy": _values(
        "entropy_weight",
        "entropy",
        (0.3, 1.0, 3.0),
        "algorithm.objective=eq9",
        "algorithm.bootstrap=policy",
        *PAPERS_H,
    ),
    "uncertainty": {
        "surprise": ("algorithm.uncertainty=behaviour",),
        "surprise shuffled": ("algorithm.uncertainty=behaviour", "algorithm.shuffle_risk=true"),
        "H": ("algorithm.uncertainty=q_distribution",),
        "H shuffled": ("algorithm.uncertainty=q_distribution", "algorithm.shuffle_risk=true"),
        "random": ("algorithm.uncertainty=random",),
        "constant": ("algorithm.uncertainty=constant",),
        "ensemble": ("algorithm.uncertainty=ensemble",),
        "nearest": ("algorithm.uncertainty=nearest",),
        "teacher": ("algorithm.uncertainty=q_distribution", "q_distribution.learner=teacher"),
        "no penalty": ("algorithm.penalty=none", LET_GO),
        "matched discount": ("algorithm.penalty=discount", LET_GO),
    },
    "quadrature": {
        "2 nodes": _nodes(2),
        "4 nodes": _nodes(4),
        "8 nodes": _nodes(8),
        "16 nodes": _nodes(16),
        "50 samples": ("uncertainty.rule=monte_carlo", "uncertainty.samples=50", *PAPERS_H),
    },
}


def changes(over: str, preset: str) -> Changes:
    """What each variant changes of a preset."""
    if over not in ABLATIONS:
        raise UsageError(f"There is no ablation over {over!r}; {suggest(over, list(ABLATIONS))}")
    ours = {PENALTY, LET_GO} if preset.split("/")[0] not in presets.OURS else set()
    return {
        name: tuple(change for change in changed if change not in ours) for name, changed in ABLATIONS[over].items()
    }


def variants(over: str, preset: str, steps: int | None, overrides: tuple[str, ...]) -> list[Variant]:
    """The runs that are compared."""
    return [
        Variant(name, ("qdq",), preset, steps, (*overrides, *changed))
        for name, changed in changes(over, preset).items()
    ]
