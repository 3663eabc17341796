"""Products of Householder reflections, and factorization into reflections."""

import torch

from isometry._checks import check_matrix, check_tall
from isometry._dtypes import in_float32_or_wider
from isometry._orthonormal import identity, over_largest_entry
from isometry._torch import autocast_off
from isometry._typing import Columns, Matrix, Vector


def householder(V: Matrix, *, columns: int | None = None) -> Columns:
    r"""Product of the reflections that the columns of `V` define.

    $$ Q = H_1 H_2 \cdots H_k, \quad
       H_j = I - 2 \frac{v_j v_j^H}{v_j^H v_j}; \qquad
       Q = I - V R^{-1} V^H, \quad
       R = \operatorname{striu}(V^H V) + \tfrac12 \operatorname{diag}(V^H V), $$

    where striu is the part strictly above the diagonal. The compact form on the right
    needs no loop over the reflections. $Q$ is orthogonal or unitary, with determinant
    $(-1)^k$ if no column is zero. The lengths of the columns do not matter, so the
    gradient with respect to a column is orthogonal to that column. Products of $n - 1$
    reflections or more reach all of one connected component of $O(n)$; products of
    fewer reflections reach only a part of a component. A column of zeros stands for
    $H_j = I$, and its gradient is zero. A matrix with an entry that is not finite gives
    NaN; the other matrices of the batch are not affected.

    Cost for $n \times k$: one triangular solve and two products, $O(n k\,(k + n))$; one
    solve and five products in the backward pass. With `columns`, the cost is
    $O(n k\,(k + \text{columns}))$, and no $n \times n$ matrix is formed.

    Args:
        V: the vectors, as columns; there may be more than $n$ columns. float16 and
            bfloat16 are computed in float32.
        columns: how many leading columns of $Q$ to return. None means all of them.

    Returns:
        The first columns of $Q$, which are orthonormal.

    Raises:
        TypeError: if `V` has an integer dtype.
        ValueError: if `V` has fewer than two axes, or `columns` is not between 0 and n.

    References:
        [JLQGZ06] for $R$; [MHRB17] for the parametrization.
    """
    check_matrix(V, name="V")
    n = V.shape[-2]
    columns = n if columns is None else columns
    if not 0 <= columns <= n:
        raise ValueError(
            f"`columns` must be between 0 and n = {n}; got {columns}. "
            f"Leave it out for the whole product."
        )
    X = in_float32_or_wider(V)
    if n > 0:
        # Divide each column by its largest entry, so that its squared length neither
        # overflows nor underflows. Q does not depend on the lengths of the columns.
        X = over_largest_entry(X, dim=-2)
    with autocast_off(X.device):
        half = identity(X) / 2
        # The conjugate is a copy and not a view: Inductor before torch 2.10 cannot add
        # the gradient of a conjugated view to another gradient.
        conjugate = torch.conj_physical(X) if X.is_complex() else X
        squares = (conjugate * X).sum(-2)
        # For a column of zeros, any nonzero square gives H_j = I, while zero would make
        # R singular.
        squares = torch.where(squares == 0, 1, squares)
        # R is computed as the transpose of L, so it is stored by columns. The backward
        # pass solves with the conjugate of R, and Inductor in torch 2.13 gets the
        # strides wrong if a complex R is stored by rows.
        L = (X.mT @ conjugate).tril(-1) + half * squares[..., :, None]
        first = conjugate[..., :columns, :].mT
        Y = torch.linalg.solve_triangular(L.mT, first, upper=True)
        Q = torch.eye(n, columns, dtype=X.dtype, device=X.device) - X @ Y
    return Q.to(V.dtype)


@torch.no_grad()
def reflections(Q: Matrix) -> tuple[Matrix, Vector]:
    r"""Factorization of `Q` into reflections and a phase for each column.

    $$ Q = H_1 \cdots H_k I_{n,k} \operatorname{diag}(\phi), \qquad
       v_j = x_j + \operatorname{sgn}(x_{jj}) \lVert x_j \rVert\, e_j, \quad
       \phi_j = -\operatorname{sgn}(x_{jj}), \quad \operatorname{sgn}(0) = 1, $$

    where $x_j$ is column $j$ of $H_{j-1} \cdots H_1 Q$, with all entries above row $j$
    set to zero. Each $x_j$ is a unit vector, and nothing cancels in $v_j$, whose length
    is between $\sqrt2$ and 2. So every $Q$ with orthonormal columns is a product of $k$
    reflections with phases: `householder(V, columns=k) * phase[..., None, :]` is `Q`,
    up to rounding.

    This is meant for initialization: it loops over the $k$ columns in double precision,
    and has no gradient. Cost: $O(n k^2)$. For a matrix with an entry that is not
    finite, the product of `householder(V)` and the phases is NaN; `V` itself may hold
    infinities instead of NaN. The other matrices of the batch are not affected.

    Args:
        Q: tall or square, with orthonormal columns; this is not checked.

    Returns:
        `(V, phase)`, in the dtype of `Q`. `V` is zero above the diagonal. `phase` has
        modulus one, so it is 1 or -1 if `Q` is real.

    Raises:
        TypeError: if `Q` has an integer dtype.
        ValueError: if `Q` is wide or has fewer than two axes.

    References:
        [MHRB17] for the parametrization.
    """
    check_tall(Q, name="Q")
    X = Q.to(torch.promote_types(Q.dtype, torch.float64))
    vectors, phases = [], []
    for j in range(X.shape[-1]):
        v = torch.cat([torch.zeros_like(X[..., :j, j]), X[..., j:, j]], -1)
        sign = v[..., j].sgn()
        sign = torch.where(sign == 0, 1, sign)
        v[..., j] += sign * torch.linalg.vector_norm(v, dim=-1)
        # H_j X = X - v (2 / v^H v) v^H X
        scale = 2 / torch.linalg.vecdot(v, v)[..., None, None]
        X = X - scale * v[..., None] * (v[..., None, :].conj() @ X)
        vectors.append(v)
        phases.append(-sign)
    if not vectors:
        return Q.clone(), Q.new_zeros(*Q.shape[:-2], 0)
    return torch.stack(vectors, -1).to(Q.dtype), torch.stack(phases, -1).to(Q.dtype)
