r"""What drives a recurrence: $u_t = T x_t$, of numbers or of class indices."""

import torch
from torch import Tensor

# up to this many classes, a product with their indicators is the fastest adjoint
_FEW_CLASSES = 64


def drive(x: Tensor, kernel: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """Write T x + bias for each row of x; of an index, the column of T it names."""
    if x.is_floating_point():
        if bias is None:
            torch.mm(x, kernel.mT, out=out)
        else:
            torch.addmm(bias, x, kernel.mT, out=out)
        return
    table = kernel.mT.contiguous() if bias is None else kernel.mT + bias
    torch.index_select(table, 0, x, out=out)


def kernel_gradient(x: Tensor, D: Tensor, inputs: int) -> Tensor:
    """The gradient of T, given that at each row of u."""
    if x.is_floating_point():
        return D.mT @ x
    if inputs <= _FEW_CLASSES:
        hot = D.new_zeros(len(x), inputs).scatter_(1, x[:, None], 1.0)
        return D.mT @ hot
    return D.new_zeros(inputs, D.shape[1]).index_add_(0, x, D).mT
