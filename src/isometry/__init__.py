"""Orthogonal and unitary constraints for PyTorch.

Names are imported on first use (PEP 562). So `import isometry` does not import torch,
and the command line starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isometry import groups as groups
    from isometry import linalg as linalg
    from isometry import nn as nn
    from isometry import optim as optim
    from isometry import rotations as rotations
    from isometry import testing as testing
    from isometry._backend.memory import release_memory as release_memory
    from isometry._config import show_config as show_config
    from isometry._declare import declare as declare
    from isometry._declare import manifold_of as manifold_of
    from isometry.nn._count import count_parameters as count_parameters
    from isometry.parametrizations._diagnose import Diagnosis as Diagnosis
    from isometry.parametrizations._diagnose import diagnose as diagnose
    from isometry.parametrizations._fold import fold as fold
    from isometry.parametrizations._foreign import load_foreign as load_foreign
    from isometry.parametrizations._param_groups import param_groups as param_groups
    from isometry.parametrizations._rebase import rebase as rebase
    from isometry.parametrizations._register import constrain as constrain
    from isometry.parametrizations._register import orthogonal as orthogonal
    from isometry.parametrizations._register import unitary as unitary

__version__ = "0.1.0"

# public functions and classes, keyed by the module that defines them
_PLACES = {
    "parametrizations._register": ("orthogonal", "unitary", "constrain"),
    "_declare": ("declare", "manifold_of"),
    "parametrizations._fold": ("fold",),
    "parametrizations._rebase": ("rebase",),
    "parametrizations._param_groups": ("param_groups",),
    "parametrizations._diagnose": ("diagnose", "Diagnosis"),
    "parametrizations._foreign": ("load_foreign",),
    "nn._count": ("count_parameters",),
    "_config": ("show_config",),
    "_backend.memory": ("release_memory",),
}
# public modules, also imported on first use
_SUBMODULES = ("groups", "linalg", "nn", "optim", "rotations", "testing")

# Type checkers read the imports above, where `as` means that a name is public. They
# must not see `__getattr__`: a module that defines it seems to have every name.
if not TYPE_CHECKING:
    __all__ = [n for names in (*_PLACES.values(), _SUBMODULES) for n in names]

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return importlib.import_module(f"isometry.{name}")
        for module, names in _PLACES.items():
            if name in names:
                return getattr(importlib.import_module(f"isometry.{module}"), name)
        raise AttributeError(f"module 'isometry' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
