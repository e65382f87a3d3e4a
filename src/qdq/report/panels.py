"""What a trained run shows about its Q distribution, measured once and saved, so that pictures need neither model nor data."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdq import storage, uncertainty
from qdq.behaviour import BehaviourModel
from qdq.data.blocks import take
from qdq.data.prepare import Prepared
from qdq.report.runs import PANELS
from qdq.training.stages import surprise_of

SAMPLE_ROWS = 4_000
RANK_SAMPLES = 99


def _rows(count: int) -> np.ndarray:
    return np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(int)


def measure(
    distribution: Any,
    policy: Any,
    prepared: Prepared,
    rule: uncertainty.Config,
    behaviour: BehaviourModel | None = None,
    surprise_border: float = 0.0,
) -> dict[str, np.ndarray]:
    """Samples of the learned distribution beside the recorded returns, and H and the surprise of three kinds of actions.

    `window_returns` and `window_samples`: truncated returns of the data, and one sample of the learned distribution for
    each. `return_ranks`: where the true return lies among samples, uniform if the distribution is calibrated (on training
    windows). `recorded_`, `policy_` and `random_uncertainty`: H of the recorded, the policy's and uniformly random actions
    at the same states. `recorded_`, `policy_` and `random_surprise`: the surprise of the same actions, with its
    `surprise_border`, where there is a model of the recorded actions.
    """
    chosen = _rows(len(prepared.windows.index))
    windows = prepared.transitions.at(jnp.asarray(take(prepared.windows.index, chosen)))
    returns = take(prepared.windows.values, chosen)
    samples = np.asarray(distribution.sample(windows.observations, windows.actions, jax.random.key(0), 1))[0]
    few = slice(None, None, 4)  # 99 samples each: a quarter of the rows keeps this within 100 MB
    levels = np.asarray(
        distribution.sample(windows.observations[few], windows.actions[few], jax.random.key(1), RANK_SAMPLES)
    )
    ranks = ((levels < returns[few]).sum(axis=0) + 0.5) / (RANK_SAMPLES + 1)
    batch = prepared.transitions.at(jnp.asarray(_rows(prepared.dataset.transitions)))
    key = jax.random.key(0)
    actions = {
        "recorded": batch.actions,
        "policy": policy(batch.observations),
        "random": jax.random.uniform(key, batch.actions.shape, minval=-1.0, maxval=1.0),
    }
    arrays = {"window_returns": returns, "window_samples": samples, "return_ranks": ranks}
    for name, action in actions.items():
        _, arrays[f"{name}_uncertainty"] = uncertainty.mean_and_std(distribution, batch.observations, action, rule, key)
    if behaviour is not None:
        for name, action in actions.items():
            arrays[f"{name}_surprise"] = surprise_of(behaviour, batch.observations, action)
        arrays["surprise_border"] = np.array([surprise_border])
    return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def save(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write the arrays into a run folder."""
    with storage.atomic_path(folder / PANELS) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
