"""Cache of constrained weights, so that reading a weight twice computes it once.

During training, a weight is computed once per autograd graph: every read returns the
same tensor until its inputs change or a backward pass goes through it. Without
gradients, it is computed once, and again only after a change.

Each `CoordinatesHolder` has a `Memory`. It keeps a weight without a graph and, for each
thread, a weight with a graph. Each is in an `Entry`, which knows from which tensors the
weight was computed, and can tell whether one of them has changed. A read calls the
property that `read_fast` makes. If no graph is needed and the weight without a graph is
still valid, the property returns it. Otherwise it calls `read_weight`, which looks for
a valid entry. If there is none, `_compute` makes one. A weight with a graph is the
output of a single node of autograd, `Shared`. A hook on this node drops the entry when
a backward pass reaches the weight.

To notice every change, a read compares all bytes of the coordinates, of the base (or of
the phases, for products of reflections), and of the weight itself, because a write
through `.data` or a numpy view leaves no other trace. Bytes are compared only on the
CPU: on other devices the host would have to wait for the result. On those devices,
torch's version counters are compared instead. A weight is then remembered only if it
has a graph, and only while the graph or something else refers to it.
"""

import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from isometry._backend.memory import PLAIN, is_block
from isometry._backend.memory import unchanged as unchanged_bytes
from isometry._backend.watch import UnchangedCheck
from isometry._torch import (
    HIDDEN_HOOK,
    autocast_off,
    backward_pass,
    forward_mode,
    in_forward_mode,
    is_fake,
    is_tracing,
    packing_hook,
    parametrizations_are_cached,
    transforms,
    version,
)
from isometry.parametrizations._constraint import AbstractConstraint

# these global names save attribute lookups in `torch`, because weights are read often
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_dynamo_compiling

# the coordinates, and the buffer on which the weight depends, if there is one
Inputs = tuple[Tensor, ...]

# how many steps all optimizers have taken since the first weight was constrained
_steps = 0


def read_fast(module: nn.Module, name: str) -> None:
    """Speed up every read of a weight that torch has parametrized.

    torch's own property looks up the `ParametrizationList` by name and calls it as a
    module, which is slow. In unusual cases, the faster property calls torch's property:
    for example under a compiler, in forward mode, and if the user has added another
    parametrization on top.
    """
    cls: Any = type(module)
    slow = getattr(cls, name)
    # `fget` is looked up here and not inside `read`, because Dynamo in torch 2.7 cannot
    # trace the lookup
    read_slowly = slow.fget

    def read(module: Any) -> Tensor:
        # a compiler must trace the computation, not a remembered weight
        if _is_compiling() or is_tracing():
            return read_slowly(module)
        holder = module._modules["parametrizations"]._modules[name]
        # lookups in `__dict__` are faster than reading attributes of a module
        own = holder.__dict__
        parts, entry = own["_modules"], own["memory"].without_graph
        # leave it to torch's property if the user has added a parametrization on top
        # (with the key "1"), or if forward mode is on
        if "1" in parts or forward_mode["_current_level"] >= 0:
            return read_slowly(module)
        X, constraint = own["_parameters"]["original"], parts["0"]
        if (
            entry is not None
            and X is entry.X
            and constraint is entry.constraint
            and entry.buffers[entry.depends_on] is entry.buffer
            and not (_is_grad_enabled() and X.requires_grad)
            and entry.unchanged()
        ):
            return entry.weight
        if holder.is_initializing or parametrizations_are_cached():
            return read_slowly(module)
        return read_weight(own["memory"], X, constraint)

    setattr(cls, name, property(read, slow.fset))


def read_weight(memory: "Memory", X: Tensor, constraint: AbstractConstraint) -> Tensor:
    """The weight with coordinates `X`, remembered or computed.

    Args:
        memory: holds the weights that were computed before.
        X: the coordinates.
        constraint: computes the weight from the coordinates.
    """
    buffer = constraint._buffers[constraint.depends_on]
    inputs = (X,) if buffer is None else (X, buffer)
    if not _may_remember(inputs):
        return constraint(X)
    with_graph = torch.is_grad_enabled() and X.requires_grad
    # Activation checkpointing runs a region twice, and both runs must save the same
    # tensors. So neither run may use a weight that was computed outside the region. The
    # hook that packs saved tensors identifies the region.
    region = packing_hook() if with_graph else None
    if region is HIDDEN_HOOK:
        return constraint(X)
    if with_graph:
        entry = getattr(memory.threads, "entry", None)
    else:
        entry = memory.without_graph
    weight = None if entry is None else entry.find(inputs, region)
    if weight is not None:
        return weight
    if with_graph and not torch.is_inference_mode_enabled():
        return _compute(memory, inputs, constraint, region)
    # leave inference mode, because autograd cannot use a tensor that was made in it
    with torch.inference_mode(False), torch.set_grad_enabled(with_graph):
        return _compute(memory, inputs, constraint, region)


def _compute(
    memory: "Memory", inputs: Inputs, constraint: AbstractConstraint, region: Any
) -> Tensor:
    """Compute the weight, with a graph if gradients are on, and try to remember it."""
    with_graph = torch.is_grad_enabled()
    unchanged = memory.watch(inputs, constraint)
    if with_graph and region is None:
        weight: Tensor = Shared.apply(constraint, unchanged, inputs[0])
    else:
        weight = constraint(inputs[0])
    entry = Entry(weight, inputs, constraint, unchanged, region)
    if with_graph:
        memory.threads.entry = entry
    elif entry.weight is not None:
        memory.without_graph = entry
    if with_graph and weight.grad_fn is not None:
        weight.grad_fn.register_prehook(_drop_hook(entry))
    return weight


def _drop_hook(entry: "Entry") -> Callable[[Any], None]:
    """A hook that drops an entry when a backward pass goes through its weight."""
    # The entry holds the weight, and the weight holds its graph. If the graph held the
    # entry through this hook, none of them would ever be freed.
    reference = weakref.ref(entry)

    def drop(_gradients: Any) -> None:
        entry = reference()
        if entry is not None:
            entry.drop()

    return drop


class Entry:
    """A remembered weight, with what is needed to tell whether it is still valid.

    Args:
        weight: the weight.
        inputs: the tensors from which the weight was computed.
        constraint: the constraint that computed it.
        inputs_unchanged: returns True as long as `inputs` are unchanged.
        region: the hook of the checkpointed region in which the weight was computed;
            None outside such regions.
    """

    def __init__(
        self,
        weight: Tensor,
        inputs: Inputs,
        constraint: AbstractConstraint,
        inputs_unchanged: UnchangedCheck,
        region: Any,
    ) -> None:
        self.X = inputs[0]
        self.constraint = constraint
        # The buffer on which the weight depends (the base or the phases), and where it
        # is: under the key `depends_on` in the dictionary `buffers`. Reading this
        # dictionary is faster than reading an attribute of the constraint.
        self.buffer = inputs[1] if len(inputs) > 1 else None
        self.buffers: dict[str, Tensor | None] = constraint._buffers
        self.depends_on = constraint.depends_on
        self.region = None if region is None else weakref.ref(region)
        self._versions = [*map(version, (weight, *inputs))]
        self._reference: Callable[[], Tensor | None] = TensorWeakRef(weight)
        # Keep the weight alive only if its bytes can be compared. Otherwise it is
        # remembered only while something else, such as a graph, refers to it.
        self.weight: Tensor | None = None
        self.unchanged = inputs_unchanged
        if all(map(is_block, (weight, *inputs))):
            self.weight = weight
            self.unchanged = unchanged_bytes(weight, after=inputs_unchanged)

    def find(self, inputs: Inputs, region: Any) -> Tensor | None:
        """The remembered weight, or None if it may be out of date."""
        weight = self._reference()
        if weight is None or (self.region and self.region()) is not region:
            return None
        # Compare versions too: writing equal bytes does not change the value, but torch
        # refuses a backward pass through a graph whose saved tensors were written to.
        same = (
            inputs[0] is self.X
            and (inputs[1] if len(inputs) > 1 else None) is self.buffer
            and self._versions == [*map(version, (weight, *inputs))]
            and self.unchanged()
        )
        return weight if same else None

    def drop(self) -> None:
        """Release the weight and its memory."""
        self.weight = None
        self._reference, self.unchanged = _no_weight, _changed


def _no_weight() -> None:
    """Stands for a weak reference whose weight no longer exists."""


def _changed() -> bool:
    """A check of tensors that always says that they have changed."""
    return False


class Memory:
    """The remembered weights of one `CoordinatesHolder`.

    It holds one weight without a graph, which all threads share. For each thread, it
    also holds one weight with a graph, because a backward pass in one thread must not
    consume the graph of another thread. A copy of a module starts with an empty memory.

    Attributes:
        without_graph: the entry without a graph.
        threads: thread-local; the attribute `entry` is the thread's entry with a graph.
    """

    def __init__(self) -> None:
        self.without_graph: Entry | None = None
        self.threads = threading.local()
        # The tensors from which the last weight was computed, a check that all of them
        # are unchanged, and a check that the buffer is unchanged. They are in one
        # tuple, so that another thread never sees only some of them replaced.
        self._watched: tuple[Inputs, UnchangedCheck, UnchangedCheck]
        self._watched = (), _changed, _changed
        self._steps = _steps

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()

    def watch(self, inputs: Inputs, constraint: AbstractConstraint) -> UnchangedCheck:
        """Prepare the inputs of a weight, and return a check that they stay unchanged.

        A base or phases that have left the manifold are repaired. For example,
        averaging models averages their bases, and the mean of orthogonal matrices is
        not orthogonal. Coordinates that look as if `nn.init` had filled them are
        refused. This test takes time, and is skipped if an optimizer has taken a step
        since the last weight was computed, because the step explains the change.
        """
        before, unchanged, buffer_unchanged = self._watched
        same = len(inputs) == len(before) and all(map(operator.is_, inputs, before))
        if same and unchanged():
            return unchanged
        if self._steps == _steps:
            constraint.refuse_filled(inputs[0])
        self._steps = _steps
        if not (same and buffer_unchanged()):
            constraint.repair()
            buffer_unchanged = _unchanged_check(*inputs[1:])
        unchanged = _unchanged_check(*inputs)
        self._watched = inputs, unchanged, buffer_unchanged
        return unchanged


class Shared(torch.autograd.Function):
    """The weight `compute(X)`, as a single node of the autograd graph.

    Two losses that use a plain weight share no graph, so `backward` works for one and
    then for the other. Two losses that use a constrained weight share the graph from
    the coordinates `X` to the weight. This node hides that graph: the first backward
    pass without `create_graph` uses and frees it. All other passes recompute it, or
    raise if `unchanged` returns False.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[Tensor], Tensor],
        unchanged: UnchangedCheck,
        X: Tensor,
    ) -> Tensor:
        leaf = X.detach().requires_grad_()
        with torch.enable_grad():
            weight = compute(leaf)
        ctx.compute, ctx.unchanged, ctx.X = compute, unchanged, X
        ctx.graph = leaf, weight
        ctx.set_materialize_grads(False)
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, G: Tensor | None) -> tuple[Tensor | None, ...]:
        if G is None:
            return None, None, None
        create_graph = torch.is_grad_enabled()
        # Only one backward pass can use the graph. `pop` is atomic, so this is
        # thread-safe.
        graph = None if create_graph else vars(ctx).pop("graph", None)
        leaf, weight = graph or _recompute(ctx)
        # The backward pass may run inside autocast, although torch advises against it.
        # Most maps leave their backward pass to autograd, which would then multiply in
        # half precision.
        with autocast_off(G.device):
            (g,) = torch.autograd.grad(weight, leaf, G, create_graph=create_graph)
        return None, None, g


def _recompute(ctx: Any) -> tuple[Tensor, Tensor]:
    """The coordinates and the weight, in a new graph; raises if inputs have changed."""
    if not ctx.unchanged():
        raise RuntimeError(
            "a constrained weight must not change between two backward passes through "
            "one graph; an optimizer, an assignment or a write to its coordinates has "
            "changed it. Call `backward` on all losses before the step, or read the "
            "weight again after it."
        )
    with torch.enable_grad():
        # Differentiate with respect to an alias. A derivative with respect to `ctx.X`
        # would also call the hooks that a user has registered on the coordinates, and
        # they would run twice.
        X = ctx.X.view_as(ctx.X)
        return X, ctx.compute(X)


def _unchanged_check(*tensors: Tensor) -> UnchangedCheck:
    """A function that returns True as long as these tensors are unchanged.

    It compares bytes if C can read the memory of all tensors, and version counters
    otherwise.
    """
    if all(map(is_block, tensors)):
        return unchanged_bytes(*tensors)
    before = [*map(_fingerprint, tensors)]
    return lambda: before == [*map(_fingerprint, tensors)]


def _fingerprint(t: Tensor) -> tuple[object, ...]:
    """Values that differ after torch has written to a tensor or replaced its memory."""
    address = 0 if t.is_meta else t.data_ptr()
    # a fused optimizer does not increase the version, so include the number of steps
    steps = _steps if t.requires_grad else 0
    return version(t), t.shape, t.stride(), address, steps


def count_step(*_: Any) -> None:
    """Count a step; torch calls this hook after every step of any optimizer."""
    global _steps  # noqa: PLW0603 - one count for the whole process
    _steps += 1


def _may_remember(inputs: Inputs) -> bool:
    """Whether a weight computed now may be used again later."""
    # a weight with a tangent is valid only inside its level of forward mode
    if torch.compiler.is_compiling() or transforms() or in_forward_mode():
        return False
    # Inside a backward pass, reentrant checkpointing runs a region again and consumes
    # its graph at once, so no weight of this graph may be used again. Non-reentrant
    # checkpointing installs a packing hook, by which `Entry.find` recognizes the
    # weights of a region.
    if backward_pass() != -1 and packing_hook() is None:
        return False
    for t in inputs:
        # Fake tensors, sharded tensors and other subclasses can change without a trace
        # in their memory or version counter. Inference tensors have no such counter.
        if type(t) not in PLAIN or version(t) is None or (is_fake(t) and not t.is_meta):
            return False
    return not (
        torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )
