"""Where a run was made: versions, threads and the machine."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("isometry", "torch", "numpy", "safetensors")


def environment(*, ranks: int) -> dict[str, Any]:
    """What `environment.json` holds.

    Args:
        ranks: processes that train together.

    Returns:
        Names and values.
    """
    import torch

    return {
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "processes": ranks,
        "revision": _revision(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor()


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
