"""Train on your own arrays, without an environment: a heater that should hold a temperature.

Run it with `python examples/own_arrays.py`. The log has two columns of observations (temperature and the outside
temperature), one action (power, 0 to 2 kW) and a reward; nobody can simulate the room.
"""

import numpy as np

import qdq


def make_log(hours: int = 400, steps: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """A log written by a clumsy thermostat: full power below 19 degrees, off above 21, random in between."""
    random = np.random.default_rng(seed)
    rows: dict[str, list] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations", "truncations")
    }
    for _ in range(hours):
        inside, outside = random.uniform(15, 25), random.uniform(-5, 10)
        for step in range(steps):
            power = 2.0 if inside < 19 else 0.0 if inside > 21 else random.uniform(0, 2)
            following = inside + 2.0 * power - 0.1 * (inside - outside) + random.normal(0, 0.1)
            rows["observations"].append([inside, outside])
            rows["actions"].append([power])
            rows["rewards"].append(-abs(following - 20.0) - 0.1 * power)
            rows["next_observations"].append([following, outside])
            rows["truncations"].append(step == steps - 1)  # the log is cut every 24 steps; the room goes on
            inside = following
    return {name: np.asarray(values) for name, values in rows.items()}


def main() -> None:
    """Load, train, act, and ask how much the outcome varies."""
    log = make_log()
    dataset = qdq.from_arrays(
        **log,
        terminals=np.zeros(len(log["rewards"]), bool),
        action_low=0.0,
        action_high=2.0,
        metadata=qdq.Metadata(name="heater"),
    )
    run = qdq.train(
        dataset,
        preset="demo",
        steps=4_000,
        name="heater",
        resume=True,  # run the script again and it finds its result
        overrides=[
            "quantile.steps=2000",
            "behaviour.steps=2000",
            "algorithm.extraction_share=0.5",
        ],
    )
    rooms = np.array([[17.0, 0.0], [20.0, 0.0], [23.0, 0.0]])
    power = run.policy(rooms)
    spread = run.uncertainty(rooms, power)
    for (inside, outside), action, h in zip(rooms, power[:, 0], spread, strict=True):
        print(f"inside {inside:4.0f}, outside {outside:4.0f}: power {action:.2f} kW, returns vary by {h:.2f}")


if __name__ == "__main__":
    main()
