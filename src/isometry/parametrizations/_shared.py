"""A weight whose graph several losses may go back through, each on its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Shared(torch.autograd.Function):
    """The weight that `compute` makes of coordinates, as one node of a graph.

    Whoever reads a plain weight twice gets two graphs with only the weight in common,
    and may call `backward` on one and then on the other. The graph that makes ours is
    apart from both: the first pass through it frees it, and another makes it anew.
    `unchanged` tells whether the same weight would come out.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[Tensor], Tensor],
        unchanged: Callable[[], bool],
        X: Tensor,
    ) -> Tensor:
        leaf = X.detach().requires_grad_()
        with torch.enable_grad():
            weight = compute(leaf)
        ctx.compute, ctx.unchanged, ctx.X = compute, unchanged, X
        # a list, for of two threads only one can take what is in it
        ctx.once = [(leaf, weight)]
        ctx.set_materialize_grads(False)
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        if G is None:
            return None, None, None
        again = torch.is_grad_enabled()
        leaf, weight = _made_anew(ctx) if again else _taken(ctx) or _made_anew(ctx)
        (g,) = torch.autograd.grad(weight, leaf, G, create_graph=again)
        return None, None, g


def _taken(ctx: Any) -> tuple[Tensor, Tensor] | None:
    """The graph of the forward pass, for the first who asks."""
    try:
        return ctx.once.pop()
    except IndexError:
        return None


def _made_anew(ctx: Any) -> tuple[Tensor, Tensor]:
    """Coordinates and the weight that they make, if they are still what they were."""
    if not ctx.unchanged():
        raise RuntimeError(
            "a constrained weight must not change between two backward passes through "
            "one graph; an optimizer, an assignment or a write to its coordinates has "
            "changed it. Call `backward` on all losses before the step."
        )
    with torch.enable_grad():
        # an alias, for the cotangent may depend on the coordinates too: a derivative
        # with respect to `X` itself would go on through whatever lies upstream
        X = ctx.X.view_as(ctx.X)
        return X, ctx.compute(X)
