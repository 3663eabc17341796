"""A constrained weight is computed once, without a context manager.

In training once per autograd graph: the weight is handed out again until a backward
pass goes through it. Without gradients once until something changes. To see every
change, a read compares the bytes of the coordinates, of the base and of the weight
itself with private copies: a write through `.data`, a numpy view or another process
leaves no other trace. The comparison is O(n^2) beside the O(n^3) of the weight.

On other devices than the CPU a comparison would wait for the device. There a weight is
kept only while a graph holds it, and torch's version counters are believed.
"""

import importlib
import threading
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from isometry._native._snapshot import Snapshot
from isometry._torch import is_fake, transforms
from isometry.parametrizations._shared import Shared
from isometry.parametrizations._watch import Versions, Watch, holds, watch

# torch has no public way to ask for hooks on saved tensors
_autograd = importlib.import_module("torch._C._autograd")
# looked up once: a read of a small weight takes a microsecond
_is_grad_enabled = torch.is_grad_enabled
_is_tracing = torch._C._is_tracing
_is_compiling = torch.compiler.is_dynamo_compiling

_PLAIN = (Tensor, nn.Parameter)


class Constraint(Protocol):
    """Makes a weight of coordinates, and of a buffer of its own that has this name."""

    depends_on: str

    def __call__(self, X: Tensor) -> Tensor:
        """The weight."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """What the weight depends on, besides the coordinates."""
        ...

    def repair(self) -> None:
        """Bring these tensors back to where they must be, after a write to them."""
        ...


class Entry:
    """A weight, and what tells whether it is still the one to use."""

    __slots__ = (
        *("__weakref__", "_reference", "_versions", "X"),
        *("region", "rest", "watch", "weight"),
    )

    def __init__(self, weight: Tensor, inputs: Watch, region: Any) -> None:
        # the coordinates, and the base or the phases
        self.X, self.rest, *_ = (*inputs.tensors, None)
        self._reference = weakref.ref(weight)
        self._versions = _versions(weight, *inputs.tensors)
        # only what is compared byte by byte may outlive its graph
        self.weight, self.watch = None, inputs
        both = watch((*inputs.tensors, weight), known=inputs)
        if isinstance(both, Snapshot):
            self.weight, self.watch = weight, both
        self.region = None if region is None else weakref.ref(region)

    def find(self, inputs: tuple[Tensor, ...], region: Any) -> Tensor | None:
        """The weight, if it is what would be computed now."""
        weight = self._reference()
        if weight is None or (self.region and self.region()) is not region:
            return None
        # a write of the same bytes leaves the value, but torch refuses to go back
        # through a graph that has saved what was written to
        if not self.made_of(*inputs) or self._versions != _versions(weight, *inputs):
            return None
        return weight if self.watch.unchanged() else None

    def made_of(self, X: Tensor, rest: Tensor | None = None) -> bool:
        """Whether these very tensors are the inputs of the weight."""
        return X is self.X and rest is self.rest

    def drop(self) -> None:
        """Let go of the weight, and of all memory."""
        self.weight = None
        self._reference = _nothing
        self.watch = Versions(())


def _versions(*tensors: Tensor) -> list[int]:
    return [t._version for t in tensors]


def _nothing() -> None:
    """A reference to a weight that is gone."""


class Memory:
    """The weights that one list of coordinates has handed out.

    One has no graph and serves all threads. Each thread has another with a graph, for a
    step in one thread must not invalidate the graph of another. A copy of a module
    begins with an empty memory.
    """

    def __init__(self) -> None:
        self.plain: Entry | None = None
        self._threads = threading.local()
        self._inputs: Watch | None = None
        self._rest: Watch | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()

    def entry(self, *, graph: bool) -> Entry | None:
        """The entry of this thread with a graph, or the entry without."""
        return getattr(self._threads, "entry", None) if graph else self.plain

    def keep(self, entry: Entry, *, graph: bool) -> None:
        """Remember an entry in place of the one before."""
        if graph:
            self._threads.entry = entry
        elif entry.weight is not None:
            self.plain = entry

    def watch(self, X: Tensor, constraint: Constraint) -> Watch:
        """Begin to watch what a weight is made of; copies that are true serve again.

        A base that has changed is repaired first: an average of models takes the mean
        of its buffers, and a mean of orthogonal matrices is not orthogonal.
        """
        rest = constraint.tensors()
        if not holds(self._rest, rest):
            constraint.repair()
            self._rest = watch(rest)
        inputs = self._inputs
        if inputs is None or not holds(inputs, (X, *rest)):
            inputs = watch((X, *rest), known=self._rest)
            self._inputs = inputs
        return inputs


def read_fast(module: nn.Module, name: str) -> None:
    """Let a weight that torch has parametrized be read in a shorter way.

    torch's own property finds the list of coordinates by names and calls it as a
    module, which takes longer than a small layer has to spare. Here a remembered weight
    without a graph is looked up; every other case is for torch's property, and `once`.
    """
    cls: Any = type(module)
    slow = getattr(cls, name)

    def read(module: Any) -> Tensor:
        # a compiler must see the computation, and not this memory
        if _is_compiling() or _is_tracing():
            return slow.fget(module)
        holder = module._modules["parametrizations"]._modules[name]
        entry, parts = holder.memory.plain, holder._modules
        if entry is None or len(parts) > 1 or forward_ad._current_level >= 0:
            return slow.fget(module)
        X, constraint = holder._parameters["original"], parts["0"]
        if (
            X is entry.X
            and constraint._buffers[constraint.depends_on] is entry.rest
            and not (_is_grad_enabled() and X.requires_grad)
            and entry.watch.unchanged()
        ):
            return entry.weight
        return slow.fget(module)

    setattr(cls, name, property(read, slow.fset))


def once(memory: Memory, X: Tensor, constraint: Constraint) -> Tensor:
    """The weight with coordinates `X`: from memory if nothing has changed.

    Args:
        memory: what was handed out before.
        X: the coordinates.
        constraint: makes a weight of them.

    Returns:
        The weight; the same tensor as before, if nothing has changed.
    """
    inputs = (X, *constraint.tensors())
    if not _may_remember(inputs):
        return constraint(X)
    graph = torch.is_grad_enabled() and X.requires_grad
    region = _region() if graph else None
    entry = memory.entry(graph=graph)
    weight = None if entry is None else entry.find(inputs, region)
    if weight is not None:
        return weight
    # an inference tensor could not be handed out again outside of that mode
    with torch.inference_mode(False), torch.set_grad_enabled(graph):
        now = memory.watch(X, constraint)
        if graph and region is None:
            weight = Shared.apply(constraint, now.unchanged, X)
        else:
            weight = constraint(X)
        entry = Entry(weight, now, region)
    memory.keep(entry, graph=graph)
    if graph and weight.grad_fn is not None:
        weight.grad_fn.register_prehook(_Consumed(entry))
    return weight


class _Consumed:
    """Forgets a weight with a graph, once a backward pass has gone through it."""

    def __init__(self, entry: Entry) -> None:
        self.entry = weakref.ref(entry)

    def __call__(self, _gradients: Any) -> None:
        entry = self.entry()
        if entry is not None:
            entry.drop()


def _may_remember(inputs: tuple[Tensor, ...]) -> bool:
    """Whether a weight read now may be handed out again later."""
    if torch.compiler.is_compiling() or transforms():
        return False
    # inside of a backward pass, where a region of (reentrant) checkpointing runs again
    # and its graph is consumed at once; the other kind has hooks, and is apart by them
    if torch._C._current_graph_task_id() != -1 and _region() is None:
        return False
    # a tangent belongs to its level
    if forward_ad._current_level >= 0:
        return False
    for t in inputs:
        # fake and sharded tensors, and other subclasses, have lives of their own; an
        # inference tensor has no version
        if type(t) not in _PLAIN or t.is_inference() or (is_fake(t) and not t.is_meta):
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
