"""The functions that constrain a weight: `orthogonal`, `unitary`, `constrain`."""

from typing import Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor

from isometry._declare import name_and_manifold
from isometry._torch import outside_graphs
from isometry._typing import Layer
from isometry.groups import SO, AbstractManifold, MapLike, O, Stiefel, U
from isometry.parametrizations._initial import Init
from isometry.parametrizations._install import Options, install
from isometry.parametrizations._layout import layout_of, matrix_layout
from isometry.parametrizations._target import target_of

# values of `orthogonal_map` that mean the exponential here, as they do for the square
# weights of torch's `orthogonal`
_EXP_IN_TORCH = (None, "matrix_exp")


@outside_graphs
def orthogonal(
    module: Layer,
    name: str = "weight",
    orthogonal_map: MapLike | None = None,
    *,
    retraction: MapLike | None = None,
    blocks: int = 1,
    use_trivialization: bool = True,
    init: Init = None,
    generator: torch.Generator | None = None,
    det: Literal[1] | None = None,
    rebase_every: int | None = None,
    rebase_radius: float | None = None,
) -> Layer:
    r"""Make a weight orthogonal (unitary, if complex), now and under any optimizer.

    $$ W = B\,\phi(A(X)), \qquad W^H W = I \quad (W W^H = I \text{ if wide}), $$

    where the free coordinates $X$ are now the parameter, $A(X)$ is a skew matrix made
    from them, $\phi$ is a map such as the exponential, and the base $B$ is a point
    around which the weight is parametrized. A tall weight is $W = \phi(A(X))\,B$ with a
    tall $B$, and a wide weight is the transpose of a tall one. You can call this
    function in place of `torch.nn.utils.parametrizations.orthogonal`, with these
    differences:

    - The weight starts at the orthogonal matrix nearest to its old value (torch: at a
      QR factor).
    - Assigning a matrix that is not orthogonal raises (torch: projects it).
    - `orthogonal_map=None` means the exponential, for rectangular weights too (torch:
      "householder" if they are real).
    - The kernel of a convolution is one matrix (torch: many small ones).
    - With `use_trivialization=False`, a weight that the map cannot reach raises (torch:
      replaces it).

    `module.weight = Q` works for every orthogonal `Q`, with any eigenvalues and, unless
    `det` is 1, with either sign of the determinant: the base $B$ moves to $Q$. With
    `use_trivialization=False` the base is the identity, and $Q$ must have coordinates
    around it. In that case exp accepts every square $Q$ (if real, of determinant $+1$)
    and every tall $Q$ within the injectivity radius; the Cayley map accepts only
    square $Q$ without the eigenvalue $-1$. Householder reflections have no base in
    either case, and accept every $Q$ whose determinant fits `det`.

    Some layers stack several matrices in one parameter. `blocks` makes each of them
    orthogonal: 3 for queries, keys and values in the `in_proj_weight` of
    `nn.MultiheadAttention`, 4 for the gates in `weight_hh_l0` of `nn.LSTM`, 3 for
    `nn.GRU`. The kernel of a convolution is one matrix here, `(out, in * kh * kw)`, or
    `(in, out * kh * kw)` if transposed. This matrix is orthogonal, which does not make
    the convolution an orthogonal operator on images. A grouped convolution has one such
    matrix for each group. In a depthwise convolution each filter has norm 1. Other
    weights with more than two axes are batches of matrices.

    A weight without full rank has more than one nearest orthogonal matrix, and starts
    at one of them; a weight of zeros starts at the identity. `reset_parameters()`
    starts again: the layer initializes the weight in its usual way, and then the weight
    becomes the nearest orthogonal matrix, or the point that `init` names. If other
    modules share the parameter, it stays tied: they all compute with the orthogonal
    weight.

    Args:
        module: the module that owns the weight: a layer, or a module of your own.
        name: name of the parameter.
        orthogonal_map: the map $\phi$, under torch's name for this argument. Pass this
            or `retraction`, not both. One of "exp" (also called "matrix_exp" or None),
            "cayley", "pade-m" with a degree m, and "householder"; or a map object of
            `isometry.groups` or of your own.
        retraction: the map $\phi$ too, under its name everywhere else in isometry. It
            takes the same values, even "householder", which is not a retraction: its
            products of reflections have no base from which they could move.
        blocks: number of orthogonal matrices of equal size that are stacked along the
            rows of the weight.
        use_trivialization: whether there is a base that can move.
        init: None starts at the orthogonal matrix nearest to the weight, "haar" at a
            uniformly random one, "identity" at the identity. "henaff" rotates the
            planes (1, 2), (3, 4), ... by angles uniform in $(-\pi, \pi)$, and "cayley"
            by $-\tan(u/2)$ with $u$ uniform in $(0, \pi/2)$, as [LM19] does. In a
            complex matrix, the angles are the phases on the diagonal. A function
            (shape, generator) -> angles draws other angles: n // 2 of them for a real
            matrix whose longer side is n, and n for a complex matrix.
        generator: source of the random numbers of `init`.
        det: 1 to start with determinant +1 and keep it (square and real weights only).
        rebase_every: move the base to the weight after this many steps of a torch
            optimizer; see `rebase`.
        rebase_radius: move the base after a step if an estimate of the largest angle of
            $A$ is above this radius, which must be below $\pi$. For a square weight,
            the estimate costs about 20 matrix-vector products.

    Returns:
        The module.

    Raises:
        TypeError: if `module` is not a module, or the weight is not a parameter, is
            lazy, or has an unsupported dtype.
        ValueError: if the weight has fewer than two axes, is constrained already or is
            not finite, or if an option does not fit. The module is left as it was.

    References:
        [LM19]; [Lez19] for a moving base; [HSL16] for the initialization "henaff" and
        [HWY18] for "cayley".
    """
    argument, phi = "orthogonal_map", orthogonal_map
    if retraction is not None:
        if orthogonal_map is not None:
            raise ValueError(
                f"`orthogonal_map` must be left out if `retraction` is passed, because "
                f"both name the map; got {orthogonal_map!r} and {retraction!r}."
            )
        argument, phi = "retraction", retraction
    phi = "exp" if phi in _EXP_IN_TORCH else phi
    target = target_of(module, name)
    options = Options(use_trivialization, init, generator, rebase_every, rebase_radius)
    layout = matrix_layout(module, name, target.weight, blocks)
    manifold = _manifold(layout.points(target.weight), det)
    return install(target, manifold, layout, phi, options, argument=argument)


@outside_graphs
def unitary(
    module: Layer,
    name: str = "weight",
    retraction: MapLike = "exp",
    *,
    blocks: int = 1,
    use_trivialization: bool = True,
    init: Init = None,
    generator: torch.Generator | None = None,
    rebase_every: int | None = None,
    rebase_radius: float | None = None,
) -> Layer:
    r"""Make a complex weight unitary, now and under any optimizer.

    This is `orthogonal` for complex weights; a real weight raises. A square weight is

    $$ W = B\,\phi(A(X)), \qquad W^H W = I, \quad A^H = -A. $$

    Args:
        module: the module that owns the weight.
        name: name of the parameter, which must have a complex dtype.
        retraction: the map $\phi$: "exp", "cayley", "pade-m" with a degree m,
            "householder", or a map object, as in `orthogonal`.
        blocks: number of stacked matrices, as in `orthogonal`.
        use_trivialization: whether there is a base that can move.
        init: where the weight starts, as in `orthogonal`.
        generator: source of the random numbers of `init`.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle exceeds this
            radius, as in `orthogonal`.

    Returns:
        The module.

    Raises:
        TypeError: if the weight is not a complex parameter.
        ValueError: as in `orthogonal`.

    References:
        [LM19].
    """
    target = target_of(module, name)
    if not target.weight.is_complex():
        raise TypeError(
            f"`{name}` must have a complex dtype to be unitary; got "
            f"{target.weight.dtype}. Use `isometry.orthogonal` for a real weight."
        )
    options = Options(use_trivialization, init, generator, rebase_every, rebase_radius)
    layout = matrix_layout(module, name, target.weight, blocks)
    manifold = _manifold(layout.points(target.weight), det=None)
    return install(target, manifold, layout, retraction, options)


class _Keywords(TypedDict, total=False):
    """The keyword-only arguments of `constrain`, for type checkers."""

    blocks: int
    use_trivialization: bool
    init: Init
    generator: torch.Generator | None
    rebase_every: int | None
    rebase_radius: float | None


class _KeywordsAndMap(_Keywords, total=False):
    """`_Keywords` with the map, for calls in which the map is passed by keyword."""

    retraction: MapLike


# These overloads make a type checker refuse a call without a manifold.
@overload
def constrain(
    module: Layer, name: AbstractManifold, **options: Unpack[_KeywordsAndMap]
) -> Layer: ...
@overload
def constrain(
    module: Layer,
    name: str = "weight",
    *,
    manifold: AbstractManifold,
    **options: Unpack[_KeywordsAndMap],
) -> Layer: ...
@overload
def constrain(
    module: Layer,
    name: str,
    manifold: AbstractManifold,
    retraction: MapLike = "exp",
    **options: Unpack[_Keywords],
) -> Layer: ...


@outside_graphs
def constrain(
    module: Layer,
    name: str | AbstractManifold = "weight",
    manifold: AbstractManifold | None = None,
    retraction: MapLike = "exp",
    *,
    blocks: int = 1,
    use_trivialization: bool = True,
    init: Init = None,
    generator: torch.Generator | None = None,
    rebase_every: int | None = None,
    rebase_radius: float | None = None,
) -> Layer:
    r"""Constrain a weight to a manifold of `isometry.groups`, or to one of your own.

    The weight $W$ is computed from free coordinates $X$: the retraction $\phi$ moves a
    base point $B$ along them. In a group, $W = B\,\phi(A(X))$, where $A(X)$ is the
    element of the Lie algebra with the coordinates $X$.

    Leading axes of the weight are batch axes: every row of an embedding can be a point
    of `Sphere`, and every matrix of a stack a point of `SU`. The weight starts at the
    point nearest to its current value, or where `init` says. Many points are equally
    near to a vector or matrix of zeros; such a weight starts at the origin, which is
    the identity matrix, or $(1, 0, \ldots, 0)$ on a sphere. An embedding with a
    `padding_idx` is refused, because its row of zeros must stay zero. A wide weight
    fits a Stiefel manifold when its transpose does.

    Args:
        module: the module that owns the weight.
        name: name of the parameter. `constrain(module, manifold)` constrains
            "weight".
        manifold: the manifold to which the weight is constrained.
        retraction: the map $\phi$, which need not be a retraction: "exp", or "cayley",
            "pade-m" or "householder" where the manifold has them; or a map object of
            `isometry.groups` or of your own.
        blocks: number of stacked matrices, as in `orthogonal`.
        use_trivialization: whether there is a base that can move, as in `orthogonal`.
        init: where the weight starts, as in `orthogonal`.
        generator: source of the random numbers of `init`.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle exceeds this
            radius, as in `orthogonal`.

    Returns:
        The module.

    Raises:
        TypeError: if the weight is not a parameter, `manifold` is not a manifold, or
            one of the two is real and the other is complex.
        ValueError: if the shape does not fit, the weight is constrained already or not
            finite, an option does not fit, or the weight has no nearest point on a
            manifold of your own. The module is left as it was.

    References:
        [LM19]; [Lez19] for a moving base.
    """
    name, manifold = name_and_manifold(name, manifold, function="constrain")
    target = target_of(module, name)
    weight = target.weight
    layout = layout_of(module, name, weight, manifold, blocks)
    manifold.check_tensor(layout.points(weight), name=name)
    options = Options(use_trivialization, init, generator, rebase_every, rebase_radius)
    return install(target, manifold, layout, retraction, options)


def _manifold(points: Tensor, det: Literal[1] | None) -> AbstractManifold:
    """The manifold of orthogonal matrices with the shape and dtype of `points`."""
    n, k = points.shape[-2:]
    if det is not None and (det != 1 or n != k or points.is_complex()):
        raise ValueError(
            f"`det` must be None, or 1 for a square real weight; got {det!r} for "
            f"{n} x {k}, {points.dtype}. Complex matrices of determinant 1 are "
            f"`groups.SU`, for `isometry.constrain`."
        )
    if n > k:
        return Stiefel(n, k, is_complex=points.is_complex())
    if points.is_complex():
        return U(n)
    return O(n) if det is None else SO(n)
