"""The section of the report about what the uncertainty is worth, from the `quality.json` of run folders."""

import math
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from qdq.errors import DataError
from qdq.evaluation.measures import COVERAGES, PIT_BINS, describe_actions, describe_correlation
from qdq.report import html
from qdq.report.charts import Chart, Mark, Panel, Series
from qdq.report.methods import Evidence, Row

PARTS = {"in_sample": "all data", "held_out": "held out"}
NOT_MEASURED = "Not measured: no run here has a quality.json. `qdq quality RUN DATASET` measures what the uncertainty of a run is worth."
NOTE = (
    "AUROC: the chance that the signal is larger for such an action than for a recorded one at the same states. 1 tells them "
    "apart, 0.5 is a coin, below 0.5 it is larger for recorded actions. <em>H</em>: the standard deviation of the learned Q "
    "distribution. <em>Surprise</em>: -log of the density under the model of the recorded actions. <em>Density of the collecting "
    "policy itself</em>: what the true density of the policies that made the data reaches, in equal shares where there are "
    "several. <em>All data</em>: the run's own models, which have seen these episodes. <em>Held out</em>: models learned with "
    "the same settings on the other 90 % of the episodes."
)
FLAGS_NOTE = (
    "Share of actions whose surprise is beyond the border of the risk set. Of recorded actions these are false alarms: the border "
    "is set, by recorded actions of episodes that the model has not seen, so that at most the share that the settings allow "
    "(5 % by default) is expected on new episodes."
)
CHECKPOINTS_NOTE = (
    "The policies that a run kept along the way, at the same states: the mean surprise and the mean H of their actions, and the "
    "mean distance of state and action to the nearest recorded pair."
)
COLLECTING = "density of the collecting policy itself"


def checked(content: Any, path: Path) -> dict[str, Any]:
    """The content of a quality.json, if it holds what the tables and the picture need."""

    def number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
        if value is None:
            return True  # what could not be measured
        return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high

    def shares(values: Any) -> bool:
        return isinstance(values, dict) and all(number(value, 0.0, 1.0) for value in values.values())

    def sound_surprise(found: Any) -> bool:
        return found is None or (
            shares(found["auroc"])
            and shares(found["flagged"])
            and number(found["action_share"], 0.0, 1.0)
            and number(found["border"], -1e300, 1e300)
        )

    def sound_checkpoints(found: Any) -> bool:
        return found is None or (
            all(number(found["spearman"][key], -1.0, 1.0) for key in ("surprise", "uncertainty"))
            and isinstance(found["policies"], list)
            and all(
                row["step"] is not None
                and number(row["step"], 0, 1e300)
                and number(row["flagged"], 0.0, 1.0)
                and all(number(row[key], -1e300, 1e300) for key in ("surprise", "uncertainty", "distance"))
                for row in found["policies"]
            )
        )

    def sound(part: Any) -> bool:
        calibration, collecting = part["calibration"], part.get("collecting_policy")
        return (
            shares(part["auroc"])
            and sound_surprise(part.get("surprise"))  # which early versions did not measure
            and (collecting is None or shares(collecting["auroc"]))
            and number(part["action_share"], 0.0, 1.0)
            and number(part["border_quantile"], 0.0, 1.0)
            and number(part["starting_beta"], 0.0, 1.0)
            and all(number(calibration["coverage"][f"{share:.0%}"], 0.0, 1.0) for share in COVERAGES)
            and all(number(calibration[key], 0.0, 1e300) for key in ("windows", "episodes", "crps"))
            and number(calibration["crps_skill"], -1e300, 1.0)
            and isinstance(calibration["pit_histogram"], list)
            and len(calibration["pit_histogram"]) == PIT_BINS
            and all(value is not None and number(value, 0.0, 1.0) for value in calibration["pit_histogram"])
        )

    try:
        if (
            isinstance(content["dataset_sha256"], str)
            and isinstance(content["other_policy"], str | None)
            and sound(content["in_sample"])
            and (content["held_out"] is None or sound(content["held_out"]))
            and sound_checkpoints(content.get("checkpoints"))
        ):
            return content
    except (KeyError, TypeError, AttributeError):
        pass
    raise DataError(f"{path} does not hold what it should; measure it again with `qdq quality`.")


def measured_rows(evidence: Evidence) -> list[tuple[Row, dict[str, Any]]]:
    """For each row the quality of its first run that was measured."""
    found = ((row, next((run.quality for run in row.runs if run.quality), None)) for row in evidence.rows)
    return [(row, quality) for row, quality in found if quality is not None]


def section(evidence: Evidence) -> tuple[str, list[Chart]]:
    """The tables and the charts to show below them; a sentence where nothing was measured."""
    rows = measured_rows(evidence)
    if not rows:
        return f'<p class="none">{escape(NOT_MEASURED)}</p>', []
    text = f"<p>{NOTE}</p>{_detection(rows)}<p></p>"
    if any(part.get("surprise") for _, part, _ in _parts(rows)):
        text += f"<p>{FLAGS_NOTE}</p>{_flags(rows)}<p></p>"
    text += f"{_calibration(rows)}<p></p>"
    kept = [(row, quality["checkpoints"]) for row, quality in rows if quality.get("checkpoints")]
    if kept:
        text += f"<p>{CHECKPOINTS_NOTE}</p>{_checkpoints(kept)}{_correlations(kept)}<p></p>"
    return text, [_histogram(row, quality) for row, quality in rows]


def _parts(rows: list[tuple[Row, dict[str, Any]]]) -> list[tuple[list[html.Cell], dict[str, Any], dict[str, Any]]]:
    """The first cells of each line, its numbers, and the quality that they belong to."""
    return [
        ([html.text(row.task), html.text(row.method, "strong"), html.text(label)], quality[name], quality)
        for row, quality in rows
        for name, label in PARTS.items()
        if quality[name] is not None
    ]


def _heads(rows: list[tuple[Row, dict[str, Any]]]) -> list[str]:
    kinds = dict.fromkeys(kind for row in rows for kind in row[1]["in_sample"]["auroc"])
    return [kind for kind in kinds if kind != "other_policy"]


def _kind_heads(kinds: list[str], what: str) -> list[tuple[str, str]]:
    short = {"random": "random", "policy": "its policy"}
    heads = [(short.get(kind, kind.replace("noise_", "noise ")), f"{what}: {describe_actions(kind)}") for kind in kinds]
    return [*heads, ("other policy", f"{what}: actions of another behaviour policy")]


def _kind_cells(kinds: list[str], values: dict[str, Any], quality: dict[str, Any], digits: int = 2) -> list[html.Cell]:
    """A number of each kind; of another policy with its name."""
    other = html.number(values.get("other_policy"), digits, "not measured")
    if quality["other_policy"] is not None and values.get("other_policy") is not None:
        name = f'<span class="below">{escape(quality["other_policy"])}</span>'
        other = html.Cell(other.shown + name, other.value, True)
    return [*(html.number(values.get(kind), digits) for kind in kinds), other]


def _detection(rows: list[tuple[Row, dict[str, Any]]]) -> str:
    kinds = _heads(rows)
    heads = [
        ("task", ""),
        ("method", ""),
        ("measured on", ""),
        ("signal", "what is compared"),
        *_kind_heads(kinds, "AUROC"),
    ]
    heads += [
        ("due to action", "share of the variance of log H, or of the surprise, due to the action, for random actions"),
        ("95 % line", "which quantile of random actions the 95 % quantile of recorded ones is; the paper: about 0.75"),
        ("beta", "where that check says to start tuning"),
    ]
    lines = []
    for first, part, quality in _parts(rows):
        signals: list[tuple[str, dict[str, Any]]] = [("H", part)]
        if part.get("surprise"):
            signals.append(("surprise", part["surprise"]))
        if part.get("collecting_policy"):
            signals.append((COLLECTING, part["collecting_policy"]))
        for name, found in signals:
            rest = [html.number(found.get(key), 2) for key in ("action_share", "border_quantile", "starting_beta")]
            lines.append([*first, html.text(name, "wrap"), *_kind_cells(kinds, found["auroc"], quality), *rest])
    return html.table("quality-of-h", heads, lines)


def _flags(rows: list[tuple[Row, dict[str, Any]]]) -> str:
    kinds = _heads(rows)
    heads = [("task", ""), ("method", ""), ("measured on", "")]
    heads += [("recorded", "flagged recorded actions: false alarms"), *_kind_heads(kinds, "flagged")]
    heads += [("border", "the surprise beyond which an action is flagged")]
    lines = []
    for first, part, quality in _parts(rows):
        if found := part.get("surprise"):
            flagged = found["flagged"]
            lines.append(
                [
                    *first,
                    html.number(flagged.get("recorded"), 3),
                    *_kind_cells(kinds, flagged, quality, 3),
                    html.number(found["border"], 2),
                ]
            )
    return html.table("flagged", heads, lines)


def _checkpoints(kept: list[tuple[Row, dict[str, Any]]]) -> str:
    heads = [("task", ""), ("method", ""), ("step", "of the policy"), ("surprise", "mean over the states")]
    heads += [("flagged", "share of its actions beyond the border"), ("H", "mean over the states")]
    heads += [("distance", "to the nearest recorded pair of state and action, in standard deviations of the data")]
    lines = [
        [
            html.text(row.task),
            html.text(row.method, "strong"),
            html.number(policy["step"], 0),
            html.number(policy["surprise"], 2),
            html.number(policy["flagged"], 3),
            html.number(policy["uncertainty"], 2),
            html.number(policy["distance"], 2),
        ]
        for row, found in kept
        for policy in found["policies"]
    ]
    return html.table("kept-policies", heads, lines)


def _correlations(kept: list[tuple[Row, dict[str, Any]]]) -> str:
    return "".join(
        f"<p>{escape(f'{row.task}, {row.method}: {describe_correlation(found)}')}</p>" for row, found in kept
    )


def _calibration(rows: list[tuple[Row, dict[str, Any]]]) -> str:
    heads = [("task", ""), ("method", ""), ("measured on", "")]
    heads += [
        (f"{share:.0%} interval".replace("%", " %"), "share of recorded returns inside; its name is what it should be")
        for share in COVERAGES
    ]
    heads += [
        ("CRPS", "continuous ranked probability score, in reward units; smaller is better"),
        ("CRPS skill", "1 is perfect; 0 is no better than the distribution of all returns, whatever state and action"),
        ("windows", "that were asked about"),
        ("episodes", "that these windows come from"),
    ]
    lines = []
    for first, part, _ in _parts(rows):
        calibration = part["calibration"]
        inside = [html.number(calibration["coverage"][f"{share:.0%}"], 2) for share in COVERAGES]
        scores = [html.number(calibration[key], 2) for key in ("crps", "crps_skill")]
        lines.append([*first, *inside, *scores, *(html.number(calibration[key], 0) for key in ("windows", "episodes"))])
    return html.table("calibration", heads, lines)


def _histogram(row: Row, quality: dict[str, Any]) -> Chart:
    edges = np.linspace(0.0, 1.0, PIT_BINS + 1)
    series = []
    for (name, label), colour in zip(PARTS.items(), ("grey", "blue"), strict=True):
        if quality[name] is not None:
            heights = PIT_BINS * np.array(quality[name]["calibration"]["pit_histogram"])
            series.append(
                Series(label, edges, heights, colour, "filled" if name == "in_sample" else "steps", opacity=0.6)
            )
    caption = (
        "Level of each recorded return in the distribution learned for its state and action (PIT): flat is calibrated, high ends "
        "are a distribution that is too narrow, a high middle is one that is too wide."
    )
    top = 1.3 * max(float(np.max(one.y)) for one in series) or 1.0
    flat = Mark("y", 1.0, "calibrated", "vermillion")
    panel = Panel("", "level of the recorded return", "density", series, [flat], y_limits=(0.0, top))
    return Chart(f"pit-{row.task}-{row.method}", f"{row.task}, {row.method}", caption, [panel], size=(4.9, 3.2))
