r"""Principal logarithm of orthogonal and unitary matrices, and its derivative.

The eigenvalues of $Q$ are $e^{i\theta}$, with angles $|\theta| \le \pi$. The Hermitian
part $C$ and the skew part $S$ of $Q$ have the eigenvalues $\cos\theta$ and
$i \sin\theta$, with the same eigenvectors. Where no $|\theta|$ is near $\pi$,
$\log Q = S f(C)$ with $f(\cos\theta) = \theta / \sin\theta$. One Hermitian
eigendecomposition of $C$ gives $f(C)$. This works even if the decomposition mixes the
eigenvectors of $\theta$ and $-\theta$, or of angles that are close to each other. The
eigenspaces with $|\theta|$ near $\pi$ are treated separately: the logarithm of $-Q$ is
computed there, and $\pi J$ is added to make up for the minus sign. The eigenvalues of
$J$ are $i$ times the signs of the sines. An angle counts as near $\pi$ if $|\theta|$ is
above a threshold between $\pi / 2$ and $2 \pi / 3$, which is chosen for each matrix.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isometry._checks import check_square
from isometry._dtypes import in_float32_or_wider
from isometry._nan import is_finite, nan_unless
from isometry._operators import needs_operator, opaque
from isometry._orthonormal import identity, unitarity_defect, unitary_bound
from isometry._torch import autocast_off, refuse_nested_forward_mode
from isometry._typing import Square
from isometry.linalg._expm.autograd import frechet
from isometry.linalg._implicit import Implicit
from isometry.linalg._skew import rotation_planes, skew_eigh

# The spectrum is split at the largest gap between the cosines in this interval, so at
# an angle between 90 and 120 degrees. Up to 120 degrees, theta / sin(theta) as a
# function of the cosine has a slope of at most 3, so it hardly magnifies rounding
# errors. For larger angles, pi - theta is used instead of theta.
_WINDOW = (-0.5, 0.0)

# turn(S, W) is a skew unitary J with S = J |S|; see `_quarter_turn`. S is the skew part
# of Q on the span of the orthonormal columns of W.
QuarterTurn = Callable[[Tensor, Tensor], Tensor]


def logm_unitary(Q: Square) -> Square:
    r"""Principal skew logarithm of an orthogonal or unitary matrix.

    With $Q = V \operatorname{diag}(e^{i\theta}) V^H$ and $|\theta_j| \le \pi$,

    $$ A = \log Q = V \operatorname{diag}(i\theta) V^H, \qquad \exp A = Q. $$

    Eigenvalues -1 of a real matrix come in pairs, and each pair is a rotation by $\pi$
    in a plane of the eigenspace; the plane and the direction are arbitrary. The error
    $\lVert \exp(A) - Q \rVert_F$ is 10 to 30 $\sqrt{n}\, \varepsilon$ for every
    spectrum. The error of $A$ is small relative to $A$ if $Q$ is near $I$. If two
    angles differ by $2\pi - \delta$, with a small $\delta$, the error of $A$ may be
    about $1/\delta$ times the error of $\exp A$. `Q` is not projected. A defect
    $\lVert Q^H Q - I \rVert_F$ of up to $10\, n \max(4, \sqrt n)\, \varepsilon$ is
    accepted, and adds to the error of the result; this bound admits what
    `torch.linalg.qr` and `torch.matrix_exp` compute. A matrix with a larger defect is
    refused.

    The gradient is tangent: $g = Q \Gamma$ with $\Gamma$ skew. So
    $\langle g, dQ \rangle$ is correct for tangent $dQ = Q \Omega$, with $\Omega$ skew,
    and zero for normal $dQ$. In forward mode, the normal part of $dQ$ is dropped. In
    both modes, the derivative has a pole where $\theta_j - \theta_k = 2\pi$, and so at
    pairs of eigenvalues -1. Derivatives of any order are available. Forward and reverse
    mode can be nested, but not forward mode in forward mode. A matrix with an entry
    that is not finite has the logarithm NaN.

    Cost: one `eigh`, a second one for the eigenspaces with angles near $\pi$ if there
    are any, and about 5 products; the derivative takes one complex `eigh` and 5
    products. Angles count as near $\pi$ above a threshold between $\pi/2$ and
    $2\pi/3$, which depends on the matrix. This decision and the checks read from the
    device. In a graph of `torch.compile` the logarithm is one operator, and the
    operator raises its errors when the graph runs.

    Args:
        Q: orthogonal with determinant 1, or unitary. float16 and bfloat16 are computed
            in float32.

    Returns:
        The logarithm, with $A^H = -A$ to the last bit.

    Raises:
        NotImplementedError: inside two levels of `torch.func.jvp`.
        TypeError: if `Q` has an integer dtype.
        ValueError: if `Q` is not square or not unitary, or if it is real with
            determinant -1: its logarithms are all complex.
    """
    check_square(Q, name="Q")
    refuse_nested_forward_mode("logm_unitary")
    bound = unitary_bound(Q.shape[-1], Q.dtype)
    X = in_float32_or_wider(Q)
    with autocast_off(Q.device):
        A = _logm_op(X, bound) if needs_operator(X) else Logm.apply(X, bound)
    # a copy, since the derivative needs A, and a caller may write to the result
    return A.to(Q.dtype, copy=True)


class Logm(Implicit):
    """Q -> log Q; the derivative is computed from Q and log Q."""

    @staticmethod
    def forward(Q: Tensor, bound: float) -> Tensor:
        return principal(Q, bound, _quarter_turn)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        Q, A = ctx.saved_tensors
        return _logm_adjoint(Q, A, grad_outputs[0]), None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        Q, A = ctx.saved_tensors
        return Dlogm.apply(A, Q.mH @ grad_inputs[0])


def principal(Q: Tensor, bound: float, turn: QuarterTurn) -> Tensor:
    """The principal logarithm, without a derivative; NaN where `Q` is not finite."""
    n = Q.shape[-1]
    # `reshape(-1, n, n)` would be ambiguous for n = 0
    flat = Q.reshape(math.prod(Q.shape[:-2]), n, n)
    finite = is_finite(flat)
    safe = torch.where(finite, flat, identity(Q))
    _check_unitary(safe, bound)
    A = _principal(safe, turn) + nan_unless(finite, like=Q)
    return A.reshape(Q.shape)


def _logm_adjoint(Q: Tensor, A: Tensor, G: Tensor) -> Tensor:
    with autocast_off(Q.device):
        return Q @ Dlogm.apply(-A, G)


_logm_op = opaque(
    "logm_unitary",
    Logm.forward,
    fake=lambda Q, _: Q.new_empty(Q.shape),
    adjoint=_logm_adjoint,
    saves=lambda inputs, A: (inputs[0], A),
)


class Dlogm(Implicit):
    r"""The skew $W(A, E)$ for which $Q^H D\exp(A)[W]$ is the skew part of `E`.

    Here $Q = \exp A$. For a skew `E`, $W = \psi(\operatorname{ad}_A) E$ with $\psi(z) =
    z / (1 - e^{-z})$, and the adjoint of $E \mapsto W(A, E)$ is $W(-A, \cdot)$. The
    derivative of $W$ with respect to `A` follows from the implicit function theorem. It
    contains the second derivative of exp, but no division by a difference of angles.
    """

    @staticmethod
    def forward(A: Tensor, E: Tensor) -> Tensor:
        theta, V, finite = skew_eigh(A)
        gap = theta[..., :, None] - theta[..., None, :]
        # psi(i gap) = i gap / (1 - exp(-i gap)), in a form without cancellation
        Psi = torch.exp(0.5j * gap) / torch.sinc(gap / (2 * math.pi))
        W = V @ (Psi * (V.mH @ E.to(V.dtype) @ V)) @ V.mH
        W = W if A.is_complex() else W.real
        # the Hermitian part of E has added a Hermitian matrix to W, which is dropped
        return torch.where(finite, (W - W.mH) / 2, math.nan)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor]:
        A, W = ctx.saved_tensors
        Y = Dlogm.apply(-A, grad_outputs[0])
        if not ctx.needs_input_grad[0]:
            return None, Y
        pull_back = torch.func.vjp(lambda A: _dexpm(A, W), A)[1]
        return -pull_back(Y)[0], Y

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        A, W = ctx.saved_tensors
        dA, dE = grad_inputs
        if dA is not None:
            dF = _d2expm(A, W, dA)
            dE = -dF if dE is None else dE - dF
        return Dlogm.apply(A, dE)


def _dexpm(A: Tensor, W: Tensor) -> Tensor:
    r"""$Q^H D\exp(A)[W]$ with $Q = \exp A$; it can be differentiated to any order."""
    Q, L = frechet(A, W)
    return Q.mH @ L


def _d2expm(A: Tensor, W: Tensor, dA: Tensor) -> Tensor:
    """The derivative of `_dexpm` with respect to `A`, along `dA`."""
    # The upper right block of exp([[A, E], [0, A]]) is the derivative of exp along E.
    # Applying this twice gives the second derivative. (Nested forward mode would be
    # another way to get it, but gives wrong results in torch 2.13.)
    zero = torch.zeros_like(A)
    doubled = torch.linalg.matrix_exp(_upper(_upper(A, W), _upper(dA, zero)))
    Q, L_W, L_dA, L_both = doubled[..., : A.shape[-1], :].chunk(4, -1)
    return L_dA.mH @ L_W + Q.mH @ L_both


def _upper(A: Tensor, E: Tensor) -> Tensor:
    """The block matrix [[A, E], [0, A]]."""
    top, bottom = torch.cat([A, E], -1), torch.cat([torch.zeros_like(A), A], -1)
    return torch.cat([top, bottom], -2)


def _principal(Q: Tensor, turn: QuarterTurn) -> Tensor:
    """The logarithm of the finite unitary matrices `Q`, of shape (batch, n, n)."""
    S = (Q - Q.mH) / 2
    # the cosines are in ascending order, so the angles nearest to pi come first
    cosines, V = torch.linalg.eigh((Q + Q.mH) / 2)
    sizes = _split(cosines)
    if not Q.is_complex():
        _check_determinant(sizes)
    ratio = _angle_over_sine(cosines.clamp(min=_WINDOW[0]))
    # M is S f(C), where C is the Hermitian part of Q. `ratio` holds the eigenvalues of
    # f(C), with cosines raised to at least -0.5. (For angles near pi, the loop below
    # corrects M.) Rounding mixes the eigenspaces on the two sides of the gap that
    # `_split` finds: in the basis V, it leaves entries of order eps / gap in the block
    # of S that couples the two sides. The skew part of M, (S f(C) + f(C) S) / 2, is
    # still correct to first order in these entries, and only this part is returned.
    M = S @ ((V * ratio[..., None, :]) @ V.mH)
    for s in sizes.unique().tolist():
        if s > 0:
            at = (sizes == s).nonzero()[:, 0]
            W = V[at][..., :s]
            S_far = W.mH @ S[at] @ W
            S_far = (S_far - S_far.mH) / 2
            # On the span of W, let J be `turn(S_far, W)`. There the logarithm of Q is
            # log(-Q) + pi J = -S f(-C) + pi J, but M holds S f(C). D is the difference.
            scale = _angle_over_sine(-cosines[at, :s]) + ratio[at, :s]
            scale = (scale[..., :, None] + scale[..., None, :]) / 2
            D = math.pi * turn(S_far, W) - scale * S_far
            M[at] += W @ D @ W.mH
    return (M - M.mH) / 2


def _split(cosines: Tensor) -> Tensor:
    """How many of the sorted `cosines` lie below their largest gap in `_WINDOW`."""
    low, high = _WINDOW
    inside = cosines.clamp(low, high)
    # the window may contain no cosine, so its ends count as cosines
    ends = torch.ones_like(cosines.sum(-1, keepdim=True))
    return torch.cat([low * ends, inside, high * ends], -1).diff(dim=-1).argmax(-1)


def _angle_over_sine(cosine: Tensor) -> Tensor:
    # Near a cosine of 1, a rounding error of the cosine causes a large error of theta,
    # but only a small error of theta / sin(theta), a smooth function of the cosine.
    theta = torch.arccos(cosine.clamp(-1, 1))
    return 1 / torch.sinc(theta / math.pi)


def _quarter_turn(S: Tensor, _basis: Tensor) -> Tensor:
    r"""Skew unitary $J$ with $S = J |S|$, for the skew part $S$ of a unitary matrix.

    The eigenvalues of $-iS$ are the sines of the angles. On the vectors that $S$ maps
    to zero, up to rounding, $J$ is not unique, and any choice is correct.

    If $S$ is real, it must have an even number of rows, and $J$ is real, too: a quarter
    turn in each plane of `rotation_planes`.
    """
    sines, V = torch.linalg.eigh(-1j * S)
    if S.is_complex():
        return (V * torch.where(sines < 0, -1j, 1j)[..., None, :]) @ V.mH
    x, y, _ = rotation_planes(V)
    M = x @ y.mT
    return M - M.mT


def _check_unitary(Q: Tensor, bound: float) -> None:
    defect = unitarity_defect(Q)
    # Q is finite, so NaN means that Q^H Q overflowed
    defect = torch.where(defect.isnan(), math.inf, defect)
    bad = defect > bound
    if bad.any():
        raise ValueError(
            f"`Q` must be unitary (orthogonal if real); got ||Q^H Q - I||_F = "
            f"{defect[bad][0]:.1e}, above {bound:.1e}, the bound for its dtype and "
            f"n = {Q.shape[-1]}. Project it first with `isometry.linalg.polar`."
        )


def _check_determinant(sizes: Tensor) -> None:
    # `sizes` is the number of eigenvalues whose cosines are below the gap that `_split`
    # found. These eigenvalues come in conjugate pairs, except for -1. So if their
    # number is odd, -1 occurs an odd number of times, and the determinant is -1.
    bad = sizes % 2 == 1
    if bad.any():
        raise ValueError(
            f"`Q` must have determinant 1 if real; got determinant -1 "
            f"({int(bad.sum())} of {bad.numel()} matrices), so that every logarithm "
            f"is complex. Multiply one column by -1 and store the sign separately, "
            f"or convert `Q` to a complex dtype."
        )
