"""Cache of constrained weights, so that reading a weight twice computes it once.

During training, a weight is computed once per autograd graph: every read returns the
same tensor until its inputs change or a backward pass goes through it. Without
gradients, it is computed once, and again only after a change.

Each `CoordinatesHolder` has a `Memory`. It keeps one weight without a graph and, for
each thread, one weight with a graph. Each weight is in an `Entry`, which can tell
whether the weight is still valid. A read calls the property that `read_fast` makes. If
no graph is needed and the entry without a graph is valid, the property returns the
weight of this entry. Otherwise the property calls `read_weight`, which looks for a
valid entry. If there is none, `_compute` makes one. A weight with a graph is the output
of a single autograd node, `Shared`. Inside a checkpointed region, the weight has its
ordinary graph instead. A hook on the weight's node drops the entry in a backward pass.

A weight's inputs are the coordinates and, if there is one, the base (or the phases, for
products of reflections). Four tests find out whether something has changed:

| test | when | what it compares |
| --- | --- | --- |
| `Entry.is_valid` | at a read that needs no graph | objects, contents |
| `Entry.find` | at all other reads | objects, contents, versions, region |
| `Memory.prepare` | before a weight is computed | inputs: objects, contents |
| `_recompute` | if a backward pass computes the graph again | inputs: contents |

- Objects: the inputs and the constraint must be the same Python objects as before.
- Contents: all bytes of the inputs and of the weight itself, because a write through
  `.data` or a numpy view leaves no other trace. Bytes are compared only on the CPU: on
  other devices the host would have to wait for the result. There, `_watch_contents`
  compares version counters and addresses of the inputs instead. On these devices, a
  weight is remembered only if it has a graph, and only while the graph or something
  else refers to it.
- Versions: torch's counters of writes to the inputs and to the weight.
- Region: the checkpointed part of a network in which the weight was read, if any.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from isometry._backend.memory import PLAIN, is_block, watch_bytes
from isometry._backend.watch import ContentsCheck
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
    torch_property = getattr(cls, name)
    # `fget` is looked up here and not inside `read`, because Dynamo in torch 2.7 cannot
    # trace the lookup
    read_slowly = torch_property.fget

    def read(module: Any) -> Tensor:
        # a compiler must trace the computation, not a remembered weight
        if _is_compiling() or is_tracing():
            return read_slowly(module)
        holder = module._modules["parametrizations"]._modules[name]
        # lookups in `__dict__` are faster than reading attributes of a module
        attributes = holder.__dict__
        parts = attributes["_modules"]
        # leave it to torch's property if the user has added a parametrization on top
        # (with the key "1"), or if forward mode is on
        if "1" in parts or forward_mode["_current_level"] >= 0:
            return read_slowly(module)
        X = attributes["_parameters"]["original"]
        constraint = parts["0"]
        memory = attributes["memory"]
        entry = memory.without_graph
        if (
            entry is not None
            and not (_is_grad_enabled() and X.requires_grad)
            and entry.is_valid(X, constraint)
        ):
            return entry.weight
        if holder.is_initializing or parametrizations_are_cached():
            return read_slowly(module)
        return read_weight(memory, X, constraint)

    setattr(cls, name, property(read, torch_property.fset))


def read_weight(memory: "Memory", X: Tensor, constraint: AbstractConstraint) -> Tensor:
    """The weight with coordinates `X`, from `memory` or computed by `constraint`."""
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
    weight = None if entry is None else entry.find(X, constraint, region)
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
    same_inputs = memory.prepare(inputs, constraint)
    if with_graph and region is None:
        weight: Tensor = Shared.apply(constraint, same_inputs, inputs[0])
    else:
        weight = constraint(inputs[0])
    entry = Entry(weight, inputs, constraint, same_inputs, region)
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
        same_inputs: returns True as long as the contents of `inputs` are the same.
        region: the hook of the checkpointed region in which the weight was computed;
            None outside such regions.
    """

    def __init__(
        self,
        weight: Tensor,
        inputs: Inputs,
        constraint: AbstractConstraint,
        same_inputs: ContentsCheck,
        region: Any,
    ) -> None:
        self._inputs = inputs
        self._X = inputs[0]
        self._constraint = constraint
        # The buffer on which the weight depends, and the dictionary in which the
        # constraint holds it. A dictionary is faster to read than a module's attribute.
        self._buffer = inputs[1] if len(inputs) > 1 else None
        self._buffers: dict[str, Tensor | None] = constraint._buffers
        self._depends_on = constraint.depends_on
        self._region = None if region is None else weakref.ref(region)
        self._versions = [*map(version, (weight, *inputs))]
        self._reference: Callable[[], Tensor | None] = TensorWeakRef(weight)
        # Keep the weight alive only if its bytes can be compared. Otherwise it is
        # remembered only while something else, such as a graph, refers to it.
        self.weight: Tensor | None = None
        self._same_contents = same_inputs
        if all(map(is_block, (weight, *inputs))):
            self.weight = weight
            self._same_contents = watch_bytes(weight, after=same_inputs)

    def is_valid(self, X: Tensor, constraint: AbstractConstraint) -> bool:
        """Whether `constraint(X)` is still the weight, computed from the same bytes."""
        return (
            X is self._X
            and constraint is self._constraint
            and self._buffers[self._depends_on] is self._buffer
            and self._same_contents()
        )

    def find(
        self, X: Tensor, constraint: AbstractConstraint, region: Any
    ) -> Tensor | None:
        """The remembered weight, or None if it may be out of date."""
        weight = self._reference()
        if weight is None or (self._region and self._region()) is not region:
            return None
        # Compare versions too: writing equal bytes does not change the value, but torch
        # refuses a backward pass through a graph whose saved tensors were written to.
        if self._versions != [*map(version, (weight, *self._inputs))]:
            return None
        return weight if self.is_valid(X, constraint) else None

    def drop(self) -> None:
        """Release the weight and its memory."""
        self.weight = None
        self._reference = lambda: None
        self._same_contents = _never_same


def _never_same() -> bool:
    """A check that always fails, as if contents had changed."""
    return False


class Memory:
    """The remembered weights of one `CoordinatesHolder`.

    It holds one weight without a graph, which all threads share. For each thread, it
    also holds one weight with a graph, because a backward pass in one thread must not
    consume the graph of another thread. A copy of a module starts with an empty memory.
    """

    def __init__(self) -> None:
        self.without_graph: Entry | None = None
        # its attribute `entry` is the entry with a graph of the current thread
        self.threads = threading.local()
        # The inputs of the last weight, a check of the contents of all inputs, and a
        # check of the contents of the buffer alone. These three are in one tuple, so
        # that another thread never sees only some of them replaced.
        self._previous: tuple[Inputs, ContentsCheck, ContentsCheck]
        self._previous = (), _never_same, _never_same
        self._steps = _steps

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()

    def prepare(self, inputs: Inputs, constraint: AbstractConstraint) -> ContentsCheck:
        """Prepare the inputs of a weight, and return a check of their contents.

        A base or phases that have left the manifold are repaired. For example,
        averaging models averages their bases, and the mean of orthogonal matrices is
        not orthogonal. Coordinates that look as if `nn.init` had filled them are
        refused. The test for this takes time. It is skipped if an optimizer has taken a
        step since the last weight was computed, because a step changes coordinates.
        """
        previous, same_inputs, same_buffer = self._previous
        same_objects = [*map(id, inputs)] == [*map(id, previous)]
        if same_objects and same_inputs():
            return same_inputs
        if self._steps == _steps:
            constraint.refuse_filled(inputs[0])
        self._steps = _steps
        if not (same_objects and same_buffer()):
            constraint.repair()
            same_buffer = _watch_contents(*inputs[1:])
        same_inputs = _watch_contents(*inputs)
        self._previous = inputs, same_inputs, same_buffer
        return same_inputs


class Shared(torch.autograd.Function):
    """The weight `compute(X)`, as a single node of the autograd graph.

    Two losses that use a plain weight share no graph, so `backward` works for one and
    then for the other. Two losses that use a constrained weight share the graph from
    the coordinates `X` to the weight. This node hides that graph: the first backward
    pass without `create_graph` uses and frees it. All other passes recompute it, or
    raise if `same_inputs` returns False.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[[Tensor], Tensor],
        same_inputs: ContentsCheck,
        X: Tensor,
    ) -> Tensor:
        leaf = X.detach().requires_grad_()
        with torch.enable_grad():
            weight = compute(leaf)
        ctx.compute, ctx.same_inputs, ctx.X = compute, same_inputs, X
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
        # if this runs inside autocast, autograd would multiply in half precision
        with autocast_off(G.device):
            (g,) = torch.autograd.grad(weight, leaf, G, create_graph=create_graph)
        return None, None, g


def _recompute(ctx: Any) -> tuple[Tensor, Tensor]:
    """The coordinates and the weight, in a new graph; raises if inputs have changed."""
    if not ctx.same_inputs():
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


def _watch_contents(*tensors: Tensor) -> ContentsCheck:
    """A function that returns True as long as these tensors have the same contents.

    It compares bytes if C can read the memory of all tensors. Otherwise it compares
    version counters and addresses, which do not show a write through `.data`.
    """
    if all(map(is_block, tensors)):
        return watch_bytes(*tensors)
    before = [*map(_fingerprint, tensors)]
    return lambda: before == [*map(_fingerprint, tensors)]


def _fingerprint(t: Tensor) -> tuple[object, ...]:
    """Values that change when torch writes to a tensor or replaces its memory."""
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
    # Under a compiler or a transform, the weight is valid only there. In forward mode,
    # it may have a tangent, which is valid only inside its level of forward mode.
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
