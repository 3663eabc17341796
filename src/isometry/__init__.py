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

# where each public function or class is defined; the other public names are modules
_PLACES = {
    "orthogonal": "isometry.parametrizations._register",
    "unitary": "isometry.parametrizations._register",
    "constrain": "isometry.parametrizations._register",
    "declare": "isometry._declare",
    "manifold_of": "isometry._declare",
    "fold": "isometry.parametrizations._fold",
    "rebase": "isometry.parametrizations._rebase",
    "param_groups": "isometry.parametrizations._param_groups",
    "diagnose": "isometry.parametrizations._diagnose",
    "Diagnosis": "isometry.parametrizations._diagnose",
    "load_foreign": "isometry.parametrizations._foreign",
    "count_parameters": "isometry.nn._count",
    "show_config": "isometry._config",
    "release_memory": "isometry._backend.memory",
}
__all__ = [
    "orthogonal",
    "unitary",
    "constrain",
    "declare",
    "manifold_of",
    "fold",
    "rebase",
    "param_groups",
    "diagnose",
    "Diagnosis",
    "load_foreign",
    "count_parameters",
    "show_config",
    "release_memory",
    "groups",
    "linalg",
    "nn",
    "optim",
    "rotations",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'isometry' has no attribute {name!r}")
    if name not in _PLACES:
        return importlib.import_module(f"isometry.{name}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
