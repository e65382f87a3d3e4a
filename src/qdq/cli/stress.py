"""`qdq stress`: kill a run again and again, and prove that nothing is lost."""

from pathlib import Path

from tyro.conf import UseAppendAction


def stress(
    kills: int = 20,
    out: Path = Path("stress"),
    seed: int = 0,
    steps: int = 4_000,
    set: UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Train a small run of every stage, kill it at random moments, resume it each time, and compare with one left in peace.

    Parameters, metrics, evaluations and results must be the same to the last bit; any difference is exit code 3.

    Args:
        kills: How many times the run is killed (SIGKILL, which nothing can catch).
        out: Folder for both runs, their logs and their caches; must be new.
        seed: Seed of the moments of the kills and of the data.
        steps: Gradient steps of the actor-critic, for each of two training seeds.
        set: Change one setting of both runs: section.key=value; may be repeated.
    """
    from qdq.errors import DataError, UsageError
    from qdq.settings import checked_seed
    from qdq.training import stress as crash_test

    checked_seed(seed)
    if kills < 1:
        raise UsageError(f"--kills must be at least 1, but is {kills}.")
    outcome = crash_test.stress(out, kills, seed, steps, set, lambda text: print(text, flush=True))
    if outcome.differences:
        more = f" and {len(outcome.differences) - 1} more" if len(outcome.differences) > 1 else ""
        raise DataError(f"After {outcome.kills} kills the run is not the same: {outcome.differences[0]}{more}.")
    print(f"{outcome.kills} kills, {len(outcome.lives)} lives: the run ended identical to the undisturbed one.")
