"""The module that holds the coordinates of a weight and computes the weight.

For each parametrized weight, torch keeps a `ParametrizationList` in the module
`parametrizations` of the weight's owner. Its parameter `original` is what an optimizer
trains, and calling the list computes the weight. Our subclass of this list is
`CoordinatesHolder`, called a holder for short: its `original` holds the coordinates,
and its first element is the constraint that computes the weight from them. Users may
add parametrizations of their own after the constraint. Tied weights share one holder.

The holder computes the weight, or takes it from a cache. It also deals with everything
else that may happen to a weight: an assignment (`right_inverse`), a function that
initializes it (`initializing`), a copy (`__setstate__`), a cast or a change of device
(`_apply`), and a checkpoint (`_load_from_state_dict`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from isometry._checks import check_is_module
from isometry._dtypes import HALF
from isometry._torch import version
from isometry.parametrizations._cache import Memory, read_weight
from isometry.parametrizations._initial import initial_point
from isometry.parametrizations._reflections import Reflections
from isometry.parametrizations._trivialization import Trivialization

# All holders whose base moves automatically. torch calls our hook after a step of any
# optimizer, but passes only the optimizer and no modules. So the hook finds the bases
# here. A holder leaves the set when it is deleted.
MOVING: "WeakSet[CoordinatesHolder]" = WeakSet()

# The attribute that marks a parameter as coordinates. A deep copy of the parameter does
# not have it until the holder sets it again.
_MARK = "_isometry_coordinates"


class CoordinatesHolder(ParametrizationList):
    """Holds the coordinates, as `original`, and computes the weight from them.

    The coordinates stay in float32 or wider when the module is cast to half precision.
    """

    # Holds computed weights. Set by `begin`, which also runs in a copy of this object.
    memory: Memory
    # True while a function initializes the weight. Meanwhile `original` holds the
    # weight itself.
    is_initializing = False
    # The number of places, each a name in a module, that got their weight from this
    # holder. Some of them may have been deleted since.
    places = 0

    @property
    def constraint(self) -> Trivialization | Reflections:
        """The parametrization that computes the weight from the coordinates."""
        return cast("Trivialization | Reflections", self[0])

    def forward(self) -> Tensor:
        """The weight, computed or taken from `memory`."""
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            self.__prepare_scriptable__()
        if self.is_initializing:
            return cast("Tensor", self._parameters["original"])
        weight = self.constrained_weight()
        # parametrizations that a user has added on top, such as a learned gain, are
        # evaluated at each read
        for i in range(1, len(self)):
            weight = self[i](weight)
        return weight

    def constrained_weight(self) -> Tensor:
        """The constrained weight, without parametrizations added on top of it."""
        # not `self[0]`, which looks up module attributes and would slow down every read
        constraint: Any = self._modules["0"]
        X = cast("Tensor", self._parameters["original"])
        # a compiled graph must compute the weight, not refer to a remembered one
        if torch.compiler.is_compiling():
            return constraint(X)
        return read_weight(self.memory, X, constraint)

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse TorchScript, which calls this method before it compiles a module."""
        raise TypeError(
            f"the module must have plain weights for TorchScript; got one with a "
            f"weight on {self.constraint.manifold}. Pass TorchScript "
            f"`isometry.fold(copy.deepcopy(module))`, or use `torch.export`."
        )

    @torch.no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Assign `value` to the weight, by computing new coordinates."""
        if len(self) > 1:
            super().right_inverse(value)
            return
        # Do not call torch's method here, because it raises if the new coordinates have
        # another dtype than the old ones. If a float64 weight was cast to half
        # precision, the old coordinates are still float64, and the new ones are
        # float32.
        self.original.copy_(self.constraint.right_inverse(value))

    def begin(self) -> None:
        """Start with an empty memory, after this object was created or copied."""
        self.memory = Memory()
        self._mark()
        if self.constraint.moves_automatically:
            MOVING.add(self)

    def _mark(self) -> None:
        """Mark `original` as coordinates.

        A conversion or a load may have replaced the parameter, and the mark with it.
        """
        setattr(self._parameters["original"], _MARK, True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.begin()

    @contextmanager
    def initializing(self) -> Iterator[None]:
        """Make the weight a plain parameter, for a function that initializes it.

        Inside the context, the parameter holds the weight instead of the coordinates,
        and a read of the weight returns the parameter. If the function has written to
        the parameter, the weight afterwards starts at the point nearest to what was
        written, or where the `init` of the constraint says. Otherwise the weight does
        not change.
        """
        X = self.original
        with torch.no_grad():
            coordinates = X.clone()
            W = self.constraint(X).to(X.dtype)
            X.copy_(W)
        version_before = version(X)
        self.memory = Memory()
        self.is_initializing = True
        try:
            yield
            # compare values too: a write through `.data` does not change the version
            same_version = version(X) == version_before
            if not X.is_meta and not (same_version and _equal(X.detach(), W)):
                coordinates = self._start_near(X.detach())
        finally:
            self.is_initializing = False
            with torch.no_grad():
                X.copy_(coordinates)

    @torch.no_grad()
    def _start_near(self, W: Tensor) -> Tensor:
        """Start nearest to `W`, or where `init` says, and return the coordinates."""
        constraint = self.constraint
        manifold = constraint.manifold
        points = constraint.layout.points(W)
        Q = initial_point(manifold, points, constraint.init, None)
        return constraint.start(manifold.polish(Q))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        errors: list[str] = args[-1]
        has_base = f"{prefix}0.base" in state_dict
        replacements = self._tensors_of_other_field(state_dict, prefix)
        # Missing coordinates are not an error here: a file may store a tied weight only
        # once, under the first of its names.
        if f"{prefix}original" not in state_dict:
            pass
        elif f"{prefix}0.map" not in state_dict:
            errors.append(
                f"`{prefix}0.map` is missing. A checkpoint of your own must be the "
                f"whole `state_dict()`: the parameters do not determine the weight "
                f"without the buffers, such as the base. A checkpoint from another "
                f"library loads with `isometry.load_foreign`."
            )
        elif has_base != (getattr(self.constraint, "base", None) is not None):
            errors.append(
                f"`{prefix}0.base` must be in the checkpoint if the weight has a base, "
                f"and only then; the weight was saved "
                f"{'with' if has_base else 'without'} one. Constrain it with the map "
                f"and the `use_trivialization` that it was saved with; the layers of "
                f"`isometry.nn` have a base if they have `rebase_every` or "
                f"`rebase_radius`."
            )
        elif replacements:
            field = "complex" if self.original.is_complex() else "real"
            errors.append(
                f"`{prefix}original` must be {field}, like the weight on "
                f"{self.constraint.manifold}; the checkpoint is not. Build the model "
                f"with the dtype (an `ExpRNN` with the `unitary`) that was saved."
            )
            # Put our own tensors in place of the saved ones. In spite of the error,
            # torch would load those, and drop the imaginary part of a complex one.
            state_dict.update(replacements)
        # Forget the remembered weights, which refer to the old tensors. With
        # `set_swap_module_params_on_conversion`, torch cannot swap a tensor to which
        # something else refers.
        self.memory = Memory()
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._mark()

    def _tensors_of_other_field(
        self, state: dict[str, Any], prefix: str
    ) -> dict[str, Tensor]:
        """Our tensors that are real where the saved ones are complex, or vice versa."""
        tensors = {}
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            saved = state.get(f"{prefix}{name}")
            if isinstance(saved, Tensor) and saved.is_complex() != tensor.is_complex():
                tensors[f"{prefix}{name}"] = tensor
        return tensors

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        constraint = self.constraint
        # `fn` may change the dtype, as in `module.half()`. To find the new dtype, call
        # `fn` with an example.
        example = torch.empty(0, dtype=constraint.dtype, device=self.original.device)
        dtype = fn(example).dtype
        if dtype.is_complex != constraint.dtype.is_complex:
            raise TypeError(
                f"a constrained weight must stay real or complex; got {dtype} for a "
                f"weight of {constraint.dtype} on {constraint.manifold}. Use "
                f"`isometry.fold` first."
            )
        constraint.dtype = dtype
        old_eps = torch.finfo(self.original.dtype).eps

        def without_half(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device) if new.dtype in HALF else new

        self.memory = Memory()
        super()._apply(without_half, recurse)
        self._mark()
        # after a cast to a wider dtype, the base still has the rounding errors of the
        # narrower one
        if torch.finfo(self.original.dtype).eps < old_eps:
            constraint.repair()
        return self


def _equal(X: Tensor, Y: Tensor) -> bool:
    """Whether two tensors are equal after `nan_to_num`, which replaces NaN with 0.

    After `to_empty`, a parameter may contain NaN, which is not equal to itself.
    """
    return torch.equal(X.nan_to_num(), Y.nan_to_num())


def holds_coordinates(parameter: nn.Parameter) -> bool:
    """Whether the parameter holds coordinates, or did before a constraint was removed.

    A holder marks its parameter with the attribute `_MARK`, and marks it again after
    torch has converted, loaded or copied the module. The mark is missing if something
    else, such as FSDP, has replaced the parameter.
    """
    return getattr(parameter, _MARK, False)


def holders_of(module: nn.Module) -> dict[str, CoordinatesHolder]:
    """The holders of the weights of `module` itself, by the names of the weights."""
    lists = getattr(module, "parametrizations", None)
    items = lists.items() if isinstance(lists, nn.ModuleDict) else ()
    return {name: h for name, h in items if isinstance(h, CoordinatesHolder)}


@dataclass(frozen=True)
class Constrained:
    """A constrained weight: where it is, and what constrains it.

    Attributes:
        key: the full name of the weight inside the model, such as "encoder.0.weight".
        owner: the module that has the weight.
        name: the name of the weight in its owner.
        holder: holds the coordinates, and computes the weight.
    """

    key: str
    owner: nn.Module
    name: str
    holder: CoordinatesHolder

    @property
    def coordinates(self) -> nn.Parameter:
        """The parameter from which the weight is computed."""
        return cast("nn.Parameter", self.holder.original)

    @property
    def constraint(self) -> Trivialization | Reflections:
        """The parametrization that computes the weight."""
        return self.holder.constraint


def constrained(
    module: nn.Module, *, remove_duplicate: bool = True
) -> list[Constrained]:
    """All constrained weights inside `module`.

    Args:
        module: a module.
        remove_duplicate: whether to list a weight only once if it occurs several
            times, because it is tied or because its module is used twice.

    Returns:
        One entry for each weight; without `remove_duplicate`, one for each name.

    Raises:
        TypeError: if `module` is not a module.
    """
    check_is_module(module, remedy="Pass the model, or a constrained layer.")
    entries = {}
    for path, owner in module.named_modules(remove_duplicate=remove_duplicate):
        for name, holder in holders_of(owner).items():
            key = f"{path}.{name}" if path else name
            entry = Constrained(key, owner, name, holder)
            entries.setdefault(holder if remove_duplicate else key, entry)
    return list(entries.values())
