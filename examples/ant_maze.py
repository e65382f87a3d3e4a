"""AntMaze without a download: random walks in AntMaze_UMaze-v4, stored by Minari as `D4RL/antmaze/*-v1` stores its data.

Run it with `python examples/ant_maze.py`; it prints the command that trains on the result. Observations are
dictionaries (observation, achieved_goal, desired_goal), the reward is 1 at the goal and 0 elsewhere, and episodes end by
the time limit only. A random walk hardly ever meets its goal, so every second episode gets a goal that it did reach
(hindsight). Random walks teach no ant to walk: this shows that everything fits together, and the score will be near 0.
"""

import argparse
import warnings
from typing import Any

import numpy as np

from qdq.data.minari_format import minari_path
from qdq.online.acting import make_environment

DATASET = "example/antmaze/umaze-v0"
ENVIRONMENT = "AntMaze_UMaze-v4"
# Policies are tried out from one corner to the other, as D4RL does; the data has random starts and goals.
EVALUATION_MAP = [[1, 1, 1, 1, 1], [1, "g", 0, 0, 1], [1, 1, 1, 0, 1], [1, "r", 0, 0, 1], [1, 1, 1, 1, 1]]
HOLD = 10  # steps for which a random action is kept: the ant moves further


def random_walk(environment: Any, random: np.random.Generator, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The observations and actions of one episode."""
    observation, _ = environment.reset(seed=seed)
    observations, actions = [observation], []
    action, truncated = np.zeros(environment.action_space.shape, np.float32), False
    while not truncated:
        if len(actions) % HOLD == 0:
            action = random.uniform(-1.0, 1.0, action.shape).astype(np.float32)
        actions.append(action)
        observation, _, _, truncated, _ = environment.step(action)
        observations.append(observation)
    return {key: np.stack([row[key] for row in observations]) for key in observation}, np.stack(actions)


def write_dataset(identifier: str, episodes: int, steps: int, seed: int = 0) -> None:
    """Collect random walks and store them as a Minari dataset."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    environment = make_environment(ENVIRONMENT, max_episode_steps=steps)
    trial = make_environment(ENVIRONMENT, max_episode_steps=steps, maze_map=EVALUATION_MAP, continuing_task=True)
    random = np.random.default_rng(seed)
    buffers = []
    for episode in range(episodes):
        observations, actions = random_walk(environment, random, seed + episode)
        if episode % 2:  # in hindsight, somewhere in the second half was the goal
            reached = observations["achieved_goal"][random.integers(steps // 2, steps + 1)]
            observations["desired_goal"] = np.tile(reached, (steps + 1, 1))
        following, goals = observations["achieved_goal"][1:], observations["desired_goal"][1:]
        rewards = environment.unwrapped.compute_reward(following, goals, {})
        last = np.arange(steps) == steps - 1
        buffers.append(
            EpisodeBuffer(episode, seed + episode, None, observations, actions, rewards, np.zeros(steps, bool), last)  # type: ignore[arg-type]
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari advises authors, links and newer environments
        minari.create_dataset_from_buffers(
            identifier, buffers, env=environment, eval_env=trial, algorithm_name="random walk"
        )
    environment.close()
    trial.close()


def main() -> None:
    """Write the dataset, and say how to train on it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default=DATASET, help="Minari id to store the data under")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--steps", type=int, default=700, help="time limit of an episode; D4RL's is 700")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_dataset(arguments.dataset, arguments.episodes, arguments.steps, arguments.seed)
    print(f"Stored in {minari_path(arguments.dataset)}; now try")
    print(f"qdq train {arguments.dataset} --steps 2000 --set evaluation.every=1000 --set quantile.steps=2000")


if __name__ == "__main__":
    main()
