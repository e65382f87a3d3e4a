"""The classic faults of offline data, each found by looking at the data and said in one sentence."""

from typing import Any

import numpy as np

from qdq.data.episodes import Dataset
from qdq.data.tasks import never_terminates

STEP_SAMPLE = 200_000


def find_faults(dataset: Dataset, summary: dict[str, Any]) -> list[dict[str, str]]:
    """Faults of `dataset`, given the rest of its summary; each has a `code`, a `level` and a `message`."""
    faults: list[dict[str, str]] = []

    def add(code: str, message: str, level: str = "warning") -> None:
        faults.append({"code": code, "level": level, "message": message})

    _ends(dataset, add)
    _leaks(dataset, add)
    _actions(dataset, summary, add)
    _rewards(dataset, summary, add)
    _columns(dataset, summary, add)
    return faults


def _ends(dataset: Dataset, add: Any) -> None:
    details, environment = dataset.metadata.details, dataset.metadata.environment_id
    final = np.cumsum(dataset.lengths) - 1
    terminal = dataset.terminals[final]
    if not terminal.any():
        if never_terminates(environment, dataset.metadata.environment_options):
            add("no_terminals", f"No episode ends in a terminal, as it should be in {environment}.", "note")
        else:
            add(
                "no_terminals",
                "No episode ends in a terminal; if the task can fail or succeed, its ends were lost in the recording.",
            )
    longest = int(dataset.lengths.max())
    at_limit = terminal & (dataset.lengths == longest)
    if at_limit.sum() >= 3 and at_limit.sum() >= 0.2 * len(terminal) and longest > 1:
        add(
            "timeouts_as_terminals",
            f"{int(at_limit.sum())} terminal episodes have exactly the maximum length of {longest} steps: time limits "
            "are probably marked as terminals, which teaches that the world ends there; mark them as truncated.",
        )
    if count := details.get("discontinuities"):
        add(
            "next_observation_mismatch",
            f"{count} next observations inside episodes do not match the following row; the episodes were split there.",
        )
    if "boundaries" in details:
        add("boundaries_guessed", f"Episode ends were reconstructed from {details['boundaries']}.", "note")
    if details.get("last_episode_cut"):
        add("last_episode_cut", "The last episode was cut by the end of the recording.", "note")
    if dataset.episodes < 10:
        add(
            "few_episodes", f"There are only {dataset.episodes} episodes; statistics over episodes mean little.", "note"
        )


def _leaks(dataset: Dataset, add: Any) -> None:
    """Values that flow from one episode into the next."""
    first = dataset.starts + np.arange(dataset.episodes)
    last = first + dataset.lengths
    if dataset.episodes > 1:
        same = (dataset.observations[last[:-1]] == dataset.observations[first[1:]]).all(axis=1)
        if (
            same.sum() >= max(1, 0.1 * len(same))
            and not (dataset.observations[first] == dataset.observations[first[0]]).all()
        ):
            add(
                "leakage_across_episodes",
                f"{int(same.sum())} of {len(same)} episodes end with the first observation of the next episode: next "
                "observations were probably made by shifting rows across resets.",
            )
    if hidden := _hidden_resets(dataset, first):
        add(
            "hidden_resets",
            f"{hidden} steps inside episodes jump back to something like an initial observation: ends of episodes are "
            "probably missing, so values leak across resets.",
        )


def _hidden_resets(dataset: Dataset, first: np.ndarray) -> int:
    """Steps inside episodes that are far larger than usual and land where episodes start."""
    initial = dataset.observations[first].astype(np.float64)
    index = np.arange(dataset.transitions)
    if dataset.transitions > STEP_SAMPLE:
        index = np.sort(np.random.default_rng(0).choice(dataset.transitions, STEP_SAMPLE, replace=False))
    rows = dataset.rows[index]
    before, after = dataset.observations[rows].astype(np.float64), dataset.observations[rows + 1].astype(np.float64)
    scale = np.where(before.std(axis=0) > 0, before.std(axis=0), np.inf)
    step = np.linalg.norm((after - before) / scale, axis=1)
    # Columns that never change within an episode, such as goals, say nothing about a reset.
    tolerance = 3.0 * initial.std(axis=0) + 0.1 * np.where(np.isfinite(scale), scale, 0.0)
    lands = (np.abs(after - initial.mean(axis=0)) <= tolerance).all(axis=1)
    leaves = (np.abs(before - initial.mean(axis=0)) > 2.0 * tolerance).any(axis=1)
    found = lands & leaves & (step > 5.0 * np.median(step))
    inside = ~(dataset.terminals | dataset.truncations)[index]
    hits = int((found & inside).sum())
    # A task whose states do return to the start has many such steps; a forgotten reset happens once per episode.
    return hits if 0 < hits <= 0.02 * len(index) else 0


def _actions(dataset: Dataset, summary: dict[str, Any], add: Any) -> None:
    share = summary["actions"]["at_bounds"]
    if share > 0.2:
        add(
            "actions_at_bounds",
            f"{share:.0%} of all action components lie at their bounds; likelihoods of such actions are extreme, so "
            "check that the actions were not clipped by the recording.",
        )
    narrow = [i for i, used in enumerate(summary["actions"]["used_range"]) if used < 0.05]
    if narrow:
        add(
            "bounds_too_wide",
            f"Action dimensions {narrow[:10]} use less than 5 % of their declared range; the declared bounds "
            "are probably wrong.",
        )


def _rewards(dataset: Dataset, summary: dict[str, Any], add: Any) -> None:
    rewards, preview = summary["rewards"], summary["q_dataset"]
    if rewards["min"] == rewards["max"]:
        ends = " apart from where episodes end" if dataset.terminals.any() else ""
        add("constant_reward", f"Every reward is {rewards['min']:.6g}, so nothing tells actions apart{ends}.")
    largest = max(abs(rewards["min"]), abs(rewards["max"]))
    if largest > 100.0:
        add(
            "reward_scale",
            f"Rewards reach {largest:.4g}; scale them to about 1 per step, or learning rates will not fit.",
        )
    elif 0.0 < largest < 1e-3:
        add(
            "reward_scale",
            f"No reward exceeds {largest:.4g}; scale them to about 1 per step, or noise will drown them.",
        )
    if "error" in preview:
        add("q_dataset", preview["error"])
    elif preview["exact_share"] < 0.5:
        add(
            "q_windows_cut",
            f"Only {preview['exact_share']:.0%} of the windows of {preview['width']} steps are complete before a time "
            "limit; use a shorter window.",
        )


def _columns(dataset: Dataset, summary: dict[str, Any], add: Any) -> None:
    observations = summary["observations"]
    if observations["constant"]:
        add("constant_columns", f"Observation columns {observations['constant'][:20]} never change.", "note")
    if observations["duplicates"]:
        pairs = ", ".join(f"{a} = {b}" for a, b in observations["duplicates"][:10])
        add("duplicate_columns", f"Observation columns are equal to each other: {pairs}.", "note")
    share = summary["duplicate_transitions"] / dataset.transitions
    if share > 0.01:
        add(
            "duplicate_transitions",
            f"{share:.1%} of the transitions are exact copies of others; remove repeated episodes.",
        )
    spread = [value for value in observations["std"] if value > 0]
    if spread and max(spread) / min(spread) > 1e4:
        add(
            "observation_scale",
            "The scales of the observations differ by more than 10,000; normalise them in training.",
            "note",
        )
