"""Bigger than memory: a file of ten times the budget, trained on in a process whose memory is watched."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

MEBIBYTE = 2**20
BUDGET = 224 * MEBIBYTE
EPISODE = 250
SCRIPT = """
import json, sys

import jax, jax.numpy as jnp

jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()


def memory(field):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(field))


start = memory("VmRSS")
import qdq
from qdq.training.display import Silent

overrides = ("training.chunk=100", "training.checkpoint_every=200", "evaluation.every=200", "data.normalise_states=true")
options = {"steps": 600, "overrides": (*overrides, "algorithm.policy_hidden=32,32"), "display": Silent()}
run = qdq.train(sys.argv[1], "bc", out=sys.argv[2], memory=int(sys.argv[3]), **options)
print(json.dumps({"start": start, "peak": memory("VmHWM"), "streamed": run.manifest["streamed"]}))
"""


def write_large(path: Path, size: int, observation_size: int, action_size: int) -> int:
    """A D4RL file of at least `size` bytes, written in blocks; returns its transitions."""
    random = np.random.default_rng(0)
    per_block = 16 * EPISODE
    row = 4 * (observation_size + action_size + 1) + 2
    blocks = -(-size // (row * per_block))
    final = np.arange(per_block) % EPISODE == EPISODE - 1
    odd = np.arange(per_block) // EPISODE % 2 == 1
    columns = {
        "observations": random.standard_normal((per_block, observation_size), np.float32),
        "actions": random.uniform(-1, 1, (per_block, action_size)).astype(np.float32),
        "rewards": random.standard_normal(per_block, np.float32),
        "terminals": final & odd,
        "timeouts": final & ~odd,
    }
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            stored = file.create_dataset(name, (blocks * per_block, *column.shape[1:]), column.dtype)
            for block in range(blocks):
                stored[block * per_block : (block + 1) * per_block] = column
    return blocks * per_block


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_ten_times_the_budget_in_less_than_twice_the_budget(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 30 * BUDGET:
        pytest.skip("not enough room on the disk")
    path = tmp_path / "large.hdf5"
    try:
        transitions = write_large(path, 10 * BUDGET, 500, 8)
        assert path.stat().st_size >= 10 * BUDGET
        command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "runs"), str(BUDGET)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        assert finished.returncode == 0, finished.stderr
        measured = json.loads(finished.stdout.splitlines()[-1])
        assert measured["streamed"]["block_transitions"] * 10 < transitions
        above = measured["peak"] - measured["start"]
        assert above < 2 * BUDGET, (
            f"{above / MEBIBYTE:.0f} MiB above the start, {BUDGET / MEBIBYTE:.0f} MiB allowed twice"
        )
    finally:  # pytest keeps the folders of its last runs
        path.unlink(missing_ok=True)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
