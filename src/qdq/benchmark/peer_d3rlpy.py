"""Times d3rlpy's training steps on the same kind of data. Run by an interpreter that has d3rlpy; it needs nothing of qdq.

Reads one line per request, `ALGORITHM STEPS`, and answers with the processor seconds those steps took.
"""

import sys
import time

import d3rlpy  # pyright: ignore[reportMissingImports]
import numpy as np
import torch  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Build the algorithms, say `ready`, then answer requests until the input ends."""
    observation_size, action_size, batch_size, transitions = (int(value) for value in sys.argv[1:5])
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    data = d3rlpy.dataset.MDPDataset(
        random.standard_normal((transitions, observation_size)).astype(np.float32),
        random.uniform(-1.0, 1.0, (transitions, action_size)).astype(np.float32),
        random.standard_normal(transitions).astype(np.float32),
        (np.arange(transitions) % 1000 == 999).astype(np.float32),
    )
    configurations = {
        "td3-bc": d3rlpy.algos.TD3PlusBCConfig(batch_size=batch_size),
        "iql": d3rlpy.algos.IQLConfig(batch_size=batch_size),
    }
    learners = {name: configuration.create(device="cpu:0") for name, configuration in configurations.items()}
    for learner in learners.values():
        learner.build_with_dataset(data)
    print(f"ready {d3rlpy.__version__} {torch.__version__}", flush=True)
    for line in sys.stdin:
        name, steps = line.split()
        learner = learners[name]
        began = time.process_time()
        for _ in range(int(steps)):
            learner.update(data.sample_transition_batch(batch_size))
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
