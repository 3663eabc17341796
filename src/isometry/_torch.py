r"""Every private name of torch that we use, except names of `nn.Module` and of C.

This file leaves out two kinds of names, which all versions of torch have. The first
kind belongs to `nn.Module`: other files read its dictionaries (`_modules`,
`_parameters`, `_buffers`), and override or wrap `_apply`, `_load_from_state_dict`,
`_save_to_state_dict`, `_reset_parameters` and `__prepare_scriptable__`, which torch
calls in every subclass that has them. The second kind is torch's stable interface for C
(`aoti_torch_*`), whose functions `_backend/watch.py` calls.

Torch has no public way to ask which of its transforms and modes are active, nor how
many owners a storage has. Torch 2.7.1, 2.10.0, 2.13.0 and 2.15.0 have all names below,
except that 2.7.1 lacks the name with a star. If a version of torch lacks a name, this
library still imports, computes and trains. The list has, for each name, the question
that it answers, what we assume or do without it, and what is then lost.
`tests/hidden_names.py` hides each name in turn, and then all of them.

- `_C._len_torch_dispatch_stack`: how many dispatch modes are active? We assume none.
  A mode, such as a FLOP counter, then does not see what C computes.
- `_C._functorch.get_interpreter_stack`: which transforms are active? We find out by a
  slower trial whether there is one, but not of which kind; see the next name.
- `_C._functorch.TransformType`: is forward mode nested? We assume so if forward mode is
  on inside any transform. Functions that refuse nested forward mode then refuse even
  one level of `torch.func.jvp`.
- `_C._functorch.is_functorch_wrapped_tensor`: is this gradient a `vmap` tensor? We
  assume not. `torch.func.vmap` of a backward pass then raises.
- `_C._functorch.is_legacy_batchedtensor`: is this gradient a tensor of the old `vmap`?
  We assume not. `torch.autograd.grad` with `is_grads_batched=True` then raises.
- `_guards.active_fake_mode`: is FakeTensorMode active? We assume not. A plain tensor
  inside this mode then counts as a tensor with numbers.
- `_subclasses.fake_tensor.FakeTensor`: is this tensor fake? We assume not. It then
  counts as a wrapper; see `is_wrapper`.
- `Tensor._cdata`: where in a Python tensor is the C++ tensor? Without an answer, not C
  but Python checks whether weights have changed, which is slower.
- `_C._storage_Use_Count` and `UntypedStorage._cdata`: how many owners does a storage
  have? We assume two. No memory is then reused.
- `_C._is_tracing`: is `torch.jit.trace` active? We call a slower public function.
- `_C._current_graph_task_id`: which backward pass is running? We assume none. A weight
  that is computed inside a backward pass may then be remembered.
- `_C._autograd._top_saved_tensors_default_hooks` *: which hook packs saved tensors? We
  find out by a trial only whether there is one. While any hook is active, no weight
  with a graph is remembered.
- `parametrize._cache_enabled`: is `parametrize.cached()` active? We assume not. The
  weight then comes from our cache instead of torch's.
- `forward_ad._current_level`: is forward mode on? We find out by a slower trial.
- `Tensor._version`: how often has torch written to a tensor? Without an answer, no
  weight is remembered.
- `_dynamo_marked_constant` marks a function whose result is a constant in graphs. If
  Dynamo does not know the mark, it traces the function.
- `_flat_weights`, `_flat_weights_names`, `_flat_weight_refs`, `_init_flat_weights` and
  `_update_flat_weights` belong to the list of weights in `RNNBase`, which we replace
  with a property. Without these names, torch reads the weights in its own way.
"""

import contextlib
import ctypes
import functools
import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


def _private(module: str, name: str, substitute: Any) -> Any:
    """A private attribute of a torch module, or `substitute` if it does not exist."""
    try:
        return getattr(importlib.import_module(module), name, substitute)
    except ImportError:
        return substitute


_C, _functorch = "torch._C", "torch._C._functorch"
_is_legacy_batched = _private(_functorch, "is_legacy_batchedtensor", lambda _: False)
_is_wrapped = _private(_functorch, "is_functorch_wrapped_tensor", lambda _: False)
_forward_mode = getattr(_private(_functorch, "TransformType", None), "Jvp", None)
_active_fake_mode = _private("torch._guards", "active_fake_mode", lambda: None)
# if torch has no such class, `isinstance(X, ())` is False for every X
_FakeTensor = _private("torch._subclasses.fake_tensor", "FakeTensor", ())

# The number of active dispatch modes, such as FakeTensorMode or a FLOP counter. A
# dispatch mode sees every torch operation.
dispatch_modes: Callable[[], int] = _private(_C, "_len_torch_dispatch_stack", lambda: 0)


class _NotForTransforms(torch.autograd.Function):
    """An autograd function that torch.func refuses: it has no `setup_context`."""

    @staticmethod
    def forward(_ctx: Any) -> None:
        """Compute nothing."""


def _transforms_by_refusal() -> list[Any]:
    """A list with one transform of unknown kind if any is active, otherwise empty.

    Inside a transform, torch refuses `_NotForTransforms`.
    """
    try:
        _NotForTransforms.apply()
    except RuntimeError:
        return [SimpleNamespace(key=lambda: None)]
    return []


# the active torch.func transforms; None or an empty list if there are none
transforms: Callable[[], Sequence[Any] | None] = _private(
    _functorch, "get_interpreter_stack", _transforms_by_refusal
)

# whether `torch.jit.trace` is tracing; the public function is slower
_public_is_tracing = torch.jit.is_tracing  # pyright: ignore[reportPrivateImportUsage]
is_tracing: Callable[[], bool] = _private(_C, "_is_tracing", _public_is_tracing)

# the id of the backward pass that is running; -1 outside of a backward pass
backward_pass: Callable[[], int] = _private(_C, "_current_graph_task_id", lambda: -1)

_hooks_on_saved_tensors = _private(
    "torch._C._autograd", "_top_saved_tensors_default_hooks", None
)


class _LevelByRefusal(dict[str, int]):
    """A stand-in for `vars(forward_ad)`: each lookup tests whether forward mode is on.

    The test calls `make_dual`, which raises if forward mode is off.
    """

    def __missing__(self, _name: str) -> int:
        try:
            forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
        except RuntimeError:
            return -1
        return 0


# The variables of the module `forward_ad`. "_current_level" is negative if forward mode
# is off. Code that runs at every read of a weight reads this dictionary, because a
# function call would take too long.
forward_mode: Mapping[str, Any] = (
    vars(forward_ad) if hasattr(forward_ad, "_current_level") else _LevelByRefusal()
)

_use_count = _private(_C, "_storage_Use_Count", None)

# `__torch_dispatch__` of a class that does not intercept torch's operations
_NO_DISPATCH = vars(Tensor)["__torch_dispatch__"]


def nested_forward_mode() -> bool:
    """Whether torch.func.jvp runs inside torch.func.jvp.

    If so, torch 2.13 silently drops the outer tangent of any autograd function. For
    example, if `square` is an autograd function, the second derivative of square(x) * x
    comes out as 4 x, not 6 x. If torch does not name its transforms, one level of
    forward mode counts as two.
    """
    kinds = [transform.key() for transform in transforms() or ()]
    if kinds and (_forward_mode is None or None in kinds):
        return in_forward_mode()
    return kinds.count(_forward_mode) > 1


def in_forward_mode() -> bool:
    """Whether forward mode is on, in which case tensors may have tangents."""
    return forward_mode["_current_level"] >= 0


def refuse_nested_forward_mode(name: str) -> None:
    """Raise in nested forward mode, where derivatives would be silently wrong.

    While compiling, there is nothing to check. Dynamo does not support autograd
    functions with a `jvp`, so the autograd functions that we use in graphs do not
    support even one level of forward mode.
    """
    if not torch.compiler.is_compiling() and nested_forward_mode():
        raise NotImplementedError(
            f"`{name}` must be inside at most one level of `torch.func.jvp`; got two "
            f"or more (or this version of torch does not say how many). Use reverse "
            f"mode for one of them, as `torch.func.hessian` does."
        )


def has_tangent(X: Tensor) -> bool:
    """Whether `X` has a tangent in forward mode."""
    # `unpack_dual` also works outside of forward mode, but it is slow
    return in_forward_mode() and forward_ad.unpack_dual(X).tangent is not None


def is_batched_gradient(G: Tensor) -> bool:
    """Whether `G` is a tensor of `vmap` (a batch of gradients) or of another transform.

    Such tensors occur with `is_grads_batched=True`, and in transforms of a backward
    pass. C cannot read them, but torch's ordinary operations accept them.
    """
    return _is_legacy_batched(G) or _is_wrapped(G)


def is_fake(X: Tensor) -> bool:
    """Whether operations on `X` compute shapes only.

    True for meta and fake tensors, and for any tensor inside FakeTensorMode.
    """
    return (
        X.is_meta
        or isinstance(X, _FakeTensor)
        or (dispatch_modes() > 0 and _active_fake_mode() is not None)
    )


def is_wrapper(X: Tensor) -> bool:
    """Whether `X` is a tensor subclass that intercepts operations, such as a DTensor.

    A wrapper usually has no memory of its own. Torch's ordinary operations accept it;
    `out=`, `tolist` and C do not. Fake tensors are wrappers too: to tell them from
    other wrappers, call `is_fake` first.
    """
    kind: Any = type(X)
    if kind is Tensor or kind is torch.nn.Parameter:
        return False
    return kind.__torch_dispatch__ is not _NO_DISPATCH


def needs_plain_operations(*tensors: Tensor | None) -> bool:
    """Whether only torch's ordinary operations may be used, not C or `out=`.

    This is the case if something must see every operation: a compiler, a torch.func
    transform, a tangent of forward mode, a mode that computes shapes only, or a tensor
    subclass that intercepts operations, such as a fake or sharded tensor.
    """
    if torch.compiler.is_compiling() or transforms():
        return True
    if dispatch_modes() and _active_fake_mode() is not None:
        return True
    return any(X is not None and (is_wrapper(X) or has_tangent(X)) for X in tensors)


def storage_owners(storage: Any) -> int:
    """Number of C++ owners of a storage, including the Python object `storage`.

    If this version of torch cannot tell, the result is 2: assume that something else
    owns the storage too, so that its memory is not reused.
    """
    # torch's function expects the address of the C++ storage
    address = getattr(storage, "_cdata", None)
    return 2 if _use_count is None or address is None else _use_count(address)


def offset_of_tensor() -> int | None:
    """Offset in bytes of the C++ tensor inside a Python tensor; None if unknown."""
    examples: list[Any] = [torch.empty(0), torch.nn.Parameter(torch.empty(2))]
    for offset in range(object.__basicsize__, Tensor.__basicsize__, 8):
        words = [ctypes.c_size_t.from_address(id(t) + offset).value for t in examples]
        # a C++ tensor is a single pointer, and `_cdata` is the value of that pointer
        if words == [getattr(t, "_cdata", None) for t in examples]:
            return offset
    return None


# stands for the active hook if this version of torch does not say which one it is
HIDDEN_HOOK = object()


def packing_hook() -> Any:
    """The active hook that packs tensors when autograd saves them, or None.

    In torch 2.7, we can only find out whether there is a hook. If there is one, the
    result is then `HIDDEN_HOOK`.
    """
    if _hooks_on_saved_tensors is None:
        return HIDDEN_HOOK if _packs_saved_tensors() else None
    hooks = _hooks_on_saved_tensors(False)
    return None if hooks is None else hooks[0]


def _packs_saved_tensors() -> bool:
    """Whether a hook packs saved tensors: if so, torch refuses to disable hooks."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("there is one"):
            return False
    except RuntimeError:
        return True


def parametrizations_are_cached() -> bool:
    """Whether `torch.nn.utils.parametrize.cached()` is active."""
    return getattr(parametrize, "_cache_enabled", 0) > 0


def version(X: Tensor) -> int | None:
    """How often torch has written to the memory of `X`; None if that is unknown."""
    try:
        return getattr(X, "_version", None)
    except RuntimeError:
        # an inference tensor does not count writes
        return None


def flat_weights(module: Any) -> list[Tensor | None]:
    """The weights of an `RNNBase`, in the order of torch's list of weights."""
    names = getattr(module, "_flat_weights_names", ())
    return [getattr(module, name, None) for name in names]


def compute_flat_weights(
    module: torch.nn.RNNBase, weights: Callable[[Any], list[Tensor | None]]
) -> None:
    """Have torch call `weights(module)` instead of storing a list of the weights.

    This replaces methods of the class of `module`, so no other module may have this
    class.
    """
    cls: Any = type(module)
    cls._flat_weights = property(weights, _do_nothing)
    cls._init_flat_weights = cls._update_flat_weights = _do_nothing
    # torch's method would copy the weights into one block of memory, but cuDNN also
    # accepts separate weights
    cls.flatten_parameters = _do_nothing
    # `RNNBase.__setattr__` would read all weights in order to update the list
    cls.__setattr__ = torch.nn.Module.__setattr__
    # The attributes set below have no effect until the original class is restored. Then
    # torch notices that `_flat_weight_refs` does not refer to the weights, and fills
    # the list again.
    names = getattr(module, "_flat_weights_names", ())
    refs = [weakref.ref(torch.nn.RNNBase) for _ in names]
    module.__dict__.update(_flat_weights=[], _flat_weight_refs=refs)


def _do_nothing(*_: Any) -> None:
    """Takes the place of torch's methods that update or flatten the list of weights."""


def fill_flat_weights(module: torch.nn.RNNBase) -> None:
    """Have torch fill the list of weights of a recurrent module again."""
    getattr(module, "_init_flat_weights", _do_nothing)()


def outside_graphs(function: AnyFunction) -> AnyFunction:
    """Make compilers call `function` between two graphs instead of tracing it.

    `torch.compiler.disable` does the same, but it imports Dynamo, which is slow. This
    decorator calls `disable` only while Dynamo compiles, so Dynamo is imported anyway.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            untraced: Any = torch.compiler.disable(function)
            return untraced(*args, **kwargs)
        return function(*args, **kwargs)

    return cast("AnyFunction", call)


def constant_in_graphs(function: AnyFunction) -> AnyFunction:
    """Make compilers call `function` once and treat the result as a constant.

    This decorator sets the same mark as `torch.compiler.assume_constant_result`, but it
    does not import Dynamo, which is slow.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True  # noqa: SLF001 - torch sets it too
    return function


def autocast_off(device: torch.device) -> contextlib.AbstractContextManager:
    """A context in which products keep their dtype, even inside `torch.autocast`."""
    kind = device.type
    if not _has_autocast(kind):
        return contextlib.nullcontext()
    # Entering `torch.autocast` takes time, so do it only if autocast is on, or may be
    # on when a compiled graph runs.
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


# not traced, because Dynamo in torch 2.7 does not support `is_autocast_available`
@constant_in_graphs
def _has_autocast(device_type: str) -> bool:
    return torch.amp.is_autocast_available(device_type)
