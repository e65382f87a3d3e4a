"""The same algorithms, data and network sizes in another library, in an interpreter of its own, taking turns with ours."""

import statistics
import subprocess
from pathlib import Path
from typing import Any

from qdq.benchmark.cases import Shape, algorithm_case
from qdq.benchmark.measure import CHUNK, start_case
from qdq.errors import UsageError

ALGORITHMS = ("td3-bc", "iql")
STEPS = 5 * CHUNK


class Peer:
    """A running interpreter that times d3rlpy on request."""

    def __init__(self, interpreter: Path, shape: Shape):
        script = Path(__file__).with_name("peer_d3rlpy.py")
        sizes = (shape.observation_size, shape.action_size, shape.batch_size, shape.transitions)
        try:
            self.process = subprocess.Popen(
                [str(interpreter), str(script), *map(str, sizes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise UsageError(
                f"{interpreter} cannot be run ({error.strerror}); give a Python that has d3rlpy."
            ) from error
        line = self._line()
        while line and not line.startswith("ready"):  # d3rlpy logs to the same stream
            line = self._line()
        if not line:
            assert self.process.stderr is not None
            reason = (self.process.stderr.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise UsageError(f"{interpreter} cannot time d3rlpy ({reason}); install d3rlpy and torch there.")
        _, self.version, self.torch_version = line.split()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def seconds(self, name: str, steps: int) -> float:
        """Processor seconds of so many training steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {steps}\n")
        self.process.stdin.flush()
        line = self._line()
        while line:
            try:
                return float(line)
            except ValueError:
                line = self._line()
        raise UsageError("d3rlpy stopped in the middle of the comparison; run it there on its own to see why.")

    def close(self) -> None:
        """Stop the interpreter."""
        self.process.terminate()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def against_d3rlpy(interpreter: Path, shape: Shape, repeats: int = 5) -> dict[str, Any]:
    """Processor milliseconds per step of both libraries, measured in turns."""
    peer = Peer(interpreter, shape)
    try:
        rows = []
        for name in ALGORITHMS:
            running = start_case(algorithm_case(name, shape))
            peer.seconds(name, 20)
            pairs = []
            for _ in range(repeats):
                ours = sum(running.advance() for _ in range(STEPS // CHUNK)) / STEPS
                pairs.append((ours, peer.seconds(name, STEPS) / STEPS))
            rows.append(
                {
                    "name": name,
                    "cpu_milliseconds_per_step": 1e3 * statistics.median(ours for ours, _ in pairs),
                    "d3rlpy_cpu_milliseconds_per_step": 1e3 * statistics.median(theirs for _, theirs in pairs),
                    "ratio": statistics.median(theirs / ours for ours, theirs in pairs),
                }
            )
    finally:
        peer.close()
    return {"d3rlpy": peer.version, "torch": peer.torch_version, "algorithms": rows}
