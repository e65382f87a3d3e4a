"""`qdq online` and `qdq snapshots`: train behaviour policies, and choose the levels the dataset factory uses."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def online(
    environment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENVIRONMENT")],
    algorithm: Literal["sac", "td3"] = "sac",
    steps: int = 1_000_000,
    seed: int = 1,
    out: Path | None = None,
    resume: bool = False,
    snapshot_every: int = 10_000,
    checkpoint_every: int = 50_000,
    updates_per_block: int = 100,
    batch_size: int = 128,
    critic_layer_norm: bool = True,
) -> None:
    """Train a policy online in a Gymnasium environment, with checkpoints, logs and snapshots.

    Args:
        environment: Gymnasium id, such as Hopper-v4.
        algorithm: Soft actor-critic or TD3.
        steps: Environment steps, after a random warm-up of 5,000.
        seed: Seed of networks, environment and exploration.
        out: Folder of the run; runs/ENVIRONMENT-ALGORITHM-SEED by default.
        resume: Go on from the newest checkpoint in the folder, or start where there is none. Networks, optimisers and
            replay buffer are restored, but the simulator is not: a new episode begins, so a resumed run is not bit for
            bit one that never stopped.
        snapshot_every: Environment steps between two evaluated snapshots of the policy.
        checkpoint_every: Environment steps between two checkpoints.
        updates_per_block: Updates after every 200 environment steps.
        batch_size: Transitions in the batch of an update.
        critic_layer_norm: LayerNorm in the critics.
    """
    from qdq.online.run import train_online
    from qdq.settings import checked_seed

    checked_seed(seed)
    folder = train_online(
        environment,
        algorithm,
        steps,
        seed,
        out,
        resume=resume,
        snapshot_every=snapshot_every,
        checkpoint_every=checkpoint_every,
        updates_per_block=updates_per_block,
        algorithm_settings={"batch_size": batch_size, "critic_layer_norm": critic_layer_norm},
    )
    print(folder)


def snapshots(
    families: tyro.conf.Positional[tuple[Literal["hopper", "halfcheetah", "walker2d"], ...]] = (
        "hopper",
        "halfcheetah",
        "walker2d",
    ),
    out: Path = Path("snapshots"),
    runs: Path = Path("runs"),
    from_runs: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
) -> None:
    """Rebuild the factory's policy snapshots: train online, choose expert, medium and replay, and pack them.

    Args:
        families: The environments; all three by default.
        out: Folder for the packed files; point the environment variable QDQ_SNAPSHOTS at it to make datasets from them.
        runs: Folder of the online runs; unfinished ones there go on from their newest checkpoint.
        from_runs: Only choose, from the existing online runs in this folder, without training.
    """
    from qdq.online.snapshots import RECIPES, pack_snapshots

    for family in families:
        recipe = RECIPES[family]
        if from_runs is None:
            from qdq.online.run import train_online

            run = train_online(
                recipe.environment_id,
                recipe.algorithm,
                recipe.steps,
                recipe.seed,
                runs / recipe.folder,
                resume=True,
                snapshot_every=recipe.snapshot_every,
                updates_per_block=recipe.updates_per_block,
                algorithm_settings=recipe.algorithm_settings,
            )
        else:
            run = from_runs / recipe.folder
        packed = pack_snapshots(run, out / f"{family}.safetensors", recipe.replay_count)
        for level, step in (("expert", packed.levels.expert), ("medium", packed.levels.medium)):
            print(f"{family} {level}: score {packed.snapshots[step].score:.1f} at {step:,} environment steps")
