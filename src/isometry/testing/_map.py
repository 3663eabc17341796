"""The contract suite for maps from skew to orthogonal or unitary matrices."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch.autograd import gradcheck

from isometry.groups import SO, AbstractManifold, AbstractMap, AbstractRetraction, U
from isometry.groups._maps import RetractionLike
from isometry.linalg import skew
from isometry.testing._case import Case, norm

MatrixFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _Claims:
    """A map, its inverse, and the properties that the map claims to have."""

    phi: MatrixFunction
    inverse: MatrixFunction | None = None
    order: float = 2.0
    is_equivariant: bool = True


def check_map(
    retraction: RetractionLike | MatrixFunction,
    *,
    n: int,
    is_complex: bool = False,
    inverse: MatrixFunction | None = None,
    order: float | None = None,
    is_equivariant: bool | None = None,
    generator: torch.Generator | None = None,
) -> None:
    r"""Raise unless a map from skew to orthogonal or unitary matrices is correct.

    $$ \phi(A)^H \phi(A) = I, \quad \det \phi(A) = 1 \text{ if real}, \qquad
       \phi(tA) = \exp(tA) + O(t^p), \quad \phi(0) = I, \qquad
       \phi(V A V^H) = V \phi(A) V^H, \qquad \phi^{-1}(\phi(A)) = A. $$

    These identities are checked in single and double precision, for norms of $A$ from 0
    to 10 (for the inverse, up to 1) and for batches, including empty ones. A matrix
    that contains NaN or infinity must become NaN, without affecting the other matrices
    of its batch. The order $p$ is checked in double precision only, and so is the
    gradient of $\phi(\operatorname{skew} X)$, at a random $X$ and at 0.

    Args:
        retraction: $\phi$: a map from `isometry.groups`, your own map, the name of a
            map, or a function of tensors `(*batch, n, n)`.
        n: size of the matrices with which to check the map.
        is_complex: whether to check with complex matrices instead of real ones.
        inverse: $\phi^{-1}$; by default the `inverse` of the map, if it has one.
        order: $p$, checked by a fitted slope. It is at least 2 for a retraction, 3 for
            the Cayley map, $2m + 1$ for Pade approximants of degree $m$, and infinity
            for the exponential. By default it is what the map claims, and 2 for a
            function.
        is_equivariant: whether the map commutes with rotations $A \mapsto V A V^H$.
            Matrix functions do; the Q factor of a QR decomposition does not. By default
            it is what the map claims, and True for a function.
        generator: source of random numbers; seeded with 0 by default. The checks are
            run on its device.

    Raises:
        AssertionError: if a contract is broken. The message names the contract and what
            contradicts it, usually an error above its bound.
        ValueError: if `retraction` is a name that is not valid, or a map that is not a
            retraction.
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    group = U(n) if is_complex else SO(n)
    claims = _claims(group, retraction)
    if inverse is not None:
        claims = replace(claims, inverse=inverse)
    if order is not None:
        claims = replace(claims, order=order)
    if is_equivariant is not None:
        claims = replace(claims, is_equivariant=is_equivariant)
    with generator.device:
        for dtype in (torch.float32, torch.float64):
            case = Case(group, dtype.to_complex() if is_complex else dtype, generator)
            for contract in (_values, _batches, _not_finite, _inverse):
                contract(case, claims)
        _order(case, claims)
        _gradient(case, claims)


def _claims(
    group: AbstractManifold, retraction: RetractionLike | MatrixFunction
) -> _Claims:
    """The properties that a map claims; for a plain function, the defaults."""
    if not isinstance(retraction, AbstractMap | str):
        return _Claims(retraction)
    # `resolve` raises if the map is not a retraction
    phi = group.resolve(cast("RetractionLike", retraction))
    has_inverse = type(phi).inverse is not AbstractRetraction.inverse
    inverse = phi.inverse if has_inverse else None
    return _Claims(phi.at_identity, inverse, phi.order, phi.is_equivariant)


def _skew(case: Case, *batch: int, angle: float) -> Tensor:
    """Random skew matrices whose spectral norm is `angle`."""
    eye = case.manifold.origin(*batch, dtype=case.dtype)
    return case.tangent(eye, angle=angle)


def _values(case: Case, claims: _Claims) -> None:
    G, phi = case.manifold, claims.phi
    eye = G.origin(2, dtype=case.dtype)
    case.bound("map", "be the identity at 0", phi(torch.zeros_like(eye)) - eye, 0.0)
    for angle in (1e-8, 1.0, math.pi, 10.0):
        A = _skew(case, 2, angle=angle)
        Q = phi(A)
        if Q.dtype != case.dtype or Q.shape != A.shape:
            facts = f"they are {tuple(Q.shape)} and {Q.dtype}"
            case.fail("map", f"keep the shape {tuple(A.shape)} and the dtype", facts)
        scale = max(1.0, angle)
        case.require("map", "end in the group", G.defect(Q), scale=scale)
        gap = Q - phi(A.to(case.wide.dtype))
        case.zero("map", "agree with double precision", gap, scale=scale)
        if claims.is_equivariant:
            V = case.points()
            turned = V @ A @ V.mH
            gap = phi((turned - turned.mH) / 2) - V @ Q @ V.mH
            case.zero("map", "commute with rotations", gap, scale=scale)


def _order(case: Case, claims: _Claims) -> None:
    G = case.manifold
    A = _skew(case, 3, angle=1.0)

    def error(t: float) -> Tensor:
        return norm(G, claims.phi(t * A) - torch.linalg.matrix_exp(t * A))

    must = f"agree with exp to order {claims.order:g}"
    case.order("map", must, error, claims.order)


def _batches(case: Case, claims: _Claims) -> None:
    A = _skew(case, 2, 3, angle=2.0)
    each = torch.stack([claims.phi(a) for a in A.flatten(0, 1)]).reshape(A.shape)
    case.zero("map", "take batches", claims.phi(A) - each)
    shape = claims.phi(A[:0]).shape
    if shape != A[:0].shape:
        case.fail("map", "take empty batches", f"the shape is {tuple(shape)}")


def _not_finite(case: Case, claims: _Claims) -> None:
    n = case.manifold.shape[-1]
    if n < 2:
        return
    for bad in (math.nan, math.inf):
        A = _skew(case, 3, angle=1.0)
        A[1, 1, 0], A[1, 0, 1] = bad, -bad
        Q = claims.phi(A)
        parts = torch.view_as_real(Q) if Q.is_complex() else Q
        if not parts[1].isnan().all():
            case.fail("map", f"turn a matrix with {bad} into NaN", "it does not")
        must = "keep NaN out of the other matrices of a batch"
        case.zero("map", must, Q[::2] - claims.phi(A[::2]))


def _inverse(case: Case, claims: _Claims) -> None:
    if claims.inverse is None:
        return
    for angle in (0.0, 1e-4, 1.0):
        A = _skew(case, 3, angle=angle)
        Q = claims.phi(A)
        B = claims.inverse(Q)
        case.zero("inverse", "undo the map", B - A)
        case.zero("map", "undo its inverse", claims.phi(B) - Q)


def _gradient(case: Case, claims: _Claims) -> None:
    def f(X: Tensor) -> Tensor:
        return claims.phi(skew(X))

    X = case.manifold.gaussian(2, dtype=case.dtype, generator=case.generator)
    for at in (X, torch.zeros_like(X)):
        if at.numel() and not gradcheck(f, at.requires_grad_(), raise_exception=False):
            case.fail("map", "have the right gradient", "`gradcheck` fails")
