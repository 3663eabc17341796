"""A device without kernels of ours, and a count of how often the host waits for it.

No machine here has an accelerator. But what would make the host wait for one can be
counted without it: each number that the host reads, and each copy to the host.
"""

import os
import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

import isometry
from isometry.groups import (
    AbstractManifold,
    AbstractMap,
    Cayley,
    Exp,
    Householder,
    O,
    Pade,
    Stiefel,
)
from isometry.linalg import _expm_skew, expm_skew, skew
from isometry.linalg._expm import autograd

# operators that read values, or whose results have a shape that depends on values
WAITING = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select"),
    *("_unique2", "unique_dim", "unique_consecutive", "repeat_interleave", "bincount"),
}
# operators whose arguments may lie on several devices: copies and indices
ALLOWED = {"copy_", "_copy_from", "_to_copy", "index", "index_put", "index_put_"}
backend_registration._setup_privateuseone_for_python_backend("remote")
DEVICE = torch.device("remote", 0)

# how often the host waited, by the name of the operator
waits: Counter[str] = Counter()


class Remote(Tensor):
    """A tensor on the device `remote`, whose numbers are on the CPU in `local`."""

    local: Tensor

    @staticmethod
    def __new__(cls, local: Tensor) -> "Remote":  # noqa: PYI034 - a method with `cls` only
        remote = Tensor._make_wrapper_subclass(
            cls,
            local.size(),
            strides=local.stride(),
            storage_offset=local.storage_offset(),
            dtype=local.dtype,
            device=DEVICE,
            requires_grad=local.requires_grad,
        )
        remote.local = local.detach()
        return remote

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        del tensor_contents
        return f"Remote({tuple(self.shape)})"

    def resize_(self, *shape: Any, **options: Any) -> "Remote":
        """Return a new tensor, because the shape of a wrapper cannot change."""
        return Remote(self.local.resize_(*shape, **options))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        device = kwargs.get("device")
        # in inference mode, `to` arrives itself, and not as `_to_copy`
        copies = name in ("_to_copy", "to")
        leaves = copies and device is not None and device.type == "cpu"
        # a copy into a plain tensor brings numbers to the CPU, so the host waits
        arrives = name in ("copy_", "_copy_from") and not isinstance(args[0], Remote)
        if leaves or arrives or name in WAITING:
            waits[name] += 1
        elif name not in ALLOWED:
            _check_same_device(name, (args, kwargs))
        if device is not None:
            kwargs["device"] = "cpu"
        out = kwargs.get("out")
        result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        if leaves or arrives:
            return result
        if out is not None:
            return out
        # an operation in place returns the object that it was called on
        if name.endswith("_") and not name.startswith("_"):
            return args[0]
        return tree_map(_outer, result)


def _check_same_device(name: str, arguments: Any) -> None:
    """Raise as a GPU would, which takes no CPU tensors but single numbers."""
    for X in tree_leaves(arguments):
        if isinstance(X, Tensor) and not isinstance(X, Remote) and X.ndim > 0:
            raise RuntimeError(f"{name} got {tuple(X.shape)} on {X.device}")


def _inner(x: Any) -> Any:
    return x.local if isinstance(x, Remote) else x


def _outer(x: Any) -> Any:
    return Remote(x) if isinstance(x, Tensor) else x


def _factory(name: str) -> None:
    """Register an operator of torch that creates tensors on this device.

    No mode and no subclass of tensors could create them.
    """
    function = getattr(torch.ops.aten, name.partition(".")[0])

    def make(*args: Any, **kwargs: Any) -> Remote:
        return Remote(function(*args, **kwargs | {"device": "cpu", "pin_memory": None}))

    torch.library.impl(f"aten::{name}", "privateuseone")(make)


for _name in ("empty.memory_format", "empty_strided"):
    _factory(_name)


@torch.library.impl("aten::_copy_from", "privateuseone")
def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy a tensor for torch, whose operators call `_copy_from`."""
    del non_blocking
    if not isinstance(target, Remote):
        waits["_copy_from"] += 1
    _inner(target).copy_(_inner(source))
    return target


# A GPU has memory, so isometry must not mistake these tensors for wrappers without it.
for _module in (_expm_skew, autograd):
    vars(_module)["is_wrapper"] = lambda _: False


def report(bounded: bool) -> None:
    """Print whether the angles were bounded, and how often the host waited."""
    sys.stdout.write(f"{bounded} {waits.total()} {dict(waits)}\n")


def skew_matrix(shape: tuple[int, ...], dtype: torch.dtype, norm: float) -> Tensor:
    """Random skew matrices of one norm, on the CPU."""
    A = skew(torch.randn(shape, dtype=dtype))
    return norm * A / torch.linalg.matrix_norm(A, 2, keepdim=True)


def exponentials() -> None:
    """Print how often the host waits for one exponential and its gradient."""
    for dtype in (torch.float32, torch.complex64):
        for norm in (0.0, 0.01, 1.0, 5.0, 50.0):
            for shape in ((1, 64, 64), (5, 40, 40)):
                A = skew_matrix(shape, dtype, norm).nan_to_num()
                for norm_bound in (None, 2 * norm):
                    X = Remote(A).requires_grad_()
                    # the first call copies the coefficients of the scheme to the device
                    expm_skew(X, norm_bound=norm_bound).abs().sum().backward()
                    waits.clear()
                    Q = expm_skew(X, norm_bound=norm_bound)
                    torch.autograd.grad(Q, X, Remote(A))
                    error = torch.dist(_inner(Q), torch.linalg.matrix_exp(A))
                    # measured: 8e-5
                    assert error < 1e-3, (dtype, norm, shape)
                    report(norm_bound is not None)


def training(
    manifold: AbstractManifold, retraction: AbstractMap, bounded: bool
) -> None:
    """Print how often the host waits in a step of a layer."""
    torch.manual_seed(0)
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(2, *manifold.shape))
    isometry.constrain(layer, "weight", manifold, retraction=retraction)
    layer._apply(Remote)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    target = Remote(torch.eye(*manifold.shape).expand(2, *manifold.shape))
    for step in range(6):
        waits.clear()
        optimizer.zero_grad()
        loss = (layer.weight - target).square().sum()
        loss.backward()
        optimizer.step()
        assert _inner(loss).isfinite()
        if step:
            report(bounded)


if __name__ == "__main__":
    exponentials()
    for M in (O(32), Stiefel(32, 24), Stiefel(32, 4)):
        training(M, Exp(), bounded=False)
    for phi in (Exp(6.0), Cayley(), Pade(3), Householder()):
        training(O(32), phi, bounded=True)
    sys.stdout.flush()
    # autograd's thread for this device would crash in an orderly exit
    os._exit(0)
