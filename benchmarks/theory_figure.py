"""The figure of docs/theory/groups.md: `python -m benchmarks.theory_figure`."""

import math
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from benchmarks import figures
from isometry.groups import SO, AbstractGroup, U
from isometry.linalg import expm_skew, expm_skew_frechet

PATH = Path(__file__).parents[1] / "docs" / "assets" / "theory.png"
# the exponent of the leading error, the colour, and the marker
RETRACTIONS = {
    "qr": (2, "#999999", "D"),
    "polar": (3, "#cc79a7", "P"),
    "cayley": (3, "#0072b2", "s"),
    "pade-2": (5, "#009e73", "^"),
    "pade-3": (7, "#d55e00", "o"),
}
RAYS: list[tuple[str, AbstractGroup, list[float], str, str]] = [
    ("SO(4), both planes turn alike", SO(4), [1.0, 1.0], "#d55e00", "-"),
    ("U(2), opposite angles", U(2), [1.0, -1.0], "#0072b2", "--"),
    ("SO(3)", SO(3), [1.0], "#009e73", "-"),
    ("U(2), one angle", U(2), [1.0, 0.0], "#cc79a7", "--"),
    ("SO(2), U(1): abelian", SO(2), [1.0], "#999999", "-"),
]


def element(group: AbstractGroup, *, norm: float, seed: int) -> Tensor:
    """A random element of the group's Lie algebra, with the spectral norm `norm`."""
    rng = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if group.is_complex else torch.float64
    X = torch.randn(group.shape, dtype=dtype, generator=rng)
    A = group.algebra_projection(X)
    return A * (norm / torch.linalg.matrix_norm(A, 2))


def retractions(axes: Axes) -> None:
    """Draw the distance between each retraction and exp against the step length."""
    group = SO(8)
    Q = group.random(generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    E = Q @ element(group, norm=1.0, seed=2)
    steps = [2.0**-j for j in range(-1, 9)]
    for name, (order, color, marker) in RETRACTIONS.items():
        errors = [
            float(
                torch.linalg.matrix_norm(
                    group.retract(Q, t * E, name) - group.exp(Q, t * E)
                )
            )
            for t in steps
        ]
        # errors up to 2e-14 are only rounding
        points = [(t, e) for t, e in zip(steps, errors, strict=True) if e > 2e-14]
        axes.loglog(
            *zip(*points, strict=True),
            color=color,
            marker=marker,
            ms=4,
            label=f"{name}: $t^{order}$",
        )
    axes.set_xlabel("angle of the step, $t$")
    axes.set_ylabel("distance from the exponential")
    axes.set_title("retractions of SO(8)", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def singular_values(axes: Axes) -> None:
    """Draw the smallest singular value of the derivative of exp, along rays to pi."""
    for label, group, angles, color, ls in RAYS:
        theta = torch.tensor(angles, dtype=torch.float64)
        A = group.torus(theta)
        units = _basis(group)
        norms = [math.pi * j / 60 for j in range(1, 61)]
        smallest = []
        for norm in norms:
            A_n = (norm * A).to(units).expand_as(units)
            Q, L = expm_skew_frechet(A_n, units)
            J = (units.conj()[:, None] * (Q.mH @ L)[None]).real.sum((-2, -1))
            smallest.append(float(torch.linalg.svdvals(J)[-1]))
        axes.plot(norms, smallest, color=color, ls=ls, label=label)
    axes.axvline(math.pi, color="k", lw=0.7, alpha=0.5)
    axes.set_xticks([0, math.pi / 2, math.pi], ["0", "$\\pi/2$", "$\\pi$"])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("largest angle of $A$")
    axes.set_title("smallest singular value of $(d\\exp)_A$", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def updates(axes: Axes) -> None:
    """Draw the distance between a gradient step through exp and a Riemannian step."""
    etas = [2.0**-j for j in range(0, 14, 2)]
    for group, color, marker in (
        (U(2), "#0072b2", "s"),
        (SO(3), "#009e73", "^"),
        (SO(2), "#999999", "D"),
    ):
        A = element(group, norm=2.0, seed=3)
        G = expm_skew(element(group, norm=1.0, seed=4))
        errors = [float(_difference(group, A, G, eta)) for eta in etas]
        # a logarithmic axis cannot show zero
        errors = [max(e, 1e-17) for e in errors]
        note = "abelian: rounding" if group == SO(2) else "first order"
        name = f"{type(group).__name__}({group.size}): {note}"
        axes.loglog(etas, errors, color=color, marker=marker, ms=4, label=name)
    axes.set_xlabel("learning rate $\\eta$")
    axes.set_ylabel("distance of the two updates")
    axes.set_title("update through exp, and Riemannian", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8, loc="center right")


def _difference(group: AbstractGroup, A: Tensor, G: Tensor, eta: float) -> Tensor:
    Q = expm_skew(A)
    Omega = group.algebra_projection(Q.mH @ G)
    gradient = Q @ expm_skew_frechet(-A, Omega)[1]
    through = expm_skew(A - eta * gradient)
    return torch.linalg.matrix_norm(through - group.exp(Q, -eta * Q @ Omega))


def _basis(group: AbstractGroup) -> Tensor:
    """Orthonormal basis of so(n) or u(n)."""
    n, basis = group.size, []
    for i in range(n):
        for j in range(i):
            E = torch.zeros(n, n, dtype=torch.complex128)
            E[i, j], E[j, i] = 0.5**0.5, -(0.5**0.5)
            basis.append(E)
            if group.is_complex:
                basis.append(1j * E.abs())
        if group.is_complex:
            E = torch.zeros(n, n, dtype=torch.complex128)
            E[i, i] = 1j
            basis.append(E)
    units = torch.stack(basis)
    return units if group.is_complex else units.real.contiguous()


def main(path: Path = PATH) -> None:
    """Draw the three panels."""
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 4.2))
    for draw, axes in zip((retractions, singular_values, updates), panels, strict=True):
        draw(axes)
    figures.save(figure, path)


if __name__ == "__main__":
    main()
