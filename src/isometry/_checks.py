"""Checks of the arguments of public functions.

Error messages read "`name` must <condition>; got <value>.", followed by a remedy if
there is one. Among the checks of matrices, only `check_skew` refuses NaN and infinity.
The others accept them, because most functions return NaN for such a matrix.
"""

from numbers import Real

import torch
from torch import Tensor, nn

from isometry._torch import is_fake


def check_is_tensor(X: Tensor, *, name: str) -> None:
    """Raise unless `X` is a tensor."""
    if not isinstance(X, Tensor):
        raise TypeError(
            f"`{name}` must be a torch.Tensor; got {type(X).__name__}. "
            f"Convert it with `torch.as_tensor`."
        )


def check_is_module(module: nn.Module, *, remedy: str) -> None:
    """Raise unless `module` is a `torch.nn.Module`; `remedy` ends the error message."""
    if not isinstance(module, nn.Module):
        kind = type(module).__name__
        raise TypeError(f"`module` must be a torch.nn.Module; got {kind}. {remedy}")


def check_matrix(X: Tensor, *, name: str) -> None:
    """Raise unless `X` is a batch of real or complex matrices."""
    # `check_is_tensor` is called only if it will raise: a call takes time, and every
    # exponential begins with this check
    if not isinstance(X, Tensor):
        check_is_tensor(X, name=name)
    if not (X.is_floating_point() or X.is_complex()):
        raise TypeError(
            f"`{name}` must have a floating-point or complex dtype; got {X.dtype}. "
            f"Convert it with `{name}.to(torch.get_default_dtype())`."
        )
    if X.ndim < 2:
        raise ValueError(
            f"`{name}` must have shape (*batch, n, k); got {tuple(X.shape)}. "
            f"Add the missing axes, for instance with `{name}[..., None]`."
        )


def check_square(A: Tensor, *, name: str) -> None:
    """Raise unless `A` is a batch of square real or complex matrices."""
    check_matrix(A, name=name)
    if A.shape[-1] != A.shape[-2]:
        raise ValueError(
            f"`{name}` must have shape (*batch, n, n); got {tuple(A.shape)}."
        )


def check_tall(X: Tensor, *, name: str) -> None:
    """Raise unless `X` is a batch of tall or square real or complex matrices."""
    check_matrix(X, name=name)
    if X.shape[-2] < X.shape[-1]:
        raise ValueError(
            f"`{name}` must have at least as many rows as columns; "
            f"got {tuple(X.shape)}. For orthonormal rows transpose it and the result."
        )


def check_same_shape(X: Tensor, Y: Tensor, *, names: tuple[str, str]) -> None:
    """Raise unless `X` and `Y` have the same shape, dtype and device."""
    for what in ("shape", "dtype", "device"):
        ours, theirs = getattr(X, what), getattr(Y, what)
        if ours != theirs:
            if what == "shape":
                ours, theirs = tuple(ours), tuple(theirs)
            raise ValueError(
                f"`{names[1]}` must have the {what} of `{names[0]}`, {ours}; "
                f"got {theirs}. Convert or expand one of them first."
            )


def check_has_numbers(X: Tensor, *, name: str) -> None:
    """Raise for meta and fake tensors, and for any tensor inside FakeTensorMode."""
    if is_fake(X):
        device = "on the meta device" if X.is_meta else "in FakeTensorMode"
        raise TypeError(
            f"`{name}` must have numbers, because they decide what is computed; got a "
            f"tensor {device}, which has only a shape. Call this on plain tensors."
        )


def check_flags(**flags: bool) -> None:
    """Raise unless every flag is True or False.

    A value of another type is often an argument in the wrong position.

    Args:
        **flags: the arguments to check, passed by their names.

    Raises:
        TypeError: if a value is not a bool.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(
                f"`{name}` must be True or False; got {value!r}. If this value is "
                f"meant for another option, pass it by name."
            )


def check_not_negative(**numbers: float) -> None:
    """Raise unless every argument is a number that is at least 0.

    Args:
        **numbers: the arguments to check, passed by their names.

    Raises:
        TypeError: if a value is not a number or a tensor.
        ValueError: if a value is negative or NaN.
    """
    for name, value in numbers.items():
        if not isinstance(value, Real | Tensor):
            raise TypeError(
                f"`{name}` must be a number; got {value!r}. Pass a float, or a tensor "
                f"with one element."
            )
        if not value >= 0:
            raise ValueError(f"`{name}` must be at least 0; got {value}.")


def check_size(n: int, *, least: int = 0) -> None:
    """Raise unless `n`, the size of a point, is an integer of at least `least`."""
    if not isinstance(n, int) or n < least:
        raise ValueError(
            f"`n` must be an integer, at least {least}; got {n!r}. "
            f"It is the size of one point, without batch axes."
        )


def check_batch(batch: tuple[int, ...]) -> None:
    """Raise unless `batch` consists of integers that are not negative."""
    if not all(hasattr(size, "__index__") and size >= 0 for size in batch):
        raise TypeError(
            f"`batch` must be sizes, one integer for each axis; got "
            f"{', '.join(map(repr, batch))}. Write `random(2, 3)` for a batch of 2 x 3."
        )


def check_angles(theta: Tensor, rank: int | None) -> None:
    """Raise unless the last axis of `theta` has `rank` angles, or `rank` is None."""
    if rank is not None and tuple(theta.shape[-1:]) != (rank,):
        raise ValueError(
            f"`theta` must have shape (*batch, {rank}), with one angle for each plane "
            f"or phase; got {tuple(theta.shape)}."
        )


def no_torus(manifold: object) -> ValueError:
    """The error for angles that are passed to a manifold without a maximal torus."""
    return ValueError(
        f"`theta` must be the angles of a maximal torus; {manifold} defines no such "
        f"torus. Use `random` or `origin`, or define `rank` and `from_angles` or, "
        f"in a group, `torus`."
    )


def check_joined(here: Tensor, there: Tensor, *, remedy: str) -> None:
    """Raise unless `P` and `Q` are in the same connected component of a manifold.

    Args:
        here: labels `(*batch, m)` that the manifold's method `component` gives `Q`.
        there: labels `(*batch, m)` that the same method gives `P`.
        remedy: end of the error message.
    """
    here, there = torch.broadcast_tensors(here, there)
    # NaN is accepted: where a point contains NaN, its logarithm is NaN
    apart = ((here - there).abs() > 0).any(-1)
    if apart.any():
        raise ValueError(
            f"`P` must be in the component of `Q`; got the component "
            f"{there[apart][0].tolist()} for `P` and {here[apart][0].tolist()} for `Q` "
            f"({int(apart.sum())} of {apart.numel()} pairs), which no geodesic joins. "
            f"{remedy}"
        )


def check_skew(A: Tensor, *, name: str = "A") -> None:
    r"""Raise unless $\lVert A + A^H \rVert_F \le 4 \varepsilon \lVert A \rVert_F$.

    The functions of skew matrices, such as `expm_skew`, do not make this check, because
    it costs a pass over the matrix and a device synchronization. Call `check_skew` when
    in doubt.

    Args:
        A: the matrices to check, `(*batch, n, n)`.
        name: name of the matrices in the error message.

    Raises:
        TypeError: if `A` is not a tensor, has an integer dtype, or has no numbers (on
            the meta device or in FakeTensorMode).
        ValueError: if `A` is not square, or if a matrix is not skew or not finite. If
            the matrices are square, the message states the defect and its bound.
    """
    check_square(A, name=name)
    if A.numel() == 0:
        return
    check_has_numbers(A, name=name)
    # Each matrix is divided by its largest entry, so that no norm overflows. Infinite
    # entries become NaN.
    scale = A.abs().amax((-2, -1), keepdim=True)
    A = A / torch.where(scale == 0, 1, scale)
    scale = scale[..., 0, 0]
    defect = scale * torch.linalg.matrix_norm(A + A.mH)
    # The bound is 4 eps and not 0, because Q^H G - G^H Q must be accepted: its two
    # products are rounded separately. (X - X^H is skew to the last bit.)
    bound = scale * (4 * torch.finfo(A.dtype).eps * torch.linalg.matrix_norm(A))
    # not `defect > bound`, which would accept NaN
    bad = ~(defect <= bound)
    if bad.any():
        index = int(bad.flatten().nonzero()[0])
        raise ValueError(
            f"`{name}` must be skew (A^H = -A); got ||A + A^H||_F = "
            f"{defect.flatten()[index]:.1e}, above {bound.flatten()[index]:.1e} "
            f"for {A.dtype}. Use `isometry.linalg.skew`, or (A - A^H) / 2."
        )
