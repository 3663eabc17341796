"""Who tells whether tensors have changed: their bytes, or torch's version counters."""

from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from isometry._native import same_bytes
from isometry._native._snapshot import Copy, Snapshot, copyable

_steps = 0
_hooks: list[Any] = []


def install_hook() -> None:
    """Let a step of any optimizer count as a change, where versions are believed."""
    if not _hooks:
        _hooks.append(register_optimizer_step_post_hook(_count))


def _count(*_: Any) -> None:
    global _steps  # noqa: PLW0603 - a count is what it is
    _steps += 1


def steps_made() -> int:
    """How many steps optimizers have made since the hook is there."""
    return _steps


class Versions:
    """What torch knows of changes to tensors whose bytes cannot be compared."""

    copies: tuple[Copy, ...] = ()

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors
        self._then = self._now()

    def unchanged(self) -> bool:
        """Whether torch has seen no write."""
        return self._then == self._now()

    def _now(self) -> list[object]:
        return [
            (
                t._version,  # noqa: SLF001 - torch has no other
                t.shape,
                t.stride(),
                0 if t.is_meta else t.data_ptr(),
                # fused optimizers leave the version of a parameter as it is
                _steps if t.requires_grad else 0,
            )
            for t in self.tensors
        ]


Watch = Snapshot | Versions


def watch(tensors: tuple[Tensor, ...], *, known: Watch | None = None) -> Watch:
    """Begin to watch tensors.

    Args:
        tensors: tensors that are read, not written, until this returns.
        known: another watch, whose copies are taken where they are still true.

    Returns:
        A comparison of bytes on the CPU, elsewhere one of version counters.
    """
    if not all(map(copyable, tensors)):
        return Versions(tensors)
    compare = same_bytes()
    copies = {} if known is None else {id(c.tensor): c for c in known.copies}
    true = {i: c for i, c in copies.items() if Snapshot((c,), compare).unchanged()}
    return Snapshot([true.get(id(t)) or Copy(t) for t in tensors], compare)


def holds(before: Watch | None, tensors: tuple[Tensor, ...]) -> bool:
    """Whether a watch is over these tensors, and has seen no change."""
    if before is None or len(before.tensors) != len(tensors):
        return False
    same = all(a is b for a, b in zip(before.tensors, tensors, strict=True))
    return same and before.unchanged()
