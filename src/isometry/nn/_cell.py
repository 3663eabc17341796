"""What a cell is: one layer and direction of a recurrent network."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from isometry.nn._steps import Steps


class AbstractCell(nn.Module):
    """One layer and direction of an `AbstractRecurrent` network.

    A state is a matrix (batch, n), or a tuple of them with the output first.

    Attributes:
        input_size: features of an input.
        hidden_size: features of a state.
        redundant: real numbers among the parameters on which nothing depends, or that
            others determine. A count of free parameters leaves them out.
    """

    input_size: int
    hidden_size: int
    redundant: int = 0

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw all parameters anew, from torch's own generator."""

    @abstractmethod
    def first_state(self, batch: int) -> Any:
        """The state before the first step: zeros, or what the cell has trained."""

    @abstractmethod
    def scan(
        self,
        x: Tensor,
        first: Any,
        steps: Steps,
        *,
        last_only: bool = False,
        chunk: int | None = None,
    ) -> tuple[Tensor | None, Any]:
        """Run many steps.

        Args:
            x: inputs of all steps, as rows.
            first: the first state.
            steps: how many rows each step has.
            last_only: return no outputs, only the last state.
            chunk: with `last_only`, keep one state in so many for the backward pass.

        Returns:
            The outputs of all steps as rows, or None for `last_only`; and the last
            state of each sequence.
        """

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """The matrix (n, n) that a step applies to its state, or the first of several.

        Gradients go through it where the cell trains it.
        """


def is_positive(size: Any) -> bool:
    """True for a positive integer; True itself is none."""
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def check_sizes(input_size: int, hidden_size: int) -> None:
    """Raise unless both are positive integers."""
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if not is_positive(size):
            raise ValueError(f"`{name}` must be a positive integer; got {size!r}.")


def check_state(hx: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """Return a state that was passed in, if it has the right shape."""
    if not isinstance(hx, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor; got {type(hx).__name__}.")
    if tuple(hx.shape) != shape:
        raise ValueError(
            f"`{name}` must have shape {shape}; got {tuple(hx.shape)}. Leave it out to "
            f"start at zero."
        )
    return hx
