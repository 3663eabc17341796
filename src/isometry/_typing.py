"""Shapes as types; `pytest --shapes` executes them (jaxtyping and beartype)."""

from jaxtyping import Inexact
from torch import Tensor

Square = Inexact[Tensor, "*batch n n"]
Matrix = Inexact[Tensor, "*batch n k"]
