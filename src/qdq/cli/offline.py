"""`qdq evaluate --ope`: what policies are worth, from recorded episodes alone."""

import json
from pathlib import Path
from typing import Any


def evaluate_offline(
    run: Path, dataset: str, columns: Path | None, checkpoints: bool, as_json: bool, **options: Any
) -> None:
    """Fitted Q evaluation of the policies of a run; with `checkpoints`, of all that it kept, into `fqe.json`."""
    import qdq
    from qdq import storage
    from qdq.data.load import load_dataset
    from qdq.errors import UsageError
    from qdq.evaluation import fqe
    from qdq.settings import to_dict
    from qdq.training.display import Silent, choose

    opened = qdq.load_run(run)
    data = load_dataset(dataset, columns=columns)
    if data.sha256 != opened.manifest.get("dataset_sha256"):
        raise UsageError(
            f"{dataset} is not the dataset that {run} was trained on ({opened.manifest['dataset']}); give the same data."
        )
    config = fqe.Config(**{name: value for name, value in options.items() if value is not None})
    if checkpoints:
        policies = {
            (seed, step): policy for seed in opened.seeds for step, policy in opened.kept_policies(seed).items()
        }
        if not policies:
            raise UsageError(
                f"{run} kept no policies along the way; train it with --set evaluation.keep_policies=true."
            )
    else:
        policies = {(seed, opened.config.training.steps): opened.deployed_policy(seed) for seed in opened.seeds}
    display = Silent() if as_json else choose()
    display.begin(f"fitted Q evaluation of {len(policies)} policies", config.steps)
    try:
        show = lambda step, state, metrics: display.update(step, metrics)  # noqa: E731
        evaluation = fqe.evaluate(data, list(policies.values()), config, [show])
    finally:
        display.end()
    rows: list[dict[str, Any]] = []
    for (seed, step), estimate in zip(policies, evaluation.estimates, strict=True):
        true = opened.mean_returns(seed).get(step)
        row = {"seed": seed, "step": step, "value": estimate.value, "interval_95": estimate.interval_95}
        rows.append({**row, "fits": estimate.fits, "mean_return": true})
    result: dict[str, Any] = {
        "run": str(run),
        "dataset": data.name,
        "dataset_sha256": data.sha256,
        "settings": to_dict(config),
        "recorded_value": evaluation.recorded,
        "held_out_episodes": evaluation.held_out_episodes,
        "policies": rows,
        "ranking": None,
    }
    known = [row for row in rows if row["mean_return"] is not None]
    if checkpoints and len(known) > 1:
        result["ranking"] = fqe.rank_agreement(
            [row["value"] for row in known], [row["mean_return"] for row in known], config.seed
        )
    if checkpoints:
        storage.write_json(run / "fqe.json", {name: value for name, value in result.items() if name != "run"})
    if as_json:
        print(json.dumps(result))
    else:
        describe(result, config.discount, run if checkpoints else None)


def describe(result: dict[str, Any], discount: float, folder: Path | None) -> None:
    """Print the estimates for a person."""
    print(
        f"discounted values ({discount:g} per step); the {result['held_out_episodes']} held-out episodes themselves: "
        f"{result['recorded_value']:.4g}"
    )
    for row in result["policies"]:
        interval = "one held-out episode, no interval"
        if row["interval_95"] is not None:
            interval = "95 % interval {:.4g} to {:.4g}".format(*row["interval_95"])
        true = "" if row["mean_return"] is None else f"; true return, undiscounted: {row['mean_return']:.1f}"
        print(f"seed {row['seed']}, step {row['step']:,}: {row['value']:.4g}, {interval}{true}")
    ranking = result["ranking"]
    if ranking is not None:
        correlation = "undefined, all are the same" if ranking["spearman"] is None else f"{ranking['spearman']:.2f}"
        if ranking["interval_95"] is not None:
            correlation += ", 95 % interval {:.2f} to {:.2f}".format(*ranking["interval_95"])
        print(f"rank correlation with true returns over {ranking['policies']} policies: {correlation}")
        print(
            f"regret@1: the policy with the best estimate returns {ranking['regret_at_1']:.1f} less than the best one "
            f"(range {ranking['range_of_returns']:.1f})"
        )
    if folder is not None:
        print(f"Everything is in {folder / 'fqe.json'}")
