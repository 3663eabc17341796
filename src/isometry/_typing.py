"""Shapes as types; `pytest --shapes` executes them (jaxtyping and beartype)."""

from typing import TypeVar

from jaxtyping import Inexact
from torch import Tensor, nn

Square = Inexact[Tensor, "*batch n n"]
Matrix = Inexact[Tensor, "*batch n k"]

# a module that a function changes in place and returns
Layer = TypeVar("Layer", bound=nn.Module)
