"""The list that torch's parametrize keeps: coordinates, and what constrains them."""

from typing import Any, NoReturn, cast
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.utils.parametrize import ParametrizationList

from isometry.parametrizations._cache import Memory, once
from isometry.parametrizations._constraint import HALF, AbstractConstraint
from isometry.parametrizations._trivialization import Trivialization

# all there are, for as long as they are in use; a deepcopy enters itself
COORDINATES: "WeakSet[Coordinates]" = WeakSet()


class Coordinates(ParametrizationList):
    """Holds the coordinates, as `original`; a cast to half precision spares them."""

    # what was handed out before; `enter` makes it, for torch makes the list
    memory: Memory

    @property
    def constraint(self) -> AbstractConstraint:
        """What makes a weight of the coordinates."""
        return cast("AbstractConstraint", self[0])

    def forward(self) -> Tensor:
        """The weight: computed, or from memory."""
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            self.__prepare_scriptable__()
        # another parametrization on top of ours is not ours to remember
        if len(self) > 1:
            return super().forward()
        return self.constrained_weight()

    def constrained_weight(self) -> Tensor:
        """The weight without whatever another parametrization makes of it."""
        # not by attribute, which in a module takes as long as all the rest of a read
        constraint: Any = self._modules["0"]
        X = cast("Tensor", self._parameters["original"])
        # a graph must not depend on what is remembered
        if torch.compiler.is_compiling():
            return constraint(X)
        return once(self.memory, X, constraint)

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by `torch.jit.script`, before it looks into the module."""
        raise TypeError(
            f"the module must have plain weights for TorchScript; got one with a "
            f"weight on {self.constraint.manifold}. Give it "
            f"`isometry.fold(copy.deepcopy(module))`, or use `torch.export`."
        )

    @torch.no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Assign a weight."""
        if len(self) > 1:
            super().right_inverse(value)
            return
        # torch compares dtypes, but a half-precision weight does not tell that of its
        # coordinates: float64, if the module was in double precision before
        self.original.copy_(self.constraint.right_inverse(value))

    def enter(self) -> None:
        """Be known to `COORDINATES`, and begin to remember."""
        COORDINATES.add(self)
        self.memory = Memory()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.enter()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        constraint = self.constraint
        weight = torch.empty(0, dtype=constraint.dtype, device=self.original.device)
        dtype = fn(weight).dtype
        if dtype.is_complex != constraint.dtype.is_complex:
            raise TypeError(
                f"a constrained weight must stay real or complex; got {dtype} for a "
                f"weight of {constraint.dtype} on {constraint.manifold}. Use "
                f"`isometry.fold` first."
            )
        constraint.dtype = dtype
        before = self.original.dtype

        def spare(t: Tensor) -> Tensor:
            new = fn(t)
            return t.to(new.device) if new.dtype in HALF else new

        self.memory = Memory()
        super()._apply(spare, recurse)
        wider = torch.finfo(self.original.dtype).eps < torch.finfo(before).eps
        if wider and isinstance(constraint, Trivialization):
            constraint.polish()
        return self
