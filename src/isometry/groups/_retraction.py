"""Retractions at the identity, by name: maps from skew to orthogonal matrices."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isometry.linalg import cayley, expm_skew, pade, polar
from isometry.linalg._cayley import cayley_inverse
from isometry.linalg._logm import logm_unitary
from isometry.linalg._pade import pade_inverse


def is_listed(retraction: object, names: Sequence[str]) -> bool:
    """Whether `names` has the retraction; "pade-m" there stands for every degree m.

    Raises:
        ValueError: if every degree is listed and the name has none.
    """
    kind = retraction.partition("-")[0] if isinstance(retraction, str) else ""
    if kind == "pade" and "pade-m" in names:
        pade_degree(str(retraction))
        return True
    return retraction in names


def pade_degree(retraction: str) -> int:
    """The m of "pade-m"; 1 for "cayley"."""
    if retraction == "cayley":
        return 1
    degree = retraction.removeprefix("pade-")
    if not degree.isdecimal() or int(degree) < 1:
        raise ValueError(
            f"`retraction` must name the degree of Pade's approximant, as in 'pade-3'; "
            f"got {retraction!r}. Degree 1 is the Cayley map."
        )
    return int(degree)


def retraction_at_identity(A: Tensor, retraction: str) -> Tensor:
    r"""Orthogonal or unitary matrix $\phi(A)$, with $\phi(A) = I + A + O(A^2)$.

    exp; cayley, $(I + A/2)(I - A/2)^{-1}$; pade-m, the diagonal Pade approximant of
    exp; polar and qr, the factors of $I + A$.
    """
    if retraction == "exp":
        return expm_skew(A)
    if retraction == "cayley":
        return cayley(A)
    if retraction == "polar":
        return polar(_eye(A) + A)
    if retraction == "qr":
        return q_factor(_eye(A) + A)
    return pade(A, degree=pade_degree(retraction))


def inverse_at_identity(Q: Tensor, retraction: str) -> Tensor:
    r"""The smallest skew A with $\phi(A) = Q$, for exp, cayley and pade-m.

    That of pade-m has no gradient, and says so in a backward pass.
    """
    if retraction == "exp":
        return logm_unitary(Q)
    if retraction == "cayley":
        return cayley_inverse(Q)
    if retraction in ("polar", "qr"):
        raise ValueError(
            f"`retraction` must be exp, cayley or pade-m to find coordinates; got "
            f"{retraction!r}. Let the base be the point: `use_trivialization=True`."
        )
    return _NoGradient.apply(Q, pade_degree(retraction))


class _NoGradient(torch.autograd.Function):
    """The inverse of the Pade approximant, whose backward pass is an error."""

    @staticmethod
    def forward(Q: Tensor, degree: int) -> Tensor:
        return pade_inverse(Q, degree=degree)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        del output
        ctx.degree = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError(
            f"`retraction` must be 'exp' or 'cayley' to differentiate coordinates; got "
            f"'pade-{ctx.degree}'. Its inverse has no gradient here."
        )


def q_factor(X: Tensor) -> Tensor:
    """Q of X = QR with a positive diagonal of R, which makes it unique."""
    Q, R = torch.linalg.qr(X)
    phase = R.diagonal(dim1=-2, dim2=-1).detach().sgn()
    # a zero on the diagonal (X singular) must not make a column vanish
    phase = torch.where(phase == 0, 1, phase)
    return Q * phase[..., None, :]


def _eye(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
