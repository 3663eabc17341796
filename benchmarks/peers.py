"""Contenders that `isometry bench` does not have, and a count of matrix products."""

import math

import torch
from torch import Tensor

from isometry._backend import only_torch
from isometry.lab.bench.timing import Call


def scipy_expm(A: Tensor, G: Tensor) -> Call:
    """A function that computes the gradient of exp at A with SciPy, for cotangent G.

    The gradient is the Frechet derivative L(A^H, G). SciPy returns it with exp(A^H).
    """
    import scipy.linalg

    X, Y = A.mH.numpy(), G.numpy()
    return lambda: scipy.linalg.expm_frechet(X, Y)


def bare_products(A: Tensor, count: int) -> Call:
    """A function that computes `count` products of copies of A, and nothing else."""
    slots = [A.reshape(-1, *A.shape[-2:]).clone() for _ in range(6)]
    out = torch.empty_like(slots[0])

    def run() -> None:
        for i in range(count):
            torch.bmm(slots[i % 6], slots[(i + 1) % 6], out=out)

    return run


# torch's products, and the positions of the two factors among their arguments
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
}


def count_products(call: Call, n: int, batch: int = 1) -> float:
    """Work of all matrix products in a call, in units of one product of size n x n.

    For a batch, the unit is one product of the whole batch. Linear combinations, which
    are products with a dimension of at most 4, do not count. The square of a symmetric
    or skew matrix counts as one product.
    """
    # let torch compute all products, because its profiler does not see products in C
    with only_torch():
        call()
        with torch.profiler.profile(record_shapes=True) as profile:
            call()
    work = 0
    for event in profile.events() or ():
        if event.name in _PRODUCTS:
            X, Y = (event.input_shapes[i] for i in _PRODUCTS[event.name])
            if min(X[-2], X[-1], Y[-1]) > 4:
                work += math.prod(X) * Y[-1]
    return work / (batch * n**3)
