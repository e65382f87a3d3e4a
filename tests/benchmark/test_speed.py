"""A short form of the benchmark: only ratios, with a factor of two of room, so that a change of kind fails and noise does not."""

import json
import os
import subprocess
import sys

SCRIPT = """
import json
from qdq.cli.bench import use_one_core
use_one_core()
from qdq.benchmark.cases import Shape, algorithm_case, qdq_case, stage_case
from qdq.benchmark.measure import measure
shape = Shape(transitions=10_000)
large = Shape(transitions=1_000_000)
cases = [stage_case("diffusion", shape), qdq_case(shape, nodes=8), algorithm_case("td3-bc", shape),
         algorithm_case("td3-bc", large, label="large")]
print(json.dumps({row["name"]: row for row in measure(cases, repeats=2)}))
"""


def test_steps_spend_their_time_in_matrix_products() -> None:
    as_users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=as_users, check=True)
    rows = json.loads(ran.stdout)
    assert rows["qdq, 8 nodes"]["utilisation"] > 0.32  # 0.65 on an idle machine
    assert rows["td3-bc"]["utilisation"] > 0.4
    assert rows["diffusion"]["utilisation"] > 0.25
    # The cost of a step does not depend on the size of the dataset.
    assert rows["large"]["cpu_milliseconds_per_step"] < 2 * rows["td3-bc"]["cpu_milliseconds_per_step"]
