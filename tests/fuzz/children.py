"""Starting, asking and replacing the process that reads damaged files."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 60  # for one small file, also on a machine that is busy with other things
KIBIBYTES = 512 * 1024  # by which one small file may make the process grow


class Child:
    """A process that reads; a new one is started where the last one died."""

    def __init__(self, log: Path):
        self.log = log
        self.process: subprocess.Popen[str] | None = None
        self.sound: dict[str, Path] = {}  # what each reader reads first in a new process

    def ask(self, reader: str, folder: Path) -> dict[str, Any]:
        """What comes of reading `folder`; sound files are read before it, so that only the damage counts."""
        if self.process is None:
            self._start()
            for name, sound in self.sound.items():
                self._request(name, sound, sound=True)
        return self._request(reader, folder, sound=False)

    def prepare(self, reader: str, folder: Path) -> dict[str, Any]:
        """Read sound files, now and in every later process."""
        if self.process is None:
            self._start()
        self.sound = {reader: folder}
        return self._request(reader, folder, sound=True)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _start(self) -> None:
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "tests.fuzz.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=ROOT,
            )

    def _request(self, reader: str, folder: Path, *, sound: bool) -> dict[str, Any]:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"reader": reader, "folder": str(folder), "sound": sound}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], SECONDS * (5 if sound else 1))
            line = process.stdout.readline() if ready else ""
        except BrokenPipeError:
            ready, line = [process.stdout], ""
        if line:
            return json.loads(line)
        if not ready:
            self.close()
            return {"outcome": f"no end within {SECONDS} seconds", "detail": self._last_words(), "kibibytes": 0}
        code = process.wait()
        self.close()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return {"outcome": f"the process died ({name})", "detail": self._last_words(), "kibibytes": 0}

    def _last_words(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]
