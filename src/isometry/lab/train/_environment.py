"""Where a run was made: versions, threads and the machine."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isometry.lab._machine import machine

PACKAGES = ("isometry", "torch", "numpy", "safetensors")


def environment(*, ranks: int) -> dict[str, Any]:
    """What `environment.json` holds.

    Args:
        ranks: processes that train together.

    Returns:
        Names and values.
    """
    here = machine()
    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": here["processor"],
        "cores": here["cores"],
        "threads": here["threads"],
        "blas": here["blas"],
        "processes": ranks,
        "revision": _revision(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _revision() -> str | None:
    """The commit of the sources, if they are a checkout of ours."""
    source = Path(__file__).resolve().parents[4]
    if not (source / ".git").exists():
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
