"""A real headless Chromium, driven over its DevTools pipe: no driver program, no package, no network."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from qdq.storage import exclusive

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--remote-debugging-pipe"
)
END = bytes([0])  # after every message
PATIENCE = 120  # seconds, on a busy machine
INSTALLATION = (
    ["apt-get", "-qq", "update"],
    ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"],
)
LONGEST = 1800  # seconds for a slow mirror: an installation that is killed half-way leaves apt to be repaired by hand


def find_chromium() -> str:
    """The path of a Chromium, installed first where that is possible; otherwise the test is skipped with the reason."""
    with exclusive(Path(tempfile.gettempdir()) / f"qdq-chromium-{os.getuid()}.lock"):  # one test process installs it
        for name in NAMES:
            if path := shutil.which(name):
                return path
        if os.getuid() != 0 or not shutil.which("apt-get"):
            pytest.skip("Chromium is not installed, and installing it needs root and apt-get")
        for command in INSTALLATION:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            try:
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST, env=environment)
            except (subprocess.SubprocessError, OSError) as error:
                pytest.skip(f"Chromium is not installed, and `{' '.join(command)}` failed: {_reason(error)}")
    return shutil.which("chromium") or pytest.skip("Chromium is not installed, and apt-get did not bring it")


def _reason(error: Exception) -> str:
    """What the failed command said last, else how it ended."""
    said = getattr(error, "stderr", None) or ""
    lines = [line.strip() for line in (said if isinstance(said, str) else said.decode(errors="replace")).splitlines()]
    return next((line for line in reversed(lines) if line), str(error))


class Browser:
    """One page. Everything it logs, throws or requests is kept."""

    def __init__(self, program: str, profile: Path):
        to_browser, self.to = os.pipe()
        self.back, from_browser = os.pipe()
        # The pipe is file 3 (in) and 4 (out) of the browser; the shell puts ours there.
        script = f'exec "$0" {OPTIONS} --user-data-dir="$1" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, program, str(profile)],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        self.pointer = (0.0, 0.0)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser and wait for its answer; what happens meanwhile is kept in `events`."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + END)
        while True:
            answer = self._read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while END not in self.buffer:
            if not select.select([self.back], [], [], PATIENCE)[0]:
                raise RuntimeError("the browser does not answer")
            piece = os.read(self.back, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.buffer += piece
        first, _, self.buffer = self.buffer.partition(END)
        return json.loads(first)

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of that size."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + PATIENCE
        while self.evaluate("location.href + document.readyState") != f"{address}complete":
            assert time.monotonic() < deadline, "the page did not load"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the pointer over an element, to a share of its width and height."""
        left, top, width, height = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({ block: 'center', behavior: 'instant' });"
            "const box = found.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
        )
        self.pointer = left + across * width, top + down * height
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=self.pointer[0], y=self.pointer[1])

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        self.move(selector)
        for kind in ("mousePressed", "mouseReleased"):
            x, y = self.pointer
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def complaints(self) -> list[str]:
        """Errors, exceptions and console messages since the page was opened."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        self.session = ""
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close")
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.back)
