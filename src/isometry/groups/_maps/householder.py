"""Products of reflections, as a map."""

from dataclasses import dataclass

import torch
from torch import Tensor

from isometry.groups._maps.abstract import AbstractMap


@dataclass(frozen=True)
class Householder(AbstractMap):
    """Products of Householder reflections, along the columns of the coordinates.

    It has no base, and an optimizer cannot step along it: the lengths of the vectors do
    not matter, and zero is not the coordinate of any point.
    """

    name = "householder"
    steps = False

    def columns(self, X: Tensor) -> Tensor:
        """LAPACK's product of reflections, with the signs of the diagonal of `X`."""
        V = X.tril(-1)
        tau = 2 / (1 + (V * V).sum(-2))
        signs = X.diagonal(dim1=-2, dim2=-1).sign()
        return torch.linalg.householder_product(V, tau) * signs[..., None, :]
