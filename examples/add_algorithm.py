"""Add an algorithm: the best tenth. Imitate only those transitions whose recorded return is in the top ten per cent.

Run it with `python examples/add_algorithm.py DATASET`. An algorithm is one module with `Config`, `State`, `init`,
`steps` and `policy`; this script is such a module and enters itself under the name `best-tenth`.
"""

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

import qdq
from qdq import algorithms
from qdq.algorithms import bc
from qdq.algorithms.problem import Problem
from qdq.data.batches import LoggedTransitions
from qdq.networks import DeterministicPolicy
from qdq.settings import setting
from qdq.training.loop import Metrics, Step
from qdq.training.optimiser import descend


@dataclass(frozen=True)
class Config(bc.Config):
    """Settings of imitation of the best transitions."""

    share: float = setting(0.1, "share of each batch that is imitated")


State, init, policy = bc.State, bc.init, bc.policy


def policy_loss(policy: DeterministicPolicy, config: Config, batch: LoggedTransitions) -> tuple[Array, Metrics]:
    """Squared distance to the recorded action where the recorded return is high."""
    border = jnp.quantile(batch.returns, 1.0 - config.share)
    chosen = (batch.returns >= border).astype(jnp.float32)
    distance = jnp.mean(jnp.square(policy(batch.observations) - batch.actions), axis=-1)
    loss = jnp.sum(chosen * distance) / jnp.sum(chosen)
    return loss, {"policy_loss": loss}


def steps(config: Config, problem: Problem) -> tuple[Step, ...]:
    """The cycle of pure training steps: one."""
    del problem
    optimiser = bc.optimiser(config)

    def step(state: bc.State, batch: LoggedTransitions, key: Array) -> tuple[bc.State, Metrics]:
        del key
        grads, metrics = jax.grad(policy_loss, has_aux=True)(state.policy, config, batch)
        return State(*descend(optimiser, grads, state.policy_optimiser, state.policy)), metrics

    return (step,)


if __name__ == "__main__":
    algorithms.ALGORITHMS["best-tenth"] = "__main__"
    run = qdq.train(sys.argv[1], "best-tenth", "demo", overrides=["training.batch_size=1024"], resume=True)
    print(run.result["score"])
