"""One step of the recurrence with an orthogonal weight."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from isometry._checks import check_flags
from isometry.groups import SO, AbstractGroup, U
from isometry.nn._scan import Recurrence, Weights, scan
from isometry.nn._sequence import check_rows, in_dtype_of, read
from isometry.nn._sigma import Sigma, takes_bias
from isometry.nn._steps import Steps
from isometry.parametrizations._initial import Init
from isometry.parametrizations._register import constrain

NONLINEARITIES = ("modrelu", "tanh", "relu", "identity")


class ExpRNNCell(nn.Module):
    r"""One step of `ExpRNN`: $h' = \sigma(W h + T x)$ with an orthogonal $W = \exp A$.

    As `torch.nn.RNNCell`, with one bias: for modReLU it is its threshold $b$, for the
    others it is added to $T x$. `ExpRNN` is made of such cells, one a layer and
    direction.

    Args:
        input_size: features of $x$.
        hidden_size: features of $h$.
        bias: whether there is one; without it modReLU has $b = 0$.
        nonlinearity: "modrelu", "tanh", "relu" or "identity".
        device: of the parameters.
        dtype: of the parameters, real; with `unitary` they are the complex of it.
        unitary: whether $W$ is unitary and $h$ complex, with modReLU or the identity.
        orthogonal_map: "exp", "cayley" or "pade-m", as in `isometry.orthogonal`.
        init: of $W$: "henaff" (the paper's copying task and TIMIT), "cayley" (its
            MNIST), or as in `isometry.orthogonal`.
        rebase_every: move the base of the trivialization after as many steps.
        rebase_radius: move it when the angles of $A$ exceed it. With neither, the base
            is the identity, as in the paper.
        train_h0: whether the first state is a parameter, which starts at zero.
        generator: source of the numbers of `init`.

    References:
        [LM19] section 3; [Lez19] for a moving base.
    """

    def __init__(  # noqa: PLR0917 - the order is torch's
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "modrelu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unitary: bool = False,
        orthogonal_map: str = "exp",
        init: Init = "henaff",
        rebase_every: int | None = None,
        rebase_radius: float | None = None,
        train_h0: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(input_size, hidden_size)
        check_flags(bias=bias, unitary=unitary, train_h0=train_h0)
        self.sigma: Sigma = _sigma(nonlinearity, unitary=unitary)
        self.input_size, self.hidden_size = input_size, hidden_size
        self.nonlinearity = nonlinearity
        self.unitary = unitary
        real = _checked_dtype(dtype or torch.get_default_dtype(), unitary=unitary)
        field = real.to_complex() if unitary else real
        n = hidden_size

        def room(*shape: int, dtype: torch.dtype = field) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.weight_ih = room(n, input_size)
        self.weight_hh = room(n, n)
        threshold = takes_bias(self.sigma)
        self.bias = room(n, dtype=real if threshold else field) if bias else None
        self.h0 = room(n) if train_h0 else None
        self.reset_parameters()
        moving = rebase_every is not None or rebase_radius is not None
        group: AbstractGroup = U(n) if unitary else SO(n)
        constrain(
            *(self, "weight_hh", group, orthogonal_map),
            use_trivialization=moving,
            init=init,
            generator=generator,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
        )

    def reset_parameters(self) -> None:
        """Draw all parameters anew: the recurrent weight by `init`, as at the start.

        The numbers come from torch's own generator. A folded weight becomes the
        identity.
        """
        # a write is what makes the constraint draw the weight again
        nn.init.eye_(self.weight_hh)
        # fan-in and the gain of a rectifier, shared by both parts of a complex number
        nn.init.normal_(self.weight_ih, std=math.sqrt(2 / self.input_size))
        if self.bias is not None:
            with torch.no_grad():
                size = 0.01 if takes_bias(self.sigma) else 0.0
                self.bias.uniform_(-size, size) if size else self.bias.zero_()
        if self.h0 is not None:
            nn.init.zeros_(self.h0)

    # the name is torch's
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002
        """The next state.

        Args:
            input: (batch, input_size) or (input_size,); or class indices, (batch,) or
                a single one.
            hx: (batch, hidden_size) or (hidden_size,); zeros, or the trained first
                state, if left out.
        """
        rows = read(input.unsqueeze(0), batch_first=False)
        check_rows(rows, self.input_size)
        batch = rows.steps.batch
        h = self.first_state(batch)
        x = in_dtype_of(h, rows.x, "input")
        if hx is not None:
            shape = (self.hidden_size,)
            hx = check_state(hx, (batch, *shape) if rows.batched else shape, "hx")
            h = in_dtype_of(h, hx, "hx").view(batch, self.hidden_size)
        _, last = self.scan(x, h, rows.steps, last_only=True)
        return last if rows.batched else last[0]

    def first_state(self, batch: int) -> Tensor:
        """(batch, n): the trained one, or zeros."""
        if self.h0 is not None:
            return self.h0.expand(batch, -1)
        W = self.weight_ih
        return W.new_zeros(batch, self.hidden_size)

    def scan(
        self,
        x: Tensor,
        h0: Tensor,
        steps: Steps,
        *,
        last_only: bool = False,
        chunk: int | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """States of many steps, as rows; and the last one of each sequence."""
        kernel, W, b = self.weight_ih, self.weight_hh, self.bias
        recurrence = Recurrence(steps, self.sigma, last_only, chunk)
        if b is None and takes_bias(self.sigma):
            b = torch.zeros(self.hidden_size, dtype=W.real.dtype, device=W.device)
        return scan_field(x, Weights(kernel, W, b), h0, recurrence)

    def extra_repr(self) -> str:
        """Sizes and what is not usual."""
        unitary = ", unitary" if self.unitary else ""
        return f"{self.input_size}, {self.hidden_size}, {self.nonlinearity}{unitary}"


def is_positive(size: Any) -> bool:
    """Whether it is a positive integer, and no flag."""
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def check_sizes(input_size: int, hidden_size: int) -> None:
    """Raise unless both are positive integers."""
    for name, size in (("input_size", input_size), ("hidden_size", hidden_size)):
        if not is_positive(size):
            raise ValueError(f"`{name}` must be a positive integer; got {size!r}.")


def _checked_dtype(dtype: torch.dtype, *, unitary: bool) -> torch.dtype:
    if not dtype.is_floating_point:
        raise ValueError(
            f"`dtype` must be real; got {dtype}. For complex states pass the dtype "
            f"of their real parts, with `unitary=True`."
        )
    # torch has no complex numbers of which the parts are narrower
    if unitary and dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"`dtype` must be torch.float32 or torch.float64 with `unitary=True`; got "
            f"{dtype}. Leave it out for the default."
        )
    return dtype


def _sigma(nonlinearity: str, *, unitary: bool) -> Sigma:
    if nonlinearity not in NONLINEARITIES:
        known = ", ".join(map(repr, NONLINEARITIES))
        raise ValueError(
            f"`nonlinearity` must be one of {known}; got {nonlinearity!r}. The paper's "
            f"is 'modrelu'."
        )
    if not unitary:
        return nonlinearity
    if nonlinearity in ("tanh", "relu"):
        raise ValueError(
            f"`nonlinearity` must be 'modrelu' or 'identity' with `unitary=True`; got "
            f"{nonlinearity!r}, which is for real numbers. Use 'modrelu'."
        )
    return "complex_modrelu" if nonlinearity == "modrelu" else "identity"


def check_state(hx: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """A state of the shape that was promised."""
    if not isinstance(hx, Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor; got {type(hx).__name__}.")
    if tuple(hx.shape) != shape:
        raise ValueError(
            f"`{name}` must have shape {shape}; got {tuple(hx.shape)}. Leave it out to "
            f"start at zero."
        )
    return hx


def scan_field(
    x: Tensor, weights: Weights, h0: Tensor, recurrence: Recurrence
) -> tuple[Tensor | None, Tensor]:
    """`scan`, of real or of complex weights."""
    kernel, W, b = weights
    if not W.is_complex():
        return scan(x, weights, h0, recurrence)
    if b is not None and not takes_bias(recurrence.sigma):
        b = torch.view_as_real(b).flatten()
    weights = Weights(_input_form(kernel, x), _real_form(W), b)
    H, last = scan(_real_rows(x), weights, _real_rows(h0), recurrence)
    return (None if H is None else _complex_rows(H)), _complex_rows(last)


# A complex number is a pair here, and a complex matrix a real one that does to pairs
# what it does to numbers: the same arithmetic, and one kernel for both fields.


def _real_rows(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def _complex_rows(h: Tensor) -> Tensor:
    return torch.view_as_complex(h.unflatten(-1, (-1, 2)))


def _real_form(W: Tensor) -> Tensor:
    """(2m, 2n) of (m, n): each entry a + ib as the block ((a, -b), (b, a))."""
    a, b = W.real, W.imag
    blocks = torch.stack((torch.stack((a, -b), -1), torch.stack((b, a), -1)), -3)
    # (m, 2, n, 2)
    return blocks.movedim(-3, 1).reshape(2 * W.shape[0], 2 * W.shape[1])


def _input_form(kernel: Tensor, x: Tensor) -> Tensor:
    """The kernel for pairs, of complex inputs or of real ones."""
    if x.is_complex():
        return _real_form(kernel)
    return torch.view_as_real(kernel).movedim(-1, 1).reshape(-1, kernel.shape[1])
