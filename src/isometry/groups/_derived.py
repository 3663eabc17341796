"""The basis of a Lie algebra, and the logarithm of a group, derived from `algebra`."""

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isometry._checks import check_has_numbers
from isometry._orthonormal import newton_schulz
from isometry.groups._ambient import ambient_basis, arrays, fixed_gaussian, flat
from isometry.linalg import expm_skew, logm_unitary
from isometry.linalg._expm.autograd import frechet
from isometry.linalg._implicit import Implicit, in_front
from isometry.linalg._logm import Dlogm, Logm

if TYPE_CHECKING:
    from isometry.groups._group import AbstractGroup

# `_search_from_many` draws `_STARTS` random elements of the algebra. For each matrix in
# its argument `Q`, it starts Newton's method from the known approximation in `A`, and
# from the `_FOLLOWED` random elements whose exponentials are closest to the matrix.
# Each run has at most `_NEWTON_STEPS` steps.
_STARTS = 128
_FOLLOWED = 4
_NEWTON_STEPS = 12

# in `_independent`, singular values up to this number count as zero
_ZERO = 1e-6


@functools.lru_cache(maxsize=64)
def basis(group: "AbstractGroup") -> tuple[Tensor, Tensor]:
    """Orthonormal basis of the Lie algebra, and free coordinates of the basis elements.

    Both results are matrices with one row for each basis element. In the first matrix,
    the row is the element, flattened by `flat`. In the second matrix, the row is the
    flattened `X` of smallest norm for which `group.algebra(X)` is the element. Both
    matrices are in double precision, and are cached for the 64 groups used last.
    """
    # Later callers get the cached basis too, and their default device or autograd mode
    # may differ. So the basis must not depend on either.
    with torch.device("cpu"), torch.inference_mode(mode=False), torch.no_grad():
        A = group.algebra(ambient_basis(group))
        _check_skew(group, A)
        # `algebra` is linear: if c is flat(X), then c @ flat(A) is flat(algebra(X))
        U, s, Vh = torch.linalg.svd(flat(A, group), full_matrices=False)
        rank = int((s > 1e-10 * s.max()).sum()) if A.numel() else 0
        return Vh[:rank], (U[:, :rank] / s[:rank]).mT


def _check_skew(group: "AbstractGroup", A: Tensor) -> None:
    """Raise unless the matrices `A` in the algebra of the group are skew."""
    defect = float((A + A.mH).abs().max()) if A.numel() else 0.0
    # The condition is written so that NaN fails. For the groups in tests/groups, the
    # defect is at most 2e-16.
    if not defect <= 1e-12:
        raise ValueError(
            f"`algebra` of {group} must be skew, A^H = -A; got an entry {defect:.1e} "
            f"in A + A^H. Only compact groups can be used; SE(3), say, is not compact."
        )


def derived_log(group: "AbstractGroup", Q: Tensor) -> Tensor:
    r"""An element $A$ of the Lie algebra with $\exp A = Q$, for a unitary `Q`.

    $A$ is the principal logarithm if that is in the algebra. In a representation of
    high weight it may be outside. For example, a rotation by $\theta \le \pi$ in SO(3)
    acts on traceless symmetric matrices with angles of up to $2\theta$, which may
    exceed $\pi$. Where the principal logarithm is outside, Newton's method finds $A$.
    Its first start is the projection of the principal logarithm onto the algebra. If
    Newton's method fails, it starts again from results of `torus_log`, and then from
    random elements. If `Q` is not in the group, $\exp A$ is a point of the group that
    Newton's method finds close to `Q`.
    """
    check_has_numbers(Q, name="Q")
    A = group.algebra_projection(logm_unitary(Q))
    with torch.no_grad():
        gap = torch.linalg.matrix_norm(expm_skew(A) - Q)
        # This bound is at most half of the group's `tolerance`. NaN is not above the
        # bound, so `_search` never gets NaN.
        is_missed = gap > 20 * max(group.size, 1) * torch.finfo(Q.dtype).eps
        if not is_missed.any():
            return A
        logs = _search(group, Q[is_missed], A[is_missed]).to(A)
    logs = _InAlgebra.apply(Q[is_missed], _units(group, like=A), logs)
    return A.masked_scatter(is_missed[..., None, None], logs)


def with_derivative(Q: Tensor, A: Tensor) -> Tensor:
    r"""A known logarithm `A` of a unitary `Q`, as a differentiable function of `Q`.

    `A` need not be the principal logarithm. The derivative is given by the same formula
    as for `logm_unitary`, because this formula follows from $\exp A = Q$ alone.

    Args:
        Q: unitary.
        A: a skew matrix with $\exp A = Q$, computed in any way.
    """
    return _Known.apply(Q, A.detach())


class _Known(Logm):
    """A logarithm whose value is known: this function only adds the derivative."""

    @staticmethod
    def forward(_Q: Tensor, A: Tensor) -> Tensor:
        return A.clone()


class _InAlgebra(Implicit):
    r"""A known element `A` of the algebra, with its derivatives as a function of `Q`.

    The function is defined by the condition that $\log(e^{-A} Q)$ is normal to the
    algebra. If `Q` is in the group, `A` is a logarithm of `Q`; otherwise $e^A$ is a
    point of the group close to `Q`. The derivative of $\exp$ is inverted only within
    the algebra, because on the space of all skew matrices it may be singular. For
    example, a quarter turn in SO(3), as a map of the traceless symmetric matrices, has
    the angles $\pi$ and $-\pi$, which differ by $2 \pi$.
    """

    @staticmethod
    def forward(_Q: Tensor, _units: Tensor, A: Tensor) -> Tensor:
        return A.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        Q, units, A = ctx.saved_tensors
        J, N = _linearization(Q, A, units)
        c = _components(units, grad_outputs[0])
        c = torch.linalg.solve(J.mT, c[..., None])[..., 0]
        return Q @ Dlogm.apply(-N, _combination(c, units)), None, None

    @staticmethod
    def jvp(ctx: Any, dQ: Tensor, *_: Any) -> Tensor:
        Q, units, A = ctx.saved_tensors
        J, N = _linearization(Q, A, units)
        c = _components(units, Dlogm.apply(N, Q.mH @ dQ))
        return _combination(torch.linalg.solve(J, c[..., None])[..., 0], units)

    @classmethod
    def vmap(cls, info: Any, in_dims: Any, *inputs: Tensor) -> tuple[Tensor, int]:
        """Map over `Q` and `A`; all elements of the batch share `units`."""
        Q, A = in_front(info, in_dims[::2], inputs[::2])
        return cls.apply(Q, inputs[1], A), 0


def _linearization(Q: Tensor, A: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    r"""The matrix of $-dN/dA$ in the basis `units`, and $N = \log(e^{-A} Q)$."""
    D = newton_schulz(expm_skew(A).mH @ Q)
    N = logm_unitary(D)
    D = D[..., None, :, :]
    # if A moves along U, D = e^-A Q changes by -L D = -D E, with L = e^-A Dexp(A)[U]
    E = D.mH @ _derivatives(A, units) @ D
    N_per_unit = N[..., None, :, :].expand_as(E)
    return _components(units, Dlogm.apply(N_per_unit, E)).mT, N


def _units(group: "AbstractGroup", *, like: Tensor) -> Tensor:
    """Orthonormal basis of the algebra, with the dtype and device of `like`."""
    rows = basis(group)[0].to(device=like.device, dtype=like.dtype.to_real())
    return arrays(rows, group)


def _derivatives(A: Tensor, units: Tensor) -> Tensor:
    r"""$e^{-A} D\exp(A)[U]$ for each $U$ in `units`, stacked along axis -3."""
    pairs = torch.broadcast_tensors(A[..., None, :, :], units)
    Q, L = frechet(*(x.contiguous() for x in pairs))
    return Q.mH @ L


def _components(units: Tensor, X: Tensor) -> Tensor:
    """Coefficients, along the last axis, of the projection of `X` onto the algebra.

    The projection is the linear combination of the orthonormal `units` with these
    coefficients.
    """
    return torch.einsum("aij,...ij->...a", units.conj(), X).real


def _combination(c: Tensor, units: Tensor) -> Tensor:
    """Linear combinations of the `units` with coefficients `c`."""
    return torch.einsum("...a,aij->...ij", c.to(units.dtype), units)


def _search(group: "AbstractGroup", Q: Tensor, A: Tensor) -> Tensor:
    """Logarithms of matrices `(m, n, n)`, by Newton's method from several starts.

    The first start is `A`, and the next ones come from `torus_log`. If all fail, the
    method starts from the best of many random elements of the algebra.
    """
    dtype = torch.promote_types(Q.dtype, torch.float64)
    # two Newton-Schulz steps remove the rounding errors of single precision from Q
    Q = newton_schulz(newton_schulz(Q.to(dtype)))
    units = _units(group, like=Q)
    A = _newton(units, A.to(dtype), Q, steps=4)
    # the larger values of `slack` are for matrices that are near the group, not in it
    for slack in (1e-6, 1e-2, 0.2):
        for i in _far(A, Q).nonzero().flatten().tolist():
            start = torus_log(Q[i], units, slack=slack)
            if start is not None:
                A[i] = _newton(units, start, Q[i], steps=4)
    is_far = _far(A, Q)
    if is_far.any():
        A[is_far] = _search_from_many(units, Q[is_far], A[is_far])
    return A


def _far(A: Tensor, Q: Tensor) -> Tensor:
    # True for each matrix that needs another start because exp A is far from Q. Once
    # Newton's method is closer than 0.3, the logarithm of e^-A Q is usually small and
    # in the algebra, and the method converges quickly. If exp A is farther from Q when
    # the method ends, the method has failed.
    return torch.linalg.matrix_norm(expm_skew(A) - Q) > 0.3


def _search_from_many(units: Tensor, Q: Tensor, A: Tensor) -> Tensor:
    """Logarithms by Newton's method, from `A` and from the best random starts.

    For each matrix in `Q`, the method is run from several starts. Of the elements that
    it ends at, the one whose exponential is closest to the matrix is returned.
    """
    # random elements of the algebra, whose largest angles range from 0 to a full turn
    c = fixed_gaussian(_STARTS, len(units), dtype=torch.float64, seed=1).to(
        units.device
    )
    starts = _combination(c, units)
    # `clamp` avoids 0 / 0 in an algebra of dimension 0, where every norm is 0
    norm = torch.linalg.matrix_norm(starts, 2).clamp(min=torch.finfo(c.dtype).eps)
    radius = 2 * math.pi * torch.linspace(0, 1, _STARTS, device="cpu").to(c)
    starts = starts * (radius / norm)[:, None, None]
    overlap = torch.einsum("sij,mij->ms", expm_skew(starts).conj(), Q).real
    best = overlap.topk(_FOLLOWED, -1).indices
    A = torch.cat([A[:, None], starts[best]], 1)
    Q = Q[:, None].expand_as(A)
    A = _newton(units, A, Q, steps=_NEWTON_STEPS)
    closest = torch.linalg.matrix_norm(expm_skew(A) - Q).argmin(-1)
    return A.take_along_dim(closest[:, None, None, None], 1)[:, 0]


def _newton(units: Tensor, A: Tensor, Q: Tensor, *, steps: int) -> Tensor:
    r"""Result of Newton's method for $\exp A = Q$ in the algebra, started at `A`.

    A step adds to `A` the $W$ in the algebra with
    $e^{-A} D\exp(A)[W] \approx \log(e^{-A} Q)$. If $W$ is longer than 1, it is
    shortened to length 1.
    """
    for _ in range(steps):
        J = _components(units, _derivatives(A, units)).mT
        goal = _components(units, logm_unitary(expm_skew(A).mH @ Q))
        # Where a singular value of J is zero, the exponential has a fold. The step
        # leaves out the direction of that singular value. The length of the step is at
        # most 1, so that it does not go far beyond the fold.
        W = (torch.linalg.pinv(J, rtol=1e-6) @ goal[..., None])[..., 0]
        W = W / torch.linalg.vector_norm(W, dim=-1, keepdim=True).clamp(min=1)
        step = _combination(W, units)
        A = A + step
        # written so that NaN ends the loop
        if not float(step.abs().max()) > 1e-13:
            break
    return A


def torus_log(Q: Tensor, units: Tensor, *, slack: float) -> Tensor | None:
    r"""A short logarithm $A$ of `Q` in the algebra: $\exp A = Q$ up to `slack`.

    Every logarithm of $Q$ commutes with $Q$. The elements of the algebra that commute
    with $Q$ are the null space of $\operatorname{Ad}_Q - 1$. Take a generic element of
    this null space. The elements of the null space that commute with this element form
    the Lie algebra of a torus. If $Q$ is in the identity component of the group, $Q$ is
    the exponential of an element $A$ of this Lie algebra, the matrix that we seek. $Q$
    and all elements of this Lie algebra have common eigenvectors. On eigenvector $j$,
    let element $a$ of a basis have the angle $w_{aj}$, and $Q$ the angle $\theta_j$.
    Then the coefficients $c$ of $A$ in this basis satisfy

    $$ \sum_a c_a w_{aj} = \theta_j + 2 \pi k_j $$

    for integers $k_j$. Choose independent columns $j$ of $w$, as many as $c$ has
    entries. The $k_j$ of these columns determine $c$, and small integers are tried for
    these $k_j$. The result is the shortest $A$ for which the equations of all other
    columns hold too, up to `slack`.

    Args:
        Q: one matrix, `(n, n)`.
        units: orthonormal basis of the algebra, `(d, n, n)`.
        slack: each equation must hold up to less than this number of full turns. In the
            computation of the null spaces, singular values below it count as zero.

    Returns:
        The logarithm; None if none was found, for example because `Q` is not in the
        group, or because the $k_j$ that were tried are too small.
    """
    torus = _torus(Q, units, slack)
    if len(torus) == 0:
        return None
    _, V = torch.linalg.eigh(-1j * _generic(torus))
    D = V.mH @ torch.cat([torus, Q[None]]).to(V.dtype) @ V
    diagonals = D.diagonal(dim1=-2, dim2=-1)
    weights = diagonals[:-1].imag
    theta = diagonals[-1].angle()
    columns = _independent(weights)
    r = len(torus)
    if len(columns) < r:
        return None
    k = theta.new_tensor(list(itertools.product(_windings(r), repeat=r)))
    goal = theta[columns] + 2 * math.pi * k
    c = torch.linalg.solve(weights[:, columns].mT, goal.mT).mT
    turns = (c @ weights - theta) / (2 * math.pi)
    gap = (turns - turns.round()).abs().amax(-1)
    length = torch.where(gap < slack, torch.linalg.vector_norm(c, dim=-1), math.inf)
    best = int(length.argmin())
    if not math.isfinite(float(length[best])):
        return None
    return _combination(c[best], torus)


def _windings(rank: int) -> range:
    """The integers that `torus_log` tries for each $k_j$.

    There are at most $3^9$ combinations.
    """
    if rank <= 6:
        return range(-2, 3)
    if rank <= 9:
        return range(-1, 2)
    return range(1)


def _torus(Q: Tensor, units: Tensor, slack: float) -> Tensor:
    """Orthonormal basis of the Lie algebra of a maximal torus that commutes with Q.

    The torus is maximal in the centralizer of Q.
    """
    changes = Q @ units @ Q.mH - units
    centralizer = _null_space(_components(units, changes), units, slack)
    if len(centralizer) == 0:
        return centralizer
    H = _generic(centralizer)
    brackets = centralizer @ H - H @ centralizer
    return _null_space(_components(units, brackets), centralizer, slack)


def _null_space(images: Tensor, units: Tensor, slack: float) -> Tensor:
    """Orthonormal basis of the combinations of `units` that a linear map takes to zero.

    The rows of `images` are the images of the `units`. `images` must have at least as
    many columns as rows: otherwise the reduced singular value decomposition would omit
    part of the null space.
    """
    U, s, _ = torch.linalg.svd(images, full_matrices=False)
    return _combination(U.mT[s < slack], units)


def _generic(units: Tensor) -> Tensor:
    """A random combination of the `units`, which is in general position."""
    c = fixed_gaussian(len(units), dtype=torch.float64, seed=1)
    return _combination(c.to(units.device), units)


def _independent(weights: Tensor) -> list[int]:
    """Indices of linearly independent columns of `weights`, the shortest first.

    There are as many indices as `weights` has rows, or fewer if the rows are dependent.
    """
    columns: list[int] = []
    for j in torch.linalg.vector_norm(weights, dim=0).argsort().tolist():
        trial = weights[:, [*columns, j]]
        if float(torch.linalg.svdvals(trial)[-1]) > _ZERO:
            columns.append(j)
        if len(columns) == len(weights):
            break
    return columns
