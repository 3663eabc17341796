"""Training: `start` and `resume` make a run, which is a folder.

Nothing here imports torch before it is needed: the command line starts at once.
"""

from typing import TYPE_CHECKING, Any

from isometry.lab.train._config import Config, Training
from isometry.lab.train._folder import RunError

if TYPE_CHECKING:
    from isometry.lab.train._run import Outcome, resume, start

__all__ = ["Config", "Training", "RunError", "Outcome", "start", "resume"]


def __getattr__(name: str) -> Any:
    if name in ("Outcome", "resume", "start"):
        from isometry.lab.train import _run

        return getattr(_run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
