"""The declared manifolds of tensors, stored in the module that owns the tensors.

An attribute of the parameter would not survive a deepcopy, FSDP, or a load into a model
on the meta device, because all three create new parameters. So the module itself has an
attribute, which maps the names of tensors to their manifolds.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, overload
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from isometry._typing import Layer
from isometry.groups._manifold import AbstractManifold

_ATTRIBUTE = "_isometry_manifolds"
# All `Declarations` with guarded names. Before the step of any optimizer, the hook
# `_check_step` searches all of them, since torch does not say which modules an
# optimizer trains.
_GUARDED: "WeakSet[Declarations]" = WeakSet()
# The handle of the hook `_check_step`. `_guard_steps` installs the hook if this list is
# empty. It does not use `functools.cache`, which Dynamo ignores with a warning.
_guards: list[RemovableHandle] = []


@dataclass(eq=False)
class Declarations:
    """The declared manifolds of one module's tensors.

    A copy of the module, made by `copy.deepcopy` or loaded from a file, has its own
    declarations, which refer to the parameters of the copy. So an optimizer that trains
    the copy is checked too.

    Args:
        parameters: the dictionary in which torch stores the module's parameters.
        manifolds: maps the names of tensors to their manifolds.
        guarded: the names of declared parameters. Optimizers that ignore the manifolds
            of these parameters raise before a step. The other names in `manifolds` are
            constrained weights, which are not parameters.
    """

    parameters: dict[str, nn.Parameter | None]
    manifolds: dict[str, AbstractManifold]
    guarded: frozenset[str]

    def __post_init__(self) -> None:
        if self.guarded:
            _guard_steps()
            _GUARDED.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()


# These overloads make a type checker refuse a call without a manifold.
@overload
def declare(module: Layer, name: AbstractManifold) -> Layer: ...
@overload
def declare(
    module: Layer, name: str = "weight", *, manifold: AbstractManifold
) -> Layer: ...
@overload
def declare(module: Layer, name: str, manifold: AbstractManifold) -> Layer: ...


@torch.no_grad()
def declare(
    module: Layer,
    name: str | AbstractManifold = "weight",
    manifold: AbstractManifold | None = None,
) -> Layer:
    """Declare that a parameter is a point of a manifold, without changing its value.

    This is for the optimizers of `isometry.optim`, which move the parameter along its
    manifold. The parameter must already be a point of the manifold. Any other optimizer
    raises before it changes the parameter, even in a copy of the module. An optimizer
    of `isometry.optim` raises too if the parameter is in a parameter group with
    `manifold=None`. Other writes to the parameter, for example by `AveragedModel`, go
    unnoticed. The alternative is `isometry.constrain`, which works with any optimizer.
    A weight that it constrains needs no call of `declare`.

    Args:
        module: the module that owns the parameter.
        name: name of the parameter. `declare(module, manifold)` declares "weight".
        manifold: the manifold of the parameter. Leading axes of the parameter are batch
            axes. A wide matrix with orthonormal rows is treated as its transpose.

    Returns:
        The module.

    Raises:
        TypeError: if there is no such parameter, `manifold` is not a manifold, or the
            parameter is real and the manifold is complex, or the other way round.
        ValueError: if the parameter already has a parametrization, or is not a point of
            the manifold.
    """
    name, manifold = name_and_manifold(name, manifold, function="declare")
    if parametrize.is_parametrized(module, name):
        raise ValueError(
            f"`{name}` must be a plain parameter; got a weight with a parametrization, "
            f"which optimizers do not see. A weight that isometry constrains stays on "
            f"its manifold under any optimizer, so leave out `declare`, or call "
            f"`isometry.fold` first."
        )
    parameters = dict(module.named_parameters(recurse=False))
    if name not in parameters:
        raise TypeError(
            f"`name` must be a parameter of the module; {type(module).__name__} has "
            f"no parameter {name!r}. Its parameters are {list(parameters)}."
        )
    Q = points(parameters[name], manifold)
    manifold.check_point(Q, name=name)
    record(module, name, manifold, guarded=True)
    return module


def name_and_manifold(
    name: str | AbstractManifold, manifold: AbstractManifold | None, *, function: str
) -> tuple[str, AbstractManifold]:
    """The name and the manifold that a call of `declare` or `constrain` means.

    In the short form, `declare(module, manifold)`, the argument `name` holds the
    manifold, and the parameter has the name "weight". `function` is the function that
    was called, for the error message.
    """
    if not isinstance(name, str):
        if manifold is not None:
            raise TypeError(
                f"`name` must be a string; got {name!r}. In the short form, "
                f"`{function}(module, manifold)`, pass all other options by keyword."
            )
        name, manifold = "weight", name
    return name, check_is_manifold(manifold)


def points(weight: Tensor, manifold: AbstractManifold) -> Tensor:
    """`weight`, or its transpose if only the transpose has the shape of a point."""
    shape = manifold.shape
    last = tuple(weight.shape[-2:])
    if len(shape) == len(last) and last != shape and last == shape[::-1]:
        return weight.mT
    return weight


def record(
    module: nn.Module,
    name: str,
    manifold: AbstractManifold | None,
    *,
    guarded: bool = False,
) -> None:
    """Declare a manifold without checks; None removes the declaration.

    Pass `guarded=True` for a parameter, so that optimizers that ignore its manifold
    raise before a step.
    """
    no_declarations = Declarations({}, {}, frozenset())
    old_declarations = vars(module).pop(_ATTRIBUTE, no_declarations)
    manifolds = dict(old_declarations.manifolds)
    names = old_declarations.guarded - {name}
    manifolds.pop(name, None)
    if manifold is not None:
        manifolds[name] = manifold
    # A module without declarations does not get the attribute. So after
    # `isometry.fold`, a pickled torch layer loads where isometry is not installed.
    if manifolds:
        names = names | {name} if guarded else names
        declarations = Declarations(vars(module)["_parameters"], manifolds, names)
        setattr(module, _ATTRIBUTE, declarations)


def _manifolds(module: nn.Module) -> dict[str, AbstractManifold]:
    """The manifolds of the declared tensors of `module`, without submodules."""
    declarations = getattr(module, _ATTRIBUTE, None)
    if declarations is None:
        return {}
    # Torch's `remove_parametrizations` makes a constrained weight a plain parameter. It
    # does not tell us, so the old declaration is still here and must be skipped.
    parameters = vars(module)["_parameters"]
    return {
        name: manifold
        for name, manifold in declarations.manifolds.items()
        if name in declarations.guarded or parameters.get(name) is None
    }


def manifold_of(module: nn.Module, name: str = "weight") -> AbstractManifold | None:
    """The manifold of a constrained weight or of a declared parameter.

    Args:
        module: the module that owns the weight.
        name: name of the weight or parameter.

    Returns:
        The manifold; None if the weight is neither constrained nor declared.
    """
    return _manifolds(module).get(name)


def declared(
    module: nn.Module,
) -> Iterator[tuple[str, nn.Module, str, AbstractManifold]]:
    """All declarations inside `module`: (path of the owner, owner, name, manifold)."""
    for path, owner in module.named_modules():
        for name, manifold in _manifolds(owner).items():
            yield path, owner, name, manifold


def declared_parameters(
    module: nn.Module,
) -> list[tuple[str, nn.Parameter, AbstractManifold]]:
    """The declared parameters inside `module`, each once: (key, parameter, manifold).

    Constrained weights are not included, since they are computed from parameters.
    """
    entries = {}
    for path, owner, name, manifold in declared(module):
        p = dict(owner.named_parameters(recurse=False)).get(name)
        key = f"{path}.{name}" if path else name
        if p is not None:
            entries.setdefault(id(p), (key, p, manifold))
    return list(entries.values())


def _guard_steps() -> None:
    """Make every optimizer that ignores a declared manifold raise before its step.

    Torch's optimizers accept unknown options in a parameter group, such as `manifold`.
    Without this check, their steps would silently move the parameter off its manifold.
    """
    if not _guards:
        # have a compiled step call the hook instead of tracing it
        eager: Any = torch.compiler.disable
        _guards.append(register_optimizer_step_pre_hook(eager(_check_step)))


def _check_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Raise if the optimizer would move a declared parameter off its manifold."""
    knows_manifolds = "manifold" in optimizer.defaults
    # A wrapper around an optimizer that knows manifolds is not checked itself: its step
    # calls the step of the inner optimizer, before which this hook runs again.
    if not knows_manifolds and _wraps_one_that_knows_manifolds(optimizer):
        return
    # Look up the parameters at every step and not when they are declared, because a
    # weight that is constrained later is no longer a parameter of its module.
    manifolds = {
        id(declarations.parameters[name]): manifold
        for declarations in _GUARDED
        for name, manifold in declarations.manifolds.items()
        if name in declarations.guarded
        and declarations.parameters.get(name) is not None
    }
    for i, group in enumerate(optimizer.param_groups):
        option = group.get("manifold")
        if knows_manifolds and option is not None:
            continue
        own = (manifolds.get(id(p)) for p in group["params"] if p.requires_grad)
        manifold = option or next(filter(None, own), None)
        if manifold is not None:
            kind = type(optimizer).__name__
            if knows_manifolds:
                got = (
                    f"{kind} with `manifold=None` for a parameter on {manifold} in "
                    f"`param_groups[{i}]`. Make the parameter groups with "
                    f"`isometry.param_groups`."
                )
            else:
                got = (
                    f"{kind}, which ignores the {manifold} of `param_groups[{i}]`. Use "
                    f"an optimizer of `isometry.optim` with `isometry.param_groups`, "
                    f"or constrain the weight with `isometry.constrain`, which works "
                    f"with any optimizer."
                )
            raise TypeError(
                f"`optimizer` must keep parameters on their manifold; got {got}"
            )


def _wraps_one_that_knows_manifolds(optimizer: Optimizer) -> bool:
    """Whether `optimizer` holds an optimizer that has the option `manifold`."""
    return any(
        isinstance(inner, Optimizer) and "manifold" in inner.defaults
        for inner in vars(optimizer).values()
    )


def check_is_manifold(manifold: object, *, otherwise: str = "") -> AbstractManifold:
    """Return `manifold`, or raise an error if it is not a manifold.

    `otherwise` is added to the error message, and names other values that are allowed.
    """
    if not isinstance(manifold, AbstractManifold):
        raise TypeError(
            f"`manifold` must be a manifold of isometry.groups, such as SO(4)"
            f"{otherwise}; got {manifold!r}."
        )
    return manifold
