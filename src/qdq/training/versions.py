"""What a result depends on besides its configuration: versions, device, revision."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("qdq", "jax", "jaxlib", "optax", "equinox", "numpy", "scipy", "gymnasium", "mujoco", "minari")


def versions() -> dict[str, str]:
    """Versions of Python and the packages that influence numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def revision() -> str | None:
    """The git revision of this source tree, where it is one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """The device JAX computes on."""
    import os

    import jax

    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "cores": os.cpu_count(),
    }
