"""Exponential of skew matrices: value, derivative and adjoint."""

from typing import Literal

from isometry._checks import check_same_shape, check_square
from isometry._dtypes import PRECISIONS, in_float32_or_wider
from isometry._torch import is_fake, is_wrapper
from isometry._typing import Square
from isometry.linalg._expm import autograd
from isometry.linalg._expm.eigh import expm_eigh
from isometry.linalg._pade import pade


def expm_skew(
    A: Square,
    *,
    norm_bound: float | None = None,
    method: Literal["products", "eigh", "pade"] = "products",
) -> Square:
    r"""Exponential of a skew-symmetric or skew-Hermitian matrix.

    $$ \exp : \mathfrak{so}(n) \to SO(n), \quad \mathfrak{u}(n) \to U(n), \qquad
       \exp A = \sum_{k \ge 0} A^k / k! $$

    The gradient is a skew matrix: it is $(g - g^H)/2$, where $g$ is the gradient in the
    space of all matrices. The derivative is defined along skew directions. A matrix
    that is not skew gives a meaningless result; if in doubt, call `check_skew`.

    The default method uses matrix products only, $\exp A = p(A / 2^s)^{2^s}$. Their
    number depends on the largest angle, which is the spectral norm of $A$. Each row
    begins with the largest angle for which its numbers of products suffice:

    | angle, float32 | angle, float64 | products, value | products, gradient |
    | --- | --- | --- | --- |
    | 0.065 | 0.00045 | 2 | 3 |
    | 0.36 | 0.0125 | 3 | 4 |
    | 1.7 | | 4 | 5 |
    | 3.68 | 0.875 | 4 | 6 |

    Beyond the last row, each doubling of the angle adds a squaring. For the value, each
    squaring costs 1 product. For the gradient, the first squaring costs 2 products, and
    each further one 3. With three squarings or more, the value is orthogonalized at the
    end and after every eighth squaring, by 2 products each time. Finding a bound on the
    angle may cost up to two more products, and device synchronizations; `norm_bound`
    saves both.

    A matrix with NaN or infinity, or with an angle above about 1/eps (where rounding
    `A` alone rotates the result by a radian), gives NaN; the other matrices of the
    batch are not affected. float16 and bfloat16 are computed in float32. For a tensor
    subclass without memory of its own, such as a DTensor, the method "eigh" is used
    instead of the default. It needs no bound, so `norm_bound` then has no effect.

    Args:
        A: skew; any number of batch axes.
        norm_bound: an upper bound on the spectral norm of every matrix in `A`. If the
            bound is too low, the result is inaccurate, without a warning. Only for the
            method "products"; the others do not use a bound.
        method: "products" is described above. "eigh" takes one Hermitian
            eigendecomposition, and its result is orthogonal up to rounding for any
            norm. "pade" is the algorithm of [LM19]: Pade approximants with scaling and
            squaring. The last two are slower.

    Returns:
        The orthogonal or unitary exponential, with the shape and dtype of `A`.

    Raises:
        TypeError: if `A` has an integer dtype.
        ValueError: if `A` is not square, `norm_bound` is negative, not finite or not
            used by the method, or `method` is unknown.

    References:
        [LM19] section 4; [BBCS22] and [Sas18] for polynomials in few products. The
        coefficients and the error analysis are our own: docs/theory/expm_skew.md.
    """
    check_square(A, name="A")
    if norm_bound is not None and not 0 <= norm_bound < float("inf"):
        raise ValueError(
            f"`norm_bound` must be a finite bound on the spectral norm, >= 0; "
            f"got {norm_bound}. Leave it out to have the norm estimated."
        )
    if norm_bound is not None and method in ("eigh", "pade"):
        raise ValueError(
            f"`norm_bound` must be None for the method {method!r}, which does not use "
            f"a bound; got {norm_bound}. Leave it out, or use the method 'products'."
        )
    X = in_float32_or_wider(A)
    if method == "products" and is_wrapper(X) and not is_fake(X):
        # the products write into memory, and a wrapper has no memory of its own
        method = "eigh"
    if method == "products":
        Q = autograd.exponential(X, None if norm_bound is None else float(norm_bound))
    elif method == "eigh":
        Q = expm_eigh(X)
    elif method == "pade":
        Q = pade(X, degree=PRECISIONS[X.real.dtype].pade_degree, squarings="auto")
    else:
        raise ValueError(
            f"`method` must be 'products', 'eigh' or 'pade'; got {method!r}. "
            f"'products' is the fastest."
        )
    return Q.to(A.dtype)


def expm_skew_frechet(A: Square, E: Square) -> tuple[Square, Square]:
    r"""Exponential of a skew matrix and its derivative in one direction.

    $$ L(A, E) = \frac{d}{dt} \exp(A + tE) \Big|_{t=0}
       = \int_0^1 e^{sA} E \, e^{(1-s)A} \, ds $$

    Both results can be differentiated any number of times. Cost: about four times as
    many products as `expm_skew`, and more for small angles.

    Args:
        A: skew; not checked.
        E: direction; any matrix, skew or not.

    Returns:
        `(Q, L)` with `Q = exp(A)` and `L` the derivative of `exp` at `A` along `E`.

    Raises:
        TypeError: if `A` or `E` has an integer dtype.
        ValueError: if `A` is not square, or `E` differs in shape, dtype or device.

    References:
        [Hig08] section 10.2; [AMH09b].
    """
    check_square(A, name="A")
    check_square(E, name="E")
    check_same_shape(A, E, names=("A", "E"))
    Q, L = autograd.frechet(in_float32_or_wider(A), in_float32_or_wider(E))
    return Q.to(A.dtype), L.to(A.dtype)


def expm_skew_adjoint(A: Square, G: Square) -> tuple[Square, Square]:
    r"""Exponential of a skew matrix, and the gradient of a function of the exponential.

    With $G$ the Euclidean gradient of $f$ at $Q = \exp A$,

    $$ \operatorname{grad}(f \circ \exp)(A)
       = Q \, (d\exp)_{-A} \Bigl( \tfrac12 (Q^H G - G^H Q) \Bigr), $$

    the skew matrix whose inner product with a skew $E$ is the derivative of
    $f \circ \exp$ along $E$. [LM19] states this formula with the opposite sign.
    Cost: as much as `expm_skew` and its gradient.

    Args:
        A: skew; not checked.
        G: the gradient of $f$ at $Q$; any matrix.

    Returns:
        `(Q, gradient)`, both with the shape of `A`.

    Raises:
        TypeError: if `A` or `G` has an integer dtype.
        ValueError: if `A` is not square, or `G` differs in shape, dtype or device.

    References:
        [LM19] Proposition 4.1, with its sign corrected.
    """
    check_square(A, name="A")
    check_square(G, name="G")
    check_same_shape(A, G, names=("A", "G"))
    Q, gradient = autograd.value_and_adjoint(
        in_float32_or_wider(A), in_float32_or_wider(G)
    )
    return Q.to(A.dtype), gradient.to(A.dtype)
