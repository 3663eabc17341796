"""Shapes as types; `pytest --shapes` checks them with jaxtyping and beartype."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn

# only the tests check shapes, so jaxtyping is optional for users
if TYPE_CHECKING or find_spec("jaxtyping"):
    from jaxtyping import Inexact

    Square = Inexact[Tensor, "*batch n n"]
    Matrix = Inexact[Tensor, "*batch n k"]
    Columns = Inexact[Tensor, "*batch n c"]
    Vector = Inexact[Tensor, "*batch k"]
else:
    Square = Matrix = Columns = Vector = Tensor

# a module that a function changes in place and returns
Layer = TypeVar("Layer", bound=nn.Module)
