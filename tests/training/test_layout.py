"""Many devices: a seed's learning curve does not depend on which seeds and devices it is trained with."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qdq
from qdq.data.npz import write_npz
from qdq.errors import UsageError
from qdq.training.layout import choose, grid
from tests.probes import probe_dataset

SMALL = (
    "training.chunk=100",
    "training.checkpoint_every=100",
    "training.batch_size=32",
    "algorithm.policy_hidden=16,16",
    "algorithm.critic_hidden=16,16",
)
TOLERANCE = 1e-4  # of actions in [-1, 1] after 400 steps; sums over a batch are taken in another order


def curve(run: Path, seed: int) -> np.ndarray:
    """All metrics of a seed."""
    return np.genfromtxt(run / f"seed_{seed}" / "metrics.csv", delimiter=",", skip_header=1)


def actions(run: Path, seed: int) -> np.ndarray:
    """What a trained seed does in some states."""
    return qdq.load_run(run).policy(np.random.default_rng(0).normal(size=(50, 2)), seed)


@pytest.mark.parametrize(
    ("seeds", "devices", "batch", "shape"),
    [
        (8, 4, 256, (4, 1)),
        (1, 4, 256, (1, 4)),
        (6, 4, 256, (2, 2)),
        (3, 2, 256, (1, 2)),
        (1, 4, 6, (1, 2)),
        (5, 1, 8, (1, 1)),
    ],
)
def test_the_grid_fits_seeds_and_batch(seeds: int, devices: int, batch: int, shape: tuple[int, int]) -> None:
    assert grid(seeds, batch, devices) == shape
    assert seeds % shape[0] == 0
    assert batch % shape[1] == 0


def test_one_seed_on_one_device_needs_no_layout() -> None:
    assert choose(1, 256) is None


SCRIPT = """
import sys, jax, qdq
from qdq.data.load import load_dataset
from qdq.training.display import Silent
assert len(jax.devices()) == 4
small = tuple(sys.argv[1].split())
def fit(name, seeds, steps=400, **options):
    qdq.train(load_dataset("probe.npz"), "td3-bc", "fast", seeds, steps=steps, overrides=small, name=name, display=Silent(), **options)
fit("together", [0, 1, 2, 3, 4, 5, 6, 7])            # two seeds on each device
fit("shared", [3])                                    # one seed, its batch on four devices
from qdq.training import seeds
log = seeds.CsvLog.__call__
def failing(self, step, state, metrics):
    log(self, step, state, metrics)
    if step == 300 and "seed_1" in str(self.path):    # seed 0 has a checkpoint of step 300, seed 1 has not
        raise RuntimeError("power failure")
seeds.CsvLog.__call__ = failing
try:
    fit("stopped", [0, 1])
    raise AssertionError("it did not stop")
except RuntimeError:
    pass
seeds.CsvLog.__call__ = log
fit("stopped", [0, 1], resume=True)
"""


def test_seeds_do_not_depend_on_their_grouping(tmp_path: Path) -> None:
    write_npz(probe_dataset(0.3), tmp_path / "probe.npz")
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, " ".join(SMALL)], cwd=tmp_path, env=environment, check=True, timeout=600
    )
    data = probe_dataset(0.3)
    qdq.train(data, "td3-bc", "fast", [0, 1, 3], steps=400, overrides=SMALL, out=tmp_path / "runs", name="alone")
    runs = tmp_path / "runs"
    for other, seed in (("together", 0), ("together", 3), ("shared", 3), ("stopped", 0), ("stopped", 1)):
        np.testing.assert_allclose(actions(runs / other, seed), actions(runs / "alone", seed), atol=TOLERANCE)
        np.testing.assert_allclose(curve(runs / other, seed), curve(runs / "alone", seed), rtol=1e-3, atol=1e-4)
    assert len(curve(runs / "stopped", 1)) == 4
    assert len(qdq.load_run(runs / "together").result["seeds"]) == 8


def test_a_stream_serves_one_seed_at_a_time(tmp_path: Path) -> None:
    data = probe_dataset(0.3, episodes=60_000)
    with pytest.raises(UsageError, match="leave out --together"):
        qdq.train(data, "bc", "fast", [0, 1], steps=200, out=tmp_path, memory="3MB", together=True, overrides=SMALL[:4])


def test_two_processes_train_one_run(tmp_path: Path) -> None:
    """Two processes with one device each: two seeds side by side, and one seed whose batches they share."""
    write_npz(probe_dataset(0.3), tmp_path / "probe.npz")
    options = [word for override in SMALL for word in ("--set", override)]
    for name, seeds in (("both", "2"), ("shared", "1")):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [
            sys.executable,
            "-m",
            "qdq.cli.main",
            "train",
            "probe.npz",
            "--algorithm",
            "td3-bc",
            "--steps",
            "400",
        ]
        command += ["--seeds", seeds, "--name", name, "--distributed", *options]
        processes = []
        for number in range(2):
            environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
            environment |= {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(number)}
            environment |= {"JAX_PLATFORMS": "cpu"}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        for process in processes:
            output = process.communicate(timeout=300)
            assert process.returncode == 0, output
    data = probe_dataset(0.3)
    qdq.train(data, "td3-bc", "fast", [0, 1], steps=400, overrides=SMALL, out=tmp_path / "runs", name="alone")
    runs = tmp_path / "runs"
    for other, seed in (("both", 0), ("both", 1), ("shared", 0)):
        np.testing.assert_allclose(actions(runs / other, seed), actions(runs / "alone", seed), atol=TOLERANCE)
    assert [seed["seed"] for seed in qdq.load_run(runs / "both").result["seeds"]] == [0, 1]
