"""A constrained weight is computed once, without a context manager.

In training once per autograd graph: the weight is handed out again until a backward
pass goes through it. Without gradients once until something changes. What can change
unseen is the coordinates, written to through `.data`; torch's optimizers do that too
(the fused ones), so that a step of any optimizer counts as a change.
"""

import importlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook

from isometry.linalg._policy import transforms

# torch has no public way to ask for hooks on saved tensors
_autograd = importlib.import_module("torch._C._autograd")


@dataclass(frozen=True)
class _Entry:
    """A weight, and all that it depends on."""

    weight: Tensor
    version: int
    inputs: tuple["weakref.ref[Tensor]", ...]
    versions: tuple[int, ...]
    steps: int
    region: "weakref.ref[Any] | None"

    def valid(self, inputs: tuple[Tensor, ...]) -> bool:
        """Whether the weight is what would be computed now."""
        # whoever got the weight may have written to it
        if self.steps != _steps or self.version != self.weight._version:
            return False
        # a loop, not `all`: this is most of what a read costs
        for r, version, t in zip(self.inputs, self.versions, inputs, strict=True):
            if r() is not t or version != t._version:
                return False
        return (self.region and self.region()) is _region()


_PLAIN = (Tensor, nn.Parameter)

# outside of the modules, so that copies and checkpoints do not see it; one entry with a
# graph and one without for each list of coordinates
_entries: "WeakKeyDictionary[nn.Module, dict[bool, _Entry]]" = WeakKeyDictionary()
_steps = 0
_hooks: list[Any] = []


def install_hook() -> None:
    """Let a step of any optimizer count as a change."""
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_count))


def _count(*_: Any) -> None:
    global _steps  # noqa: PLW0603 - a count is what it is
    _steps += 1


def forget(holder: nn.Module) -> None:
    """Compute the weight anew at the next read."""
    _entries.pop(holder, None)


def once(
    holder: nn.Module,
    inputs: tuple[Tensor, ...],
    compute: Callable[[Tensor], Tensor],
) -> Tensor:
    """The weight of `holder`, which `compute` makes of `inputs`: from memory if valid.

    Args:
        holder: the module whose weight it is.
        inputs: the tensors it depends on, the coordinates first.
        compute: makes it of the coordinates.

    Returns:
        The weight; the same tensor as before, if nothing has changed.
    """
    if not _may_remember(inputs):
        return compute(inputs[0])
    graph = torch.is_grad_enabled() and inputs[0].requires_grad
    entry = _entries.get(holder, {}).get(graph)
    if entry is not None and entry.valid(inputs):
        return entry.weight
    region = _region()
    if graph and region is None:
        weight = Shared.apply(compute, *inputs)
    else:
        weight = compute(inputs[0])
    # another thread may have been faster; then this one, which is as good, stays
    _entries.setdefault(holder, {})[graph] = _Entry(
        weight,
        weight._version,
        tuple(map(weakref.ref, inputs)),
        tuple(t._version for t in inputs),
        _steps,
        None if region is None else weakref.ref(region),
    )
    if graph and weight.grad_fn is not None:
        weight.grad_fn.register_prehook(_Consumed(holder))
    return weight


class Shared(torch.autograd.Function):
    """A weight whose graph several losses may go back through, each on its own.

    Whoever reads a plain weight twice gets two graphs with only the weight in common,
    and may call `backward` on one and then on the other. The graph that makes ours is
    apart from both: the first pass through it frees it, and another makes it anew.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Callable[[Tensor], Tensor], *inputs: Tensor
    ) -> Tensor:
        X = inputs[0].detach().requires_grad_()
        with torch.enable_grad():
            weight = compute(X)
        ctx.compute, ctx.inputs, ctx.once = compute, inputs, (X, weight)
        ctx.made = (_steps, *(t._version for t in inputs))
        ctx.set_materialize_grads(False)
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        rest = (None,) * len(ctx.inputs[1:])
        if G is None:
            return None, None, *rest
        again = torch.is_grad_enabled()
        kept, ctx.once = ctx.once, None
        if kept is None or again:
            kept = _made_anew(ctx)
        X, weight = kept
        (g,) = torch.autograd.grad(weight, X, G, create_graph=again)
        return None, g, *rest


def _made_anew(ctx: Any) -> tuple[Tensor, Tensor]:
    """Coordinates and the weight that they make, if they are still what they were."""
    if ctx.made != (_steps, *(t._version for t in ctx.inputs)):
        raise RuntimeError(
            "a constrained weight must not change between two backward passes through "
            "one graph; an optimizer or an assignment has changed it. Call `backward` "
            "on all losses before the step."
        )
    with torch.enable_grad():
        return ctx.inputs[0], ctx.compute(ctx.inputs[0])


class _Consumed:
    """Forgets the weight with a graph, once a backward pass has gone through it."""

    def __init__(self, holder: nn.Module) -> None:
        self.holder = weakref.ref(holder)

    def __call__(self, _gradients: Any) -> None:
        holder = self.holder()
        if holder is not None:
            _entries.get(holder, {}).pop(True, None)


def _may_remember(inputs: tuple[Tensor, ...]) -> bool:
    """Whether a weight read now may be handed out again later."""
    if torch.compiler.is_compiling() or transforms():
        return False
    # inside of a backward pass, where a region of (reentrant) checkpointing runs again
    # and its graph is consumed at once; the other kind has hooks, and is apart by them
    if torch._C._current_graph_task_id() != -1 and _region() is None:
        return False
    # a tangent belongs to its level, an inference tensor has no version
    if forward_ad._current_level >= 0 or torch.is_inference_mode_enabled():
        return False
    for t in inputs:
        # fake and sharded tensors, and other subclasses, have lives of their own
        if type(t) not in _PLAIN or t.is_meta or t.is_inference():
            return False
    return not (
        torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )


def _region() -> Any:
    """The region of activation checkpointing: it and its recomputation are apart.

    Both must save the same tensors, so neither may find a weight that is not its own.
    """
    hooks = _autograd._top_saved_tensors_default_hooks(False)
    return None if hooks is None else hooks[0]
