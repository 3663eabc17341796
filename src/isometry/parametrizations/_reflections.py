"""A parametrization of orthonormal columns by products of reflections."""

import torch
from torch import Tensor

from isometry._torch import autocast_off
from isometry.groups import Householder
from isometry.parametrizations._constraint import AbstractConstraint
from isometry.parametrizations._layout import replicated_like, whole


class Reflections(AbstractConstraint[Householder]):
    r"""$X \mapsto H_1 \cdots H_k\, D$: the columns of $X$ define reflections $H_j$.

    $$ H_j = I - 2 \frac{x_j x_j^H}{x_j^H x_j}, \qquad
       D = \operatorname{diag}(d_j\, e^{i \operatorname{Im} x_{jj}}), \quad
       |d_j| = 1. $$

    Here $x_j$ is the $j$-th of the $k$ columns of the lower triangle of $X$; a column
    of zeros stands for $H_j = I$. The weight consists of the first $k$ columns of
    $H_1 \cdots H_k$, times the $k \times k$ matrix $D$. The phases $d$ are a buffer,
    and training does not change them. For a real weight, $D$ is constant, and the
    product of reflections reaches every point in the weight's connected component of
    the manifold. For a complex weight the product does not reach every point, so the
    imaginary parts on the diagonal of $X$ turn the phases. The reflections do not need
    these imaginary parts: a complex multiple of $x_j$ has the same $H_j$.

    The lengths of the columns of a real $X$ do not affect the weight, but they affect
    the gradient. So a learning rate that suits other maps may not suit this one.
    Rounding errors in a checkpoint do no harm: rounded vectors still define
    reflections, and `repair` corrects the phases.

    Args:
        manifold: O, SO, U or Stiefel.
        layout: how the weight is arranged as points of the manifold.
        retraction: the Householder map.
        dtype: dtype of the weight.
        init: where the weight starts, at first and in `reset_parameters`.
        buffer: the initial phases $d$, `(*batch, k)`.
    """

    depends_on = "phase"
    phase: Tensor

    def forward(self, X: Tensor) -> Tensor:
        """The weight with coordinates `X`."""
        with autocast_off(X.device):
            V = self.layout.points(whole(X)).tril()
            phase = whole(self.phase)
            if V.is_complex():
                angle = V.diagonal(dim1=-2, dim2=-1).imag
                phase = phase * torch.polar(torch.ones_like(angle), angle)
            Q = self.retraction.product(V) * phase[..., None, :]
            return replicated_like(self.layout.weight(Q).to(self.dtype), self.map)

    @torch.no_grad()
    def start(self, Q: Tensor) -> Tensor:
        """Set the phases for `Q`, and return the vectors of its reflections."""
        V, phase = self.retraction.vectors(Q)
        self.phase.copy_(phase)
        if V.is_complex():
            # make the diagonal real, because `forward` rotates the phases by its
            # imaginary part
            V = V * V.diagonal(dim1=-2, dim2=-1).sgn().conj()[..., None, :]
        return self.layout.weight(V).contiguous()

    @torch.no_grad()
    def repair(self) -> None:
        """Scale the phases back to modulus 1; a phase of zero becomes 1.

        In an average of several models, the buffer holds means of their phases, and the
        modulus of a mean may be below 1.
        """
        d = self.phase
        if d.is_meta or type(d) is not Tensor:
            return
        unit = torch.where(d == 0, 1, torch.sgn(d))
        bound = 4 * torch.finfo(d.dtype).eps
        if bool(((d - unit).abs() > bound).any()):
            d.copy_(unit)

    def is_filled(self, X: Tensor) -> bool:
        """Whether `X` looks filled by `nn.init`, and is not lower triangular.

        Lower triangular coordinates do not count: `start` computes such coordinates,
        and they can be orthogonal, for instance if the weight is diagonal.
        """
        V = self.layout.points(X)
        return not torch.equal(V, V.tril()) and super().is_filled(X)
