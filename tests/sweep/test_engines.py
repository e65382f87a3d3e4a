"""The same study on three engines: this machine, a Ray cluster that loses a node, and submitit. Their tables must agree."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qdq.errors import UsageError
from qdq.sweep.study import EngineSettings
from tests.sweep.common import Place, wait_for

STUDY = """
datasets = ["hopper-random"]
algorithms = ["qdq", "bc"]
seeds = [1]
steps = 200
[engine.slurm]
executor = "local"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Tiny data and the study."""
    place = Place(tmp_path_factory.mktemp("engines"))
    place.run("data", "make", "hopper-random", "--transitions", "1000")
    place.study("study.toml", STUDY)
    return place


@pytest.fixture(scope="module")
def reference(place: Place) -> Any:
    """The results of the local engine, and what was shown."""
    shown, _ = place.run("sweep", "study.toml", "--out", "local")
    return place.read("local/results.json"), shown


def test_the_local_engine_runs_a_study_once(place: Place, reference: Any) -> None:
    results, shown = reference
    assert shown.count(": done in") == 3  # two runs and the Q distribution of one of them
    assert len(list((place.folder / "cache" / "stages" / "quantile").glob("*/manifest.json"))) == 1
    assert [(row["dataset"], row["method"]) for row in results["results"]] == [
        ("hopper-random", "qdq"),
        ("hopper-random", "bc"),
    ]
    for row in results["results"]:
        assert row["mean"] == row["scores"]["1"]
        result = place.read(f"local/runs/{row['run']}/result.json")
        assert {str(seed["seed"]): seed["final_score"] for seed in result["seeds"]} == row["scores"]
    logs = sorted((place.folder / "local" / "logs").glob("*.log"))
    before = [log.read_text() for log in logs]
    assert len(logs) == 3
    assert "Nothing is left to run." in place.run("sweep", "study.toml", "--out", "local")[0]
    assert [log.read_text() for log in logs] == before


def test_submitit_gives_the_same_results(place: Place, reference: Any) -> None:
    shown, _ = place.run("sweep", "study.toml", "--engine", "slurm", "--out", "slurm")
    assert shown.count(": done in") == 3
    assert place.read("slurm/results.json") == reference[0]  # to the last bit
    assert len(list((place.folder / "slurm" / "logs" / "submitit").glob("*/*_result.pkl"))) == 3


@pytest.fixture
def cluster() -> Iterator["subprocess.Popen[str]"]:
    """Two nodes, as a process that kills the second one on request."""
    script = Path(__file__).with_name("ray_cluster.py")
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL, **pipes)
    with process:
        yield process
        process.communicate(timeout=60)


def test_ray_gives_the_same_results_although_it_loses_a_node(
    place: Place, reference: Any, cluster: "subprocess.Popen[str]"
) -> None:
    assert cluster.stdin is not None
    assert cluster.stdout is not None
    address = cluster.stdout.readline().removeprefix("address ").strip()
    sweep = place.start("sweep", "study.toml", "--engine", "ray", "--address", address, "--out", "ray")

    def started() -> int:
        return sum(log.stat().st_size > 0 for log in (place.folder / "ray" / "logs").glob("*.log"))

    wait_for(lambda: started() == 2, sweep)  # one on each node, because a node has one core
    cluster.stdin.write("lose\n")
    cluster.stdin.flush()
    assert cluster.stdout.readline() == "lost\n"
    shown, errors = sweep.communicate(timeout=900)
    assert sweep.returncode == 0, shown + errors
    assert "lost its worker" in shown
    jobs = place.read("ray/sweep.json")["jobs"].values()
    assert sum(job["losses"] for job in jobs) >= 1
    assert {job["state"] for job in jobs} == {"done"}
    assert place.read("ray/results.json") == reference[0]


def test_engines_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qdq.sweep.engines import open_engine

    monkeypatch.setenv("PATH", str(tmp_path))  # nor is there Slurm
    with pytest.raises(UsageError, match="This machine has no Slurm"):
        open_engine(EngineSettings("slurm"), tmp_path)
    with pytest.raises(UsageError, match=r"submitit refuses .*partitoin"):
        open_engine(EngineSettings("slurm", slurm={"executor": "local", "partitoin": "x"}), tmp_path)
    with pytest.raises(UsageError, match=r"There is no Ray cluster at address '127\.0\.0\.1:9'"):
        open_engine(EngineSettings("ray", address="127.0.0.1:9"), tmp_path)
    for name in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'qdq\[ray\]'"):
        open_engine(EngineSettings("ray"), tmp_path)
    with pytest.raises(UsageError, match=r"pip install 'qdq\[submitit\]'"):
        open_engine(EngineSettings("slurm"), tmp_path)
