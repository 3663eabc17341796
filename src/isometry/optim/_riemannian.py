"""The base class of the Riemannian optimizers, which updates points in batches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from isometry._declare import points
from isometry._torch import autocast_off, is_fake
from isometry.groups import AbstractManifold, AbstractRetraction
from isometry.groups._maps import RetractionLike
from isometry.optim._checks import (
    check_gradient,
    check_manifold_is_named,
    check_options,
    check_param_group,
    check_point,
    check_saved_group,
    resolve_retraction,
)

ParamGroup = dict[str, Any]


class Past(NamedTuple):
    """Inputs of an update rule, besides the gradient.

    `state` holds the tangent vectors and the averages of squares from the previous
    step, and may be empty at the first step. `step` counts from 1. `square` computes
    the squares of a tangent vector's entries, or the mean of these squares.
    """

    state: dict[str, Tensor]
    step: int
    square: Callable[[Tensor], Tensor]

    def unused(self, name: str) -> dict[str, Tensor]:
        """A copy of a tangent vector that this step does not use, keyed by its name.

        A rule returns the copy among the vectors of its update, so that it is
        transported. Otherwise the vector would be tangent at an old point when a later
        step uses it again. The dictionary is empty if the state has no such vector.
        """
        return {name: self.state[name].clone()} if name in self.state else {}


@dataclass(frozen=True)
class Update:
    """What an update rule returns: a step `scale * direction`, and the new state."""

    direction: Tensor
    scale: float | Tensor
    #: new tangent vectors of the state, which are transported with the point
    vectors: dict[str, Tensor] = field(default_factory=dict)
    #: new averages of squares, which are not transported
    squares: dict[str, Tensor] = field(default_factory=dict)
    #: value of the averages of squares before the first step
    start: float = 0.0


class AbstractRiemannian(Optimizer, ABC):
    """An optimizer for plain parameters and for points on manifolds.

    A parameter group with `manifold=None` is plain, and gets an ordinary update, as in
    torch's optimizer. In any other parameter group, all parameters are points on its
    manifold. If the optimizer itself gets no `manifold`, at least one parameter group
    must have this option, with a manifold or with None as its value.
    """

    def __init__(self, params: ParamsT, **defaults: Any) -> None:
        check_options(defaults)
        # `list` would split a single tensor into rows. Leave the tensor as it is, so
        # that torch's own `__init__` rejects it.
        if not isinstance(params, Tensor):
            entries: list[Any] = list(params)
            check_manifold_is_named(entries, defaults["manifold"], type(self).__name__)
            params = entries
        super().__init__(params, defaults)

    @abstractmethod
    def _plain_step(self, group: ParamGroup) -> None:
        """Update the parameters of a plain parameter group."""

    @abstractmethod
    def _rule(self, g: Tensor, past: Past, group: ParamGroup) -> Update:
        """The update for the gradients `g`, which are real and may be overwritten."""

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a parameter group, as torch does, if its manifold and points are valid.

        Args:
            param_group: `params`, and the options that differ from the defaults, such
                as `manifold` and `retraction`.

        Raises:
            TypeError: if `manifold` is not a manifold, a parameter is real and the
                manifold is complex, or the other way round, or a parameter on a
                manifold is sharded or in half precision.
            ValueError: if a parameter is not on its manifold, the retraction is not
                known, or an option is out of range.
        """
        super().add_param_group(param_group)
        try:
            check_options(self.param_groups[-1])
            check_param_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one optimization step.

        Args:
            closure: a function that evaluates the model again, calls `backward` and
                returns the loss.

        Returns:
            The loss that the closure returned; None without a closure.

        Raises:
            TypeError: if a gradient is sparse (only `RiemannianSGD` accepts sparse
                gradients, and only for plain parameters), or if a plain parameter group
                contains a parameter that `isometry.declare` has put on a manifold.
            ValueError: if a parameter is not on its manifold at its first step.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["manifold"] is None:
                self._plain_step(group)
                continue
            for params, step in self._batches(group):
                with autocast_off(params[0].device):
                    self._advance(group, params, step)
        return loss

    def _plain_state(
        self, group: ParamGroup, **buffers: float
    ) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
        """Plain parameters that have a gradient, their gradients, and lists of state.

        The first list of state holds the step counts. One list follows for each of
        `buffers`, which maps the name of a buffer to the initial value of its entries.
        """
        params, gradients = with_gradients(group["params"])
        for p, gradient in zip(params, gradients, strict=True):
            check_gradient(gradient, of=f"parameters of {type(self).__name__}")
            state = self.state[p]
            if "step" not in state:
                state["step"] = _count(0.0)
            for name, start in buffers.items():
                if name not in state:
                    parts = complex(start, start) if p.is_complex() else start
                    state[name] = torch.full_like(p, parts)
        names = ("step", *buffers)
        lists = [[self.state[p][name] for p in params] for name in names]
        return params, gradients, lists

    def _batches(self, group: ParamGroup) -> Iterator[tuple[list[Tensor], int]]:
        """Yield the parameters that have a gradient, in batches, and count their steps.

        The parameters of a batch have equal shapes, dtypes, devices and step counts.
        Each batch comes with its step count. Parameters without entries are left out.
        """
        batches: dict[Any, list[Tensor]] = {}
        nonempty = [p for p in group["params"] if p.numel() > 0]
        params, gradients = with_gradients(nonempty)
        for p, gradient in zip(params, gradients, strict=True):
            check_gradient(gradient)
            if not self.state.get(p):
                check_point(p, group["manifold"])
        for p in params:
            state = self.state[p]
            if "step" not in state:
                state["step"] = _count(0.0)
            state["step"] += 1
            key = (p.shape, p.dtype, p.device, frozenset(state), int(state["step"]))
            batches.setdefault(key, []).append(p)
        for (*_, step), batch in batches.items():
            yield batch, step

    def _advance(self, group: ParamGroup, params: list[Tensor], step: int) -> None:
        """Update parameters of equal shape together, as one batch of points."""
        manifold = group["manifold"]
        frame = manifold.frame()
        Q = _join([_flat(p, manifold) for p in params])
        _, gradients = with_gradients(params)
        G = _join([_flat(gradient, manifold) for gradient in gradients])
        names = self.state[params[0]].keys() - {"step"}
        old = {name: _join([self.state[p][name] for p in params]) for name in names}
        g = frame.gradient(Q, -G if group["maximize"] else G)
        update = self._rule(g, Past(old, step, frame.square), group)
        P, vectors = frame.advance(
            Q, update.direction, update.scale, update.vectors, group["retraction"]
        )
        if step % frame.polish_every == 0:
            P = manifold.polish(P)
        new = vectors | update.squares
        if not _all_finite(P, *new.values()):
            ok = _finite(P, *new.values())
            P = _choose(ok, P, Q)
            for name, value in new.items():
                start = update.start if name in update.squares else 0.0
                before = old.get(name, torch.full_like(value, start))
                new[name] = _choose(ok, value, before)
        for p, point in zip(params, _part(P, len(params)), strict=True):
            target = points(p, manifold)
            target.copy_(point.reshape(target.shape))
        for name, value in new.items():
            for p, part in zip(params, _part(value, len(params)), strict=True):
                if name in old:
                    self.state[p][name].copy_(part)
                else:
                    self.state[p][name] = part.clone()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, with retractions as maps and step counts as tensors.

        In `state`, a retraction may be a name, as in the result of `state_dict`. In
        older formats, a step count may be a number instead of a tensor.

        Args:
            state: the state, from a pickle or from `load_state_dict`.
        """
        super().__setstate__(state)
        for group in self.param_groups:
            resolve_retraction(group)
        for values in self.state.values():
            step = values.get("step")
            if step is not None and not isinstance(step, Tensor):
                values["step"] = _count(float(step))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, with manifolds and retractions as names.

        Returns:
            The state, for `load_state_dict` of an optimizer with the same manifolds.
        """
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group["manifold"] = _manifold_name(group["manifold"])
            group["retraction"] = _map_name(group["retraction"])
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`, on the manifolds of this optimizer.

        Args:
            state_dict: the result of `state_dict`, from this class or torch's.

        Raises:
            ValueError: if a parameter group was on a different manifold, or was trained
                with decoupled weight decay (AdamW) or by centered RMSprop, which these
                optimizers do not have.
        """
        groups = [dict(group) for group in state_dict["param_groups"]]
        for ours, theirs in zip(self.param_groups, groups, strict=False):
            check_saved_group(theirs, _manifold_name(ours["manifold"]))
            theirs["manifold"] = ours["manifold"]
            # keep the optimizer's map if its name agrees with the checkpoint, because a
            # map that a user has written cannot be found by name
            if theirs.get("retraction") == _map_name(ours["retraction"]):
                theirs["retraction"] = ours["retraction"]
            # checkpoints from torch's optimizers lack some options; use our own values
            theirs |= {name: ours[name] for name in ours.keys() - theirs.keys()}
        super().load_state_dict({**state_dict, "param_groups": groups})


def with_gradients(params: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that have a gradient, and their gradients."""
    pairs = [(p, p.grad) for p in params if p.grad is not None]
    return [p for p, _ in pairs], [gradient for _, gradient in pairs]


def _count(steps: float) -> Tensor:
    """A step count. As in torch, it is on the CPU, because every step reads it."""
    return torch.tensor(steps, dtype=torch.float32, device="cpu")


def _map_name(phi: RetractionLike) -> str:
    return phi.name if isinstance(phi, AbstractRetraction) else phi


def _manifold_name(manifold: AbstractManifold | None) -> str | None:
    return None if manifold is None else repr(manifold)


def _flat(X: Tensor, manifold: AbstractManifold) -> Tensor:
    """Points, or their gradients, reshaped to have exactly one batch axis."""
    return points(X, manifold).reshape(-1, *manifold.shape)


def _join(tensors: list[Tensor]) -> Tensor:
    """The tensors, joined into one batch. A single tensor is returned unchanged."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _part(X: Tensor, number: int) -> Sequence[Tensor]:
    """A batch split into `number` equal parts: the inverse of `_join`."""
    return (X,) if number == 1 else X.chunk(number)


def _all_finite(Q: Tensor, *state: Tensor) -> bool:
    """Whether the sum of all entries is finite.

    With a sum, only one number must be read from the device. The result is also False
    if the sum of finite entries overflows, and for fake tensors, which have no values.
    """
    total = sum((X.sum() for X in state), Q.sum())
    return not is_fake(total) and bool(total.isfinite())


def _finite(Q: Tensor, *state: Tensor) -> Tensor:
    """For each point, whether its entries and those of its state are finite.

    As in `_all_finite`, the sum of the entries is tested.
    """
    sums = (X.flatten(1).sum(1) for X in state)
    return sum(sums, Q.flatten(1).sum(1)).isfinite()


def _choose(ok: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """For each point, the new value if `ok` is True, otherwise the old one."""
    axes = (1,) * (new.ndim - 1)
    return torch.where(ok.view(-1, *axes), new, old)
