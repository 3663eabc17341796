"""`ExpRNN`, the recurrent network of [LM19], with its cell and its nonlinearity."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor, nn

from isometry._backend.nonlinearities import Sigma, complex_modrelu, modrelu
from isometry._checks import check_flags
from isometry._dtypes import PRECISIONS
from isometry.groups import SO, AbstractGroup, MapLike, U
from isometry.nn._as_torch import AbstractNamedCell, AbstractNamedRecurrent
from isometry.nn._cell import FactoryOptions, Nonlinearity, State, check_choice
from isometry.nn._recurrent import forget_factory_options
from isometry.nn._scan import Weights, scan
from isometry.nn._sequence import Pass, cast_input, cast_state, check_rows, read_step
from isometry.parametrizations._initial import Init
from isometry.parametrizations._register import constrain


class ModReLU(nn.Module):
    r"""$\sigma(z) = \frac{z}{|z|} \max(|z| + b, 0)$, with a learned $b$ per feature.

    It keeps the sign of a real number and the phase of a complex number, so it commutes
    with multiplication by phases. $\sigma(0) = 0$, and the gradient at 0 is zero.

    A recurrent layer with complex modReLU saves only $\sigma(z)$, and its backward pass
    computes $|z|$ as $|\sigma(z)| - b$. If $0 < |z| \ll b$, few digits of $|z|$ are
    left. The derivative perpendicular to $z$, which is $1 + b / |z|$, then has a
    relative error of up to $\epsilon b / |z|$, where $\epsilon$ is the machine
    precision.

    Args:
        features: size of the last axis.
        device: device of $b$.
        dtype: dtype of $b$, which is real even for complex inputs.

    References:
        [ASB16]; [LM19] for the initial $b$, uniform in $(-0.01, 0.01)$.
    """

    def __init__(
        self,
        features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new values for $b$."""
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def forward(self, z: Tensor) -> Tensor:
        """Apply modReLU to a tensor whose last axis holds the features."""
        if z.shape[-1:] != self.bias.shape:
            raise ValueError(
                f"`z` must have {self.features} features on its last axis; got shape "
                f"{tuple(z.shape)}. Create a ModReLU with that many features."
            )
        return (complex_modrelu if z.is_complex() else modrelu)(z, self.bias)

    def extra_repr(self) -> str:
        """The number of features."""
        return str(self.features)


class ExpRNNCell(AbstractNamedCell):
    r"""One time step of `ExpRNN`: $h' = \sigma(W h + T x)$ with an orthogonal $W$.

    It is like `torch.nn.RNNCell`, but has only one bias. For modReLU this bias is the
    threshold $b$; for other nonlinearities it is added to $T x$. An `ExpRNN` has one
    cell for each layer and direction. The weight is $W = B\,\phi(A)$ with a base $B$, a
    retraction $\phi$, and a skew matrix $A$, whose coordinates are trained.

    Args:
        input_size: number of features of $x$.
        hidden_size: number of features of $h$.
        bias: whether there is a bias; without it, modReLU has $b = 0$.
        nonlinearity: "modrelu", "tanh", "relu" or "identity".
        device: device of the parameters.
        dtype: real dtype of the parameters; with `unitary`, the dtype of their real and
            imaginary parts.
        unitary: whether $W$ is unitary and $h$ complex. The nonlinearity must then be
            "modrelu" or "identity".
        retraction: "exp", "cayley", "pade-m" with a degree m, or a map object, as in
            `isometry.orthogonal`.
        init: how $W$ is initialized: "henaff", "cayley", or any other `init` of
            `isometry.orthogonal`. [LM19] uses "henaff" for copying and TIMIT, and
            "cayley" for MNIST.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle of the
            coordinates exceeds this radius. If both `rebase_every` and `rebase_radius`
            are None, the base is the identity, as in [LM19].
        train_h0: whether the initial state is learned. It starts at zero.
        generator: source of the random numbers for `init`.

    Raises:
        TypeError: if a flag is not True or False.
        ValueError: if another option has an invalid value.

    References:
        [LM19] section 3; [Lez19] for a moving base.
    """

    def __init__(  # noqa: PLR0917 - positional, in torch's order
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Nonlinearity = "modrelu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        unitary: bool = False,
        retraction: MapLike = "exp",
        init: Init = "henaff",
        rebase_every: int | None = None,
        rebase_radius: float | None = None,
        train_h0: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_flags(bias=bias, unitary=unitary, train_h0=train_h0)
        self.sigma = _sigma(nonlinearity, unitary=unitary)
        self.nonlinearity = nonlinearity
        self.unitary = unitary
        real = dtype or torch.get_default_dtype()
        _check_dtype(real, unitary=unitary)
        field = real.to_complex() if unitary else real
        n = hidden_size

        def empty(*shape: int, dtype: torch.dtype = field) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        self.weight_ih = empty(n, input_size)
        self.weight_hh = empty(n, n)
        threshold = self.sigma.takes_threshold()
        self.bias = empty(n, dtype=real if threshold else field) if bias else None
        self.h0 = empty(n) if train_h0 else None
        self.reset_parameters()
        moving = rebase_every is not None or rebase_radius is not None
        group: AbstractGroup = U(n) if unitary else SO(n)
        constrain(
            self,
            "weight_hh",
            group,
            retraction,
            use_trivialization=moving,
            init=init,
            generator=generator,
            rebase_every=rebase_every,
            rebase_radius=rebase_radius,
        )

    def reset_parameters(self) -> None:
        """Draw new values for all parameters, in the same way as the constructor.

        The numbers come from torch's default generator. If `isometry.fold` has
        removed the constraint, the recurrent weight becomes the identity.
        """
        # The constraint, if there is one, notices this write. At the end of this method
        # it replaces the identity with the weight that `init` asks for.
        nn.init.eye_(self.weight_hh)
        # variance 2 / fan-in, as for ReLU; the real and the imaginary part of a complex
        # number each have half of this variance
        nn.init.normal_(self.weight_ih, std=math.sqrt(2 / self.input_size))
        if self.bias is not None and self.sigma.takes_threshold():
            nn.init.uniform_(self.bias, -0.01, 0.01)
        elif self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.h0 is not None:
            nn.init.zeros_(self.h0)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:  # noqa: A002 - named as in torch
        """Return the next state.

        Args:
            input: (batch, input_size) or (input_size,); or class indices, (batch,) or
                a single index.
            hx: (batch, hidden_size) or (hidden_size,); by default, zeros or the
                learned initial state.
        """
        rows = read_step(input)
        check_rows(rows, self.input_size)
        batch = rows.time_steps.batch
        (h,) = self.first_state(batch)
        x = cast_input(h, rows.x)
        if hx is not None:
            n = self.hidden_size
            shape = (batch, n) if rows.batched else (n,)
            h = cast_state(h, hx, shape).view(batch, n)
        _, (last,) = self.scan(x, (h,), Pass(rows.time_steps, last_only=True))
        return last if rows.batched else last[0]

    def scan(self, x: Tensor, first: State, run: Pass) -> tuple[Tensor | None, State]:
        """All states as rows (None with `last_only`), and the last of each sequence."""
        T, W, b = self.weight_ih, self.weight_hh, self.bias
        if b is None and self.sigma.takes_threshold():
            b = torch.zeros(self.hidden_size, dtype=W.real.dtype, device=W.device)
        H, last = scan(x, Weights(T, W, b, self.sigma), first[0], run)
        return H, (last,)

    def recurrent_matrix(self) -> Tensor:
        """The orthogonal or unitary weight."""
        return self.weight_hh

    def torch_biases(self, bias: Tensor) -> dict[str, Tensor]:
        """The threshold for modReLU; otherwise the bias and a second bias of zeros."""
        if self.sigma.takes_threshold():
            return {"bias": bias}
        return {"bias_ih": bias, "bias_hh": torch.zeros_like(bias)}

    def extra_repr(self) -> str:
        """The sizes, the nonlinearity, and whether states are complex."""
        unitary = ", unitary" if self.unitary else ""
        return f"{self.input_size}, {self.hidden_size}, {self.nonlinearity}{unitary}"


def _check_dtype(dtype: torch.dtype, *, unitary: bool) -> None:
    # torch has no complex bfloat16, and many operations do not support complex32
    if unitary and dtype not in PRECISIONS:
        raise ValueError(
            f"`dtype` must be torch.float32 or torch.float64 with `unitary=True`; got "
            f"{dtype}. It is the dtype of the real parts; leave it out for the default."
        )
    if not dtype.is_floating_point:
        raise ValueError(
            f"`dtype` must be real; got {dtype}. For complex states pass the dtype "
            f"of their real parts, with `unitary=True`."
        )


def _sigma(nonlinearity: Nonlinearity, *, unitary: bool) -> Sigma:
    """The nonlinearity in the form that `scan` takes.

    Raises:
        ValueError: if the nonlinearity is unknown, or not defined for complex states.
    """
    remedy = "The paper uses 'modrelu'."
    check_choice("nonlinearity", nonlinearity, get_args(Nonlinearity), remedy)
    if not unitary:
        return Sigma(nonlinearity)
    if nonlinearity in ("tanh", "relu"):
        raise ValueError(
            f"`nonlinearity` must be 'modrelu' or 'identity' with `unitary=True`; got "
            f"{nonlinearity!r}, which is defined for real numbers only."
        )
    return Sigma("complex_modrelu" if nonlinearity == "modrelu" else "identity")


@forget_factory_options
@dataclass(eq=False, repr=False)
class ExpRNN(AbstractNamedRecurrent):
    r"""A recurrent network with an orthogonal (or unitary) recurrent weight.

    $$ h_{t+1} = \sigma(\exp(A)\, h_t + T x_{t+1}), \qquad A^H = -A. $$

    Training changes the free coordinates of $A$. Another retraction $\phi$ replaces
    $\exp(A)$ with $\phi(A)$. With a moving base $B$, the weight is $B \exp(A)$.
    The layer is called like `torch.nn.RNN`, with the same arguments, shapes and weight
    names (`weight_hh_l0` and so on, read-only; the parameters are in `cells`).
    Two things differ. First, a cell has one bias vector, as explained in `ExpRNNCell`.
    Second, the default nonlinearity is modReLU, which unlike tanh is not bounded:
    states can grow with the number of time steps, which makes initial losses larger.

    If the nonlinearity is "tanh" or "relu", `isometry.load_foreign` loads checkpoints
    from `nn.RNN`, and replaces the recurrent weight with the nearest rotation;
    `to_torch` returns an `nn.RNN`.

    A product with the recurrent weight neither shrinks nor enlarges gradients, and the
    weight stays orthogonal under any torch optimizer. Give its coordinates a smaller
    learning rate with `isometry.param_groups`.

    Args:
        input_size: number of features of the input.
        hidden_size: number of features of the state.
        num_layers: number of layers; each reads the outputs of the previous layer.
        nonlinearity: "modrelu", "tanh", "relu" or "identity".
        bias: whether cells have a bias, which is the threshold $b$ for modReLU.
        batch_first: whether the batch comes before time.
        dropout: probability of dropout between layers.
        bidirectional: whether a second cell reads each layer's input backwards.
        device: device of the parameters.
        dtype: real dtype of the parameters; with `unitary`, the dtype of their real and
            imaginary parts.
        unitary: whether the recurrent weight is unitary and the states are complex. The
            nonlinearity must then be "modrelu" or "identity".
        retraction: "exp", "cayley", "pade-m" with a degree m, or a map object, as in
            `isometry.orthogonal`.
        init: how the recurrent weight is initialized: "henaff", "cayley", or any other
            `init` of `isometry.orthogonal`. [LM19] uses "henaff" for copying and TIMIT,
            and "cayley" for MNIST.
        rebase_every: move the base to the weight after this many optimizer steps.
        rebase_radius: move the base when an estimate of the largest angle of $A$
            exceeds this radius. If both `rebase_every` and `rebase_radius` are None,
            the base is the identity, as in [LM19].
        train_h0: whether the initial state is learned. It starts at zero.
        last_only: whether to return only the last output, on a time axis of length 1.
            With two directions, it contains the final state of each direction.
        chunk: with `last_only`, the last layer stores only every `chunk`-th state, and
            the backward pass recomputes the others. This saves memory.
        generator: source of the random numbers for `init`.

    Raises:
        TypeError: if a flag is not True or False.
        ValueError: if another option has an invalid value.

    References:
        [LM19]; [Lez19] for a moving base.
    """

    input_size: int
    hidden_size: int
    num_layers: int = 1
    nonlinearity: Nonlinearity = "modrelu"
    bias: bool = True
    batch_first: bool = False
    dropout: float = 0.0
    bidirectional: bool = False
    device: InitVar[torch.device | str | None] = None
    dtype: InitVar[torch.dtype | None] = None
    _: KW_ONLY
    last_only: bool = False
    retraction: MapLike = "exp"
    init: Init = "henaff"
    rebase_every: int | None = None
    rebase_radius: float | None = None
    unitary: bool = False
    train_h0: bool = False
    chunk: int | None = None
    generator: InitVar[torch.Generator | None] = None

    @property
    def mode(self) -> str:
        """The kind of cell, named in torch's manner."""
        return f"RNN_{self.nonlinearity.upper()}"

    def _make_cell(self, inputs: int, factory: FactoryOptions) -> ExpRNNCell:
        return ExpRNNCell(
            inputs,
            self.hidden_size,
            bias=self.bias,
            nonlinearity=self.nonlinearity,
            unitary=self.unitary,
            retraction=self.retraction,
            init=self.init,
            rebase_every=self.rebase_every,
            rebase_radius=self.rebase_radius,
            train_h0=self.train_h0,
            **factory,
        )

    def torch_class(self) -> Callable[..., nn.RNNBase]:
        """`nn.RNN`, with the nonlinearity of this layer.

        Raises:
            ValueError: if `nn.RNN` does not have this nonlinearity.
        """
        if self.nonlinearity not in ("tanh", "relu"):
            field = "complex" if self.unitary else "real"
            raise ValueError(
                f"`nonlinearity` must be 'tanh' or 'relu' to exchange weights with "
                f"`nn.RNN`; got {self.nonlinearity!r}, with {field} states. Build the "
                f"layer with the nonlinearity of the `nn.RNN`, usually 'tanh'."
            )
        return partial(nn.RNN, nonlinearity=self.nonlinearity)
