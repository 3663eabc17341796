r"""The recurrence $h_t = \sigma(W h_{t-1} + T x_t)$ with a hand-written backward pass.

Autograd would save all intermediate results of every time step, and its backward pass
would consist of many small operations. Here only the states are saved, because the
derivative of $\sigma$ can be computed from its value; for smooth modReLU, the modulus
of each argument is saved, too. With `last_only`, sequences of more than `chunk` time
steps are cut into chunks. Then only the state before each chunk is saved, and the
backward pass computes the other states again. A complex state is stored as a row of
pairs of real numbers, so the same functions of real matrices compute real and complex
states.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isometry._backend import Recurrence, TimeSteps, backend_for
from isometry._backend.memory import recycled
from isometry._backend.nonlinearities import (
    NONLINEARITIES,
    Sigma,
    complex_rows,
    real_rows,
)
from isometry._torch import autocast_off, is_batched_gradient, needs_plain_operations
from isometry.nn._sequence import Pass

# With at most this many classes, the gradient with respect to the input weight T is
# computed as a product with one-hot vectors, and with more classes by `index_add_`.
_FEW_CLASSES = 64


class Weights(NamedTuple):
    """The weights and the nonlinearity of a recurrence.

    `T` is (n, inputs), and `W` is (n, n). The bias `b` is (n,) or None: for modReLU it
    is the threshold, for other nonlinearities it is added to T x. If complex states are
    stored as pairs, n counts real numbers, and a threshold is (n / 2,).
    """

    T: Tensor
    W: Tensor
    b: Tensor | None
    sigma: Sigma

    # these are methods, because Dynamo in torch 2.7 cannot trace a property of a named
    # tuple
    def threshold(self) -> Tensor | None:
        """The bias if it is the threshold of modReLU, otherwise None."""
        return self.b if self.sigma.takes_threshold() else None

    def summand(self) -> Tensor | None:
        """The bias if it is added to T x, otherwise None."""
        return None if self.sigma.takes_threshold() else self.b

    def recurrence(
        self, h0: Tensor, time_steps: TimeSteps, m: Tensor | None
    ) -> Recurrence:
        """The recurrence as a backend expects it.

        `m` is memory for the moduli of smooth modReLU; None for other nonlinearities.
        """
        return Recurrence(self.W, self.sigma, self.threshold(), h0, time_steps, m)


def scan(
    x: Tensor, weights: Weights, h0: Tensor, run: Pass
) -> tuple[Tensor | None, Tensor]:
    r"""States of $h_t = \sigma(W h_{t-1} + T x_t)$ as rows; W is real or complex.

    Args:
        x: (rows, inputs), or (rows,) class indices.
        weights: T, W, the bias and the nonlinearity.
        h0: the initial states, (batch, n).
        run: which rows belong to which time step, and what to return.

    Returns:
        All states, (rows, n), or None for `last_only`; and the last state of each
        sequence, (batch, n).
    """
    T, W, b, sigma = weights
    if W.is_complex():
        # A bias that is added to T x is complex, and becomes real pairs. A threshold is
        # real, so `real_rows` does not change it.
        b = None if b is None else real_rows(b)
        pairs = Weights(input_form(T, x), real_form(W), b, sigma)
        H, last = scan(real_rows(x), pairs, real_rows(h0), run)
        return (None if H is None else complex_rows(H)), complex_rows(last)
    with autocast_off(h0.device):
        tensors = (x, T, W, b, h0)
        # the kernels do not accept an empty batch
        if not run.time_steps.batch or needs_plain_operations(*tensors):
            return unrolled(x, weights, h0, run)
        tensors = (None if X is None else X.contiguous() for X in tensors)
        return Scan.apply(sigma, run, *tensors)


def unrolled(
    x: Tensor, weights: Weights, h0: Tensor, run: Pass
) -> tuple[Tensor | None, Tensor]:
    """Compute what `scan` returns, with ordinary torch operations.

    This is for second derivatives, batched gradients, empty batches, and all cases in
    which `needs_plain_operations` is true, such as `torch.func` and compilers.
    """
    T, W, _, (name, epsilon) = weights
    threshold = weights.threshold()
    activate = NONLINEARITIES[name].function
    states = []
    h = h0
    for u_t in input_drive(x, T, weights.summand()).split(run.time_steps.sizes):
        h = activate(h[: u_t.shape[0]] @ W.mT + u_t, threshold, epsilon)
        states.append(h)
    H = torch.cat(states)
    return (None if run.last_only else H), run.time_steps.last(H)


class Scan(torch.autograd.Function):
    """`scan` as an autograd function, with a hand-written backward pass."""

    @staticmethod
    def forward(
        ctx: Any, sigma: Sigma, run: Pass, *tensors: Any
    ) -> tuple[Tensor | None, Tensor]:
        x, T, W, b, h0 = tensors
        weights = Weights(T, W, b, sigma)
        time_steps, last_only, chunk = run
        cuts = time_steps.cut(chunk if last_only else None)
        # Save the state before each chunk. If there is only one chunk, also save all
        # states H and, for smooth modReLU, the moduli m of its arguments.
        firsts = []
        last = torch.empty_like(h0)
        H, m = h0, None
        for part, rows in cuts:
            firsts.append(last[: part.batch].clone() if firsts else h0)
            H, m = _states(x[rows], weights, firsts[-1], part)
            last[: part.batch] = part.last(H)
        ctx.set_materialize_grads(False)
        ctx.sigma = sigma
        ctx.run = run
        ctx.cuts = cuts
        states = (H, m) if len(cuts) == 1 else (None, None)
        ctx.save_for_backward(*tensors[:4], *states, *firsts)
        return (None if last_only else H), last

    @staticmethod
    def backward(ctx: Any, dH: Tensor | None, dh_last: Tensor | None) -> tuple:
        if dH is None and dh_last is None:
            return (None,) * len(ctx.needs_input_grad)
        cotangents = [g for g in (dH, dh_last) if g is not None]
        # `scan` turned autocast off only for the forward pass
        with autocast_off(cotangents[0].device):
            if torch.is_grad_enabled() or any(map(is_batched_gradient, cotangents)):
                return (None, None, *_adjoint(ctx, dH, dh_last))
            return (None, None, *Scan._gradients(ctx, dH, dh_last))

    @staticmethod
    def _gradients(ctx: Any, dH: Tensor | None, dh_last: Tensor | None) -> tuple:
        x, T, W, b, H, m, *firsts = ctx.saved_tensors
        weights = Weights(T, W, b, ctx.sigma)
        dH = None if dH is None else dH.contiguous()
        dx = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        dT, dW = torch.zeros_like(T), torch.zeros_like(W)
        db = None if b is None else torch.zeros_like(b)
        is_saved = H is not None
        # The loop goes backwards in time. At each chunk, `after` is the gradient with
        # respect to the initial states of the chunk that comes next in time. It is None
        # at the last chunk, where the loop begins.
        after: Tensor | None = None
        chunks = list(zip(firsts, ctx.cuts, strict=True))
        for first, (part, rows) in reversed(chunks):
            if not is_saved:
                H, m = _states(x[rows], weights, first, part)
            recurrence = weights.recurrence(first, part, m)
            D = recycled(H.shape, H)
            dH_part = None if dH is None else dH[rows]
            ends = _ends(dh_last, after, first)
            backend = backend_for(D, H, W, first, recurrence.b, m, dH_part, ends)
            gradients = backend.scan_adjoint(D, H, recurrence, dH_part, ends)
            dW += gradients.W
            if db is not None:
                db += D.sum(0) if gradients.b is None else gradients.b
            dT += input_weight_gradient(x[rows], D, T.shape[1])
            if dx is not None:
                torch.mm(D, T, out=dx[rows])
            after = gradients.h0
        return dx, dT, dW, db, after


def _states(
    x: Tensor, weights: Weights, first: Tensor, time_steps: TimeSteps
) -> tuple[Tensor, Tensor | None]:
    """The states of all time steps, and the moduli (None except for smooth modReLU).

    Args:
        x: the inputs of all time steps, as rows.
        weights: the weights and the nonlinearity.
        first: the states before the first time step.
        time_steps: the rows of each time step.
    """
    rows, n = time_steps.rows, first.shape[1]
    H = recycled((rows, n), first)
    m = None
    if NONLINEARITIES[weights.sigma.name].keeps_moduli:
        m = recycled((rows, n // 2), first)
    # the recurrence replaces the drive in H with the states
    _write_input_drive(x, weights.T, weights.summand(), out=H)
    recurrence = weights.recurrence(first, time_steps, m)
    backend_for(H, weights.W, first, recurrence.b, m).scan(H, recurrence)
    return H, m


def input_weight_gradient(x: Tensor, D: Tensor, inputs: int) -> Tensor:
    """The gradient with respect to T, given the gradient D with respect to T x."""
    if not x.is_floating_point():
        if inputs > _FEW_CLASSES:
            return D.new_zeros(inputs, D.shape[1]).index_add_(0, x, D).mT
        x = D.new_zeros(len(x), inputs).scatter_(1, x[:, None], 1.0)
    # MKL is faster if the narrower matrix is the first factor: by a factor of 4 to 6
    # for 28,160 rows with 10 inputs and n = 190
    return (x.mT @ D).mT if inputs < D.shape[1] else D.mT @ x


def _ends(dh_last: Tensor | None, after: Tensor | None, first: Tensor) -> Tensor | None:
    """The gradient with respect to the last state of each sequence in a chunk.

    For a sequence that continues in the next chunk, the gradient is in `after`. For a
    sequence that ends in this chunk, it is in `dh_last`.
    """
    if after is None:
        return None if dh_last is None else dh_last[: len(first)].contiguous()
    ends = torch.zeros_like(first)
    if dh_last is not None:
        ends[len(after) :] = dh_last[len(after) : len(first)]
    ends[: len(after)] = after
    return ends


def _adjoint(
    ctx: Any, dH: Tensor | None, dh_last: Tensor | None
) -> list[Tensor | None]:
    """The gradients, computed by operations that can be differentiated again."""
    x, T, W, b, _, _, h0, *_ = ctx.saved_tensors
    with torch.enable_grad():
        # One saved tensor may depend on another: the initial state may be the result of
        # an earlier call with the same weight. A derivative with respect to the weight
        # would include this dependence, which the outer graph already accounts for. So
        # differentiate with respect to aliases, which do not depend on each other.
        saved = (x, T, W, b, h0)
        inputs: list[Any] = [None if X is None else X.view_as(X) for X in saved]
        x, T, W, b, h0 = inputs
        outputs = unrolled(x, Weights(T, W, b, ctx.sigma), h0, ctx.run)
    pairs = [
        (output, cotangent)
        for output, cotangent in zip(outputs, (dH, dh_last), strict=True)
        if output is not None and cotangent is not None
    ]
    # the first two arguments of `Scan.forward`, sigma and run, are not tensors
    indices = [i for i, need in enumerate(ctx.needs_input_grad[2:]) if need]
    gradients = torch.autograd.grad(
        [output for output, _ in pairs],
        [inputs[i] for i in indices],
        [cotangent for _, cotangent in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    by_input = dict(zip(indices, gradients, strict=True))
    return [by_input.get(i) for i in range(len(inputs))]


def input_drive(x: Tensor, T: Tensor, bias: Tensor | None = None) -> Tensor:
    """The drive T x + b for each row of x.

    Args:
        x: rows of numbers, or class indices, which stand for one-hot vectors. Rows may
            be real even if T is complex.
        T: the input weight.
        bias: b, if there is one.

    Returns:
        Rows in the dtype of T.
    """
    if not (x.is_floating_point() or x.is_complex()):
        # In a graph or a transform, `check_rows` cannot read the indices, so they may
        # be negative. Indexing would count a negative index from the end. So replace
        # each one with an index that is out of range, for which indexing fails.
        u = T.mT[torch.where(x < 0, T.shape[1], x)]
        return u if bias is None else u + bias
    if T.is_complex() and not x.is_complex():
        u = complex_rows(nn.functional.linear(x, input_form(T, x)))
        return u if bias is None else u + bias
    return nn.functional.linear(x, T, bias)


def _write_input_drive(x: Tensor, T: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write to `out` what `input_drive` returns; T must be real.

    Autograd must be off, and class indices must be in range.
    """
    if not x.is_floating_point():
        # a class index selects a row of this table
        table = T.mT if bias is None else T.mT + bias
        # contiguous rows are read faster, but it takes time to copy unused rows
        if len(table) <= len(x):
            table = table.contiguous()
        torch.index_select(table, 0, x, out=out)
    elif bias is None:
        torch.mm(x, T.mT, out=out)
    else:
        torch.addmm(bias, x, T.mT, out=out)


def real_form(W: Tensor) -> Tensor:
    """The real matrix that acts on real pairs as the complex `W` acts on numbers.

    If `W` is (..., m, n), the result is (..., 2m, 2n). An entry a + ib becomes the
    block ((a, -b), (b, a)).
    """
    a, b = W.real, W.imag
    blocks = torch.stack((torch.stack((a, -b), -1), torch.stack((b, a), -1)), -3)
    # the last axes are now (m, 2, n, 2)
    return blocks.flatten(-2).flatten(-3, -2)


def input_form(T: Tensor, x: Tensor) -> Tensor:
    """The real matrix that computes T x as pairs of real numbers, for a complex T.

    It multiplies `x` itself if `x` is real, and `real_rows(x)` if `x` is complex. If
    `x` holds class indices, they select columns of the result.
    """
    if x.is_complex():
        return real_form(T)
    return torch.view_as_real(T).movedim(-1, 1).reshape(-1, T.shape[1])
