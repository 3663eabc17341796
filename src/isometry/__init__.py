"""Orthogonal and unitary constraints for PyTorch.

Names are loaded on first use (PEP 562), so that `import isometry` does not import
torch and the command line starts at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry import linalg as linalg

__version__ = "0.1.0"
__all__ = ["linalg"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"isometry.{name}")
    raise AttributeError(f"module 'isometry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
