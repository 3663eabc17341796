"""Forward + backward passes of the exponential, ours and the peers', as callables."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from isometry.linalg import expm_skew

Pass = Callable[[], object]


def ours(A: Tensor, G: Tensor, *, norm_bound: float | None = None) -> Pass:
    """`isometry.linalg.expm_skew`."""
    A = A.clone().requires_grad_()
    return lambda: torch.autograd.grad(expm_skew(A, norm_bound=norm_bound), A, G)


def matrix_exp(A: Tensor, G: Tensor) -> Pass:
    """`torch.linalg.matrix_exp`, which torch's and geotorch's parametrizations use."""
    A = A.clone().requires_grad_()
    return lambda: torch.autograd.grad(torch.linalg.matrix_exp(A), A, G)


def torch_orthogonal(A: Tensor, G: Tensor, orthogonal_map: str) -> Pass:
    """`torch.nn.utils.parametrizations.orthogonal` at the coordinates of A."""
    return _parametrized(
        A,
        G,
        lambda layer: parametrizations.orthogonal(
            layer, orthogonal_map=orthogonal_map, use_trivialization=False
        ),
    )


def geotorch_orthogonal(A: Tensor, G: Tensor) -> Pass:
    """`geotorch.orthogonal`, evaluated at the coordinates of A."""
    import geotorch

    def register(layer: nn.Module) -> nn.Module:
        geotorch.orthogonal(layer, "weight")
        return layer

    return _parametrized(A, G, register)


def _parametrized(
    A: Tensor, G: Tensor, register: Callable[[nn.Module], nn.Module]
) -> Pass:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.linalg.qr(A)[0])
    layer = register(layer)
    original = layer.parametrizations.weight.original
    with torch.no_grad():
        original.copy_(A.tril(-1))
    return lambda: torch.autograd.grad(layer.weight, original, G)


def scipy_expm(A: Tensor, G: Tensor) -> Pass:
    """SciPy's exponential and Frechet derivative: the adjoint is L(A^H, G)."""
    import scipy.linalg

    X, Y = A.mH.numpy(), G.numpy()
    return lambda: scipy.linalg.expm_frechet(X, Y)


def bare_products(A: Tensor, count: int) -> Pass:
    """As many products as a pass has, of different matrices, and nothing else."""
    slots = [A.reshape(-1, *A.shape[-2:]).clone() for _ in range(6)]
    room = torch.empty_like(slots[0])

    def run() -> None:
        for i in range(count):
            torch.bmm(slots[i % 6], slots[(i + 1) % 6], out=room)

    return run


# where the two factors stand among the arguments
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::addmm_": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::baddbmm_": (1, 2),
}


def count_products(call: Pass, n: int, batch: int = 1) -> float:
    """Work of a pass in matrix products, in units of one n x n product (of a batch).

    Linear combinations, which are thin products, are not what is counted.
    """
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
