"""Recurrent networks whose weight is a product of factors.

`HouseholderRNN` multiplies reflections. `SpectralRNN` multiplies the factors of a
singular value decomposition, with singular values within a margin of 1.
"""

import math
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from isometry._backend.nonlinearities import Sigma
from isometry._declare import record
from isometry._orthonormal import unit_vectors
from isometry._torch import autocast_off
from isometry.groups import SO
from isometry.linalg import householder
from isometry.nn._cell import FactoryOptions, Nonlinearity, check_choice, is_positive
from isometry.nn.comparators.cell import AbstractComparator, AbstractDenseCell, Draw


class HouseholderCell(AbstractDenseCell):
    """One direction of one layer of `HouseholderRNN`."""

    sigma = Sigma("leaky_relu")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        reflections: int | None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        n = hidden_size
        self.reflections = n if reflections is None else reflections
        if not is_positive(self.reflections) or self.reflections > n:
            raise ValueError(
                f"`reflections` must be an integer between 1 and hidden_size = {n}; "
                f"got {reflections!r}. The default is `hidden_size`."
            )
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n, m = self.hidden_size, self.reflections
        self.weight_ih = draw.input_weight(n, self.input_size)
        self.V = draw.normal(n, m, std=0.01)
        self.redundant = {"V": m * (m - 1) // 2}
        self.bias = draw.zeros(n)
        self.h0 = draw.uniform(n, bound=math.sqrt(3 / (2 * n)))

    def recurrent_matrix(self) -> Tensor:
        """The orthogonal matrix W."""
        return householder(self.V.tril())

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Divide the columns of V by their lengths, except columns of zeros."""
        self.V.copy_(unit_vectors(self.V.tril(), dim=0))


@dataclass(eq=False, repr=False, kw_only=True)
class HouseholderRNN(AbstractComparator):
    r"""An orthogonal recurrent network whose weight is a product of $m$ reflections.

    $$ h_t = \sigma(W h_{t-1} + T x_t + b), \qquad
       W = H_1 \cdots H_m = I - V R^{-1} V^T, \quad
       R = \operatorname{striu}(V^T V) + \tfrac12 \operatorname{diag}(V^T V), $$

    where $H_j$ reflects along column $j$ of $V$ and $\sigma$ is the leaky ReLU with
    slope 0.1. Column $j$ is zero above row $j$, so $V$ has $nm - m(m-1)/2$ free
    numbers. If no column is zero, the determinant of $W$ is $(-1)^m$, so $W$ stays in
    one of the two connected components of $O(n)$, and reaches only a part of it if $m <
    n - 1$. $W$ is computed once for all time steps, at a cost of $O(n^2 m)$. The
    network is called like `torch.nn.RNN`; a cell has one bias vector and a learned
    initial state.

    The lengths of the columns do not affect $W$, but they affect the size of an
    optimizer's step. The authors divide the columns by their lengths after each step,
    as `renormalize_` does.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state, $n$.
        num_layers: number of layers; each reads the outputs of the previous layer.
        reflections: $m$; None means `hidden_size`.

    References:
        [MHRB17].
    """

    reflections: int | None = None

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> HouseholderCell:
        return HouseholderCell(
            inputs, self.hidden_size, Draw(**factory), reflections=self.reflections
        )

    def renormalize_(self) -> None:
        """Divide the vectors of the reflections by their lengths; W does not change.

        A vector of zeros, which stands for the identity, stays zero.
        """
        for cell in self.cells:
            assert isinstance(cell, HouseholderCell)
            cell.renormalize_()


class SpectralCell(AbstractDenseCell):
    """One direction of one layer of `SpectralRNN`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        draw: Draw,
        *,
        margin: float,
        nonlinearity: Nonlinearity,
    ) -> None:
        super().__init__(input_size, hidden_size)
        names = get_args(Nonlinearity)
        check_choice("nonlinearity", nonlinearity, names, "'tanh' is usual.")
        if not 0 <= margin <= 1:
            raise ValueError(
                f"`margin` must be between 0 and 1; got {margin}. With 0 the weight is "
                f"orthogonal."
            )
        self.sigma = Sigma(nonlinearity)
        self.margin = margin
        self.draw_parameters(draw)

    def draw_parameters(self, draw: Draw) -> None:
        """Create all parameters, with their initial values."""
        n = self.hidden_size
        self.weight_ih = draw.input_weight(n, self.input_size)
        U, V = SO(n).random(
            2, generator=draw.generator, dtype=torch.float64, device="cpu"
        )
        self.U = draw.parameter(U)
        self.V = draw.parameter(V)
        record(self, "U", SO(n), guarded=True)
        record(self, "V", SO(n), guarded=True)
        self.p = draw.zeros(n)
        self.bias = draw.zeros(n)

    def singular_values(self) -> Tensor:
        """The singular values of the weight."""
        return 1 + self.margin * (2 * torch.sigmoid(self.p) - 1)

    def recurrent_matrix(self) -> Tensor:
        """The matrix W, whose singular values differ from 1 by at most the margin."""
        with autocast_off(self.U.device):
            return (self.U * self.singular_values()) @ self.V.mT


@dataclass(eq=False, repr=False, kw_only=True)
class SpectralRNN(AbstractComparator):
    r"""A recurrent network whose weight has singular values within a margin $m$ of 1.

    $$ h_t = \sigma(W h_{t-1} + T x_t + b), \qquad
       W = U \operatorname{diag}(s)\, V^T, \quad
       s = 1 + m\,(2 \operatorname{sigmoid}(p) - 1) \in (1 - m, 1 + m). $$

    $U$ and $V$ are declared as points of $SO(n)$: give them to an optimizer of
    `isometry.optim`, in the parameter groups that `isometry.param_groups` makes. With
    any other optimizer they would leave the manifold, so the first step of such an
    optimizer raises. $U$ and $V$ start at random (Haar) points, and $p$ starts at zero.
    With $m = 0$ the weight is orthogonal and $p$ has no effect. The network is called
    like `torch.nn.RNN`; a cell has one bias vector, which is the threshold if the
    nonlinearity is modReLU.

    Options that are not listed here have the same meaning as in `ExpRNN`, except that
    `generator` is the source of all random initial values.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        margin: $m$, from 0 to 1.
        nonlinearity: "tanh", "relu", "modrelu" or "identity".

    References:
        [VTKP17].
    """

    margin: float = 0.1
    nonlinearity: Nonlinearity = "tanh"

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> SpectralCell:
        return SpectralCell(
            inputs,
            self.hidden_size,
            Draw(**factory),
            margin=self.margin,
            nonlinearity=self.nonlinearity,
        )
