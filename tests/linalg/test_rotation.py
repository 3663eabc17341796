"""`Exp.around` is B exp(skew X), in one piece and in steps, with its gradient."""

import math

import pytest
import torch
from torch import Tensor
from torch.linalg import matrix_norm
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from isometry._backend import only_torch
from isometry.groups import SO, Exp, O
from isometry.groups._maps import exponential
from isometry.groups._maps.exponential import Rotation
from isometry.linalg import expm_skew, skew
from tests.helpers import eps, random_skew, random_unitary
from tests.linalg.reference import expm, gradient

rotation = Exp().around

REAL = [torch.float32, torch.float64]
# norms for every plan: tiny, short, middle, wide, one squaring and four (with a Newton
# step)
NORMS = [0.0, 0.01, 0.3, 1.2, 3.0, 6.0, 50.0]


def reference(X: Tensor, B: Tensor | None, G: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient in double or extended precision, rounded to double."""
    L = X.detach().tril(-1)
    A = L - L.mT
    G = G.double()
    G = G if B is None else B.double().mT @ G
    Q = expm(A)
    return Q if B is None else B.double() @ Q, 2 * gradient(A, G).tril(-1)


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [32, 33, 97])
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_value_and_gradient(dtype, n, norm, with_base, rng):
    """Value and gradient agree with torch's exponential in double precision."""
    X = random_skew(n, norm=norm, dtype=dtype, rng=rng)
    # entries above the diagonal are not read
    X = X.tril(-1).add_(torch.full_like(X, math.nan).triu()).requires_grad_()
    B = random_unitary(n, dtype=dtype, rng=rng).contiguous() if with_base else None
    G = torch.randn(n, n, dtype=dtype, generator=rng)
    Q = rotation(X, B)
    assert isinstance(Q.grad_fn, Rotation._backward_cls)
    (g,) = torch.autograd.grad(Q, X, G)
    expected, expected_g = reference(X, B, G)
    # 4: twice the worst over 20 seeds, 1.9 (float32, norm 0.01, the gradient)
    atol = 4 * eps(dtype) * max(1.0, norm)
    assert matrix_norm(Q - expected) <= atol * n**0.5
    assert matrix_norm(g - expected_g) <= atol * matrix_norm(G)
    assert torch.equal(g, g.tril(-1))


@pytest.mark.parametrize("norm", [0.3, 1.2, 3.0, 6.0])
def test_one_piece_and_steps_agree(norm, rng):
    """One piece and steps agree up to the order of sums."""
    X = random_skew(64, norm=norm, dtype=torch.float64, rng=rng).requires_grad_()
    B = random_unitary(64, dtype=torch.float64, rng=rng).contiguous()
    G = torch.randn(64, 64, dtype=torch.float64, generator=rng)
    Q, steps = rotation(X, B), B @ expm_skew(skew(X))
    assert_close(Q, steps, rtol=0, atol=2e-14)
    for H in (G, G.mT.contiguous().mT):
        (g,) = torch.autograd.grad(Q, X, H, retain_graph=True)
        (expected,) = torch.autograd.grad(steps, X, H, retain_graph=True)
        assert_close(g, expected, rtol=0, atol=2e-13)


def test_second_derivative(rng):
    """Second derivatives by coordinates and cotangent agree with those of the steps."""
    X = random_skew(40, norm=1.0, dtype=torch.float64, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float64, rng=rng).contiguous()
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng).requires_grad_()
    V = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    results = []
    for Q in (rotation(X, B), B @ expm_skew(skew(X))):
        (g,) = torch.autograd.grad(Q, X, G, create_graph=True)
        results.append(torch.autograd.grad(g, (X, G), V))
    assert_close(results[0], results[1], rtol=0, atol=1e-12)


def test_transforms(rng):
    """Forward mode, vmap and batched gradients, computed in steps, are right."""
    X = random_skew(33, norm=1.0, dtype=torch.float64, rng=rng)
    B = random_unitary(33, dtype=torch.float64, rng=rng).contiguous()
    E = torch.randn(33, 33, dtype=torch.float64, generator=rng)

    def steps(X: Tensor) -> Tensor:
        return B @ expm_skew(skew(X))

    def whole(X: Tensor) -> Tensor:
        return rotation(X, B)

    pairs = [torch.func.jvp(f, (X,), (E,)) for f in (whole, steps)]
    assert_close(*pairs)
    stack = torch.stack([X, 2 * X])
    assert_close(torch.func.vmap(whole)(stack), steps(stack))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, E)
        tangent = torch.autograd.forward_ad.unpack_dual(whole(dual)).tangent
    assert_close(tangent, pairs[1][1])
    Y = X.clone().requires_grad_()
    many = torch.stack([E, E.mT])
    (g,) = torch.autograd.grad(whole(Y), Y, many, is_grads_batched=True)
    (expected,) = torch.autograd.grad(steps(Y), Y, many, is_grads_batched=True)
    assert_close(g, expected)
    # `vmap` over a backward pass used to raise
    Q = whole(Y)
    pull_back = torch.func.vmap(
        lambda G: torch.autograd.grad(Q, Y, G, retain_graph=True)
    )
    (g,) = pull_back(many)
    assert_close(g, expected)


def test_a_base_with_a_gradient_gets_it(rng):
    """A base that requires a gradient gets one.

    A base that changes before the backward pass raises torch's error.
    """
    X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float32, rng=rng).contiguous()
    B.requires_grad_()
    G = torch.randn(40, 40, generator=rng)
    _, gB = torch.autograd.grad(rotation(X, B), (X, B), G)
    assert_close(gB, G @ expm_skew(skew(X)).mT)
    B = B.detach()
    Q = rotation(X, B)
    B.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        Q.backward(G)


@pytest.mark.parametrize("B", [None, torch.eye(40)], ids=["", "base"])
def test_what_has_no_exponential(B, rng):
    """For NaN and angles beyond 1 / eps, Q is NaN, and so is g below the diagonal."""
    for bad in (float("nan"), 1e9):
        X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng)
        X[7, 3] = bad
        X.requires_grad_()
        Q = rotation(X, B)
        (g,) = torch.autograd.grad(Q, X, torch.ones_like(Q))
        assert Q.isnan().all()
        assert g.tril(-1).isnan().sum() == 40 * 39 // 2
        assert torch.equal(g.triu(), torch.zeros(40, 40))


def test_what_goes_in_steps(rng, monkeypatch):
    """Small, batched, complex, half-precision and meta tensors go in steps."""
    monkeypatch.setattr(Rotation, "apply", None)
    for X in (
        random_skew(8, norm=1.0, dtype=torch.float32, rng=rng),
        random_skew(40, norm=1.0, dtype=torch.float32, rng=rng, batch=(2,)),
        random_skew(40, norm=1.0, dtype=torch.complex64, rng=rng),
        random_skew(40, norm=1.0, dtype=torch.float32, rng=rng).bfloat16(),
        torch.empty(40, 40, device="meta"),
    ):
        assert rotation(X, None).shape == X.shape
        B = torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)
        assert rotation(X, B).shape == X.shape
    X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng)
    many = random_unitary(40, dtype=torch.float32, rng=rng, batch=(3,)).contiguous()
    assert_close(rotation(X, many), many @ expm_skew(X))
    assert_close(rotation(X, many[0, :1]), many[0, :1] @ expm_skew(X))


@pytest.mark.parametrize("n", [20, 40])
def test_autocast_is_spared(n, rng):
    """Inside autocast the weight is still computed in float32."""
    X = random_skew(n, norm=1.0, dtype=torch.float32, rng=rng)
    B = random_unitary(n, dtype=torch.float32, rng=rng).contiguous()
    expected = rotation(X, B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rotation(X, B), expected)


@pytest.mark.parametrize("again", [True, False])
def test_a_backward_pass_inside_autocast(again, rng):
    """A backward pass inside autocast gives the same gradient.

    Torch advises against it, but it does no harm here.
    """
    X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float32, rng=rng).contiguous()
    (expected,) = torch.autograd.grad(rotation(X, B), X, B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (g,) = torch.autograd.grad(rotation(X, B), X, B, create_graph=again)
    assert_close(g, expected)


@pytest.mark.errors
@pytest.mark.parametrize("group", [SO(40), O(40)], ids=str)
def test_other_shapes_are_refused(group):
    """Coordinates of another shape are refused: C would read beyond their end."""
    for shape in ((40, 64), (64, 40), (40,)):
        with pytest.raises(ValueError, match="`X` must have shape"):
            group.point(torch.zeros(shape), None)


@pytest.mark.parametrize("with_base", [True, False])
def test_gradients_that_are_no_plain_memory(with_base, rng):
    """The gradient is right for a lazy minus, and if hooks change saved tensors."""
    X = random_skew(40, norm=1.0, dtype=torch.float64, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float64, rng=rng).contiguous()
    B = B if with_base else None
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    (expected,) = torch.autograd.grad(rotation(X, B), X, G)
    # no public function leaves a lazy minus on contiguous memory
    minus = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]
    for H in (minus(-G), minus(-G.mT.contiguous()).mT):
        (g,) = torch.autograd.grad(rotation(X, B), X, H)
        assert_close(g, expected)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.mT.contiguous() if t.ndim > 1 else t,
        lambda t: t.mT if t.ndim > 1 else t,
    ):
        Q = rotation(X, B)
    (g,) = torch.autograd.grad(Q, X, G)
    assert_close(g, expected)


@pytest.mark.parametrize("lazy", ["X", "B"])
def test_arguments_with_a_lazy_minus(lazy, rng):
    """If X or B has a lazy minus, torch computes the value and the gradient."""
    X = random_skew(40, norm=1.0, dtype=torch.float64, rng=rng).contiguous()
    B = random_unitary(40, dtype=torch.float64, rng=rng).contiguous()
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    minus = torch._neg_view  # pyright: ignore[reportPrivateImportUsage]
    lazy_X, lazy_B = (minus(-X), B) if lazy == "X" else (X.clone(), minus(-B))
    assert lazy_X.is_neg() or lazy_B.is_neg()
    results = []
    for Y, base in ((X, B), (lazy_X, lazy_B)):
        Q = rotation(Y.requires_grad_(), base)
        results += [(Q, torch.autograd.grad(Q, Y, G)[0])]
    assert_close(*results)


def test_coordinates_that_change_before_the_backward_pass(rng):
    """If X changes before the backward pass, the gradient is still that at the old X.

    A second derivative is refused.
    """
    X = random_skew(40, norm=1.0, dtype=torch.float64, rng=rng).requires_grad_()
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    (expected,) = torch.autograd.grad(rotation(X, None), X, G)
    Q = rotation(X, None)
    with torch.no_grad():
        X.zero_()
    (g,) = torch.autograd.grad(Q, X, G, retain_graph=True)
    assert torch.equal(g, expected)
    with pytest.raises(RuntimeError, match="must not change before a second"):
        torch.autograd.grad(Q, X, G, create_graph=True)


@pytest.mark.parametrize("how", ["another tensor", "in place", "numpy"])
@pytest.mark.parametrize("with_base", [True, False])
def test_coordinates_that_change_behind_the_back_of_torch(with_base, how, rng):
    """X changes through `.data`: both derivatives are the ones at the old coordinates.

    The second one used to be at the new coordinates, silently.
    """
    n = 40
    X, G, E = torch.randn(3, n, n, dtype=torch.float64, generator=rng) / n
    B = random_unitary(n, dtype=torch.float64, rng=rng).contiguous()
    B = B if with_base else None

    def second(change: bool) -> tuple[Tensor, Tensor]:
        Y = X.clone().requires_grad_()
        Q = rotation(Y, B)
        if change and how == "another tensor":
            Y.data = torch.ones(n, n, dtype=torch.float64)
        elif change and how == "in place":
            Y.data.add_(1)
        elif change:
            Y.detach().numpy()[:] = 1
        (g,) = torch.autograd.grad(Q, Y, G, create_graph=True)
        return g.detach(), torch.autograd.grad(g, Y, E)[0]

    for before, after in zip(second(False), second(True), strict=True):
        assert torch.equal(before, after)


def test_a_checkpoint_of_other_coordinates(rng):
    """A recomputed checkpoint takes the new plan along with the new slots."""
    X = random_skew(40, norm=3.0, dtype=torch.float64, rng=rng).requires_grad_()
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    Q = checkpoint(lambda: rotation(X, None), use_reentrant=False)
    with torch.no_grad():
        X.mul_(1e-6)
    (g,) = torch.autograd.grad(Q, X, G)
    (expected,) = torch.autograd.grad(rotation(X, None), X, G)
    assert_close(g, expected)


def test_groups_use_it(rng, monkeypatch):
    """`SO` and `O` may compute in one piece; a group with another algebra may not."""

    class Halves(SO):
        def algebra(self, X: Tensor) -> Tensor:
            return skew(X) / 2

    X = random_skew(40, norm=1.0, dtype=torch.float64, rng=rng)
    B = random_unitary(40, dtype=torch.float64, rng=rng).contiguous()
    assert_close(Halves(40).point(X, B), B @ expm_skew(X / 2))
    calls = []
    monkeypatch.setattr(exponential, "_is_one_node", lambda *_: calls.append(1))
    for group in (SO(40), O(40)):
        assert_close(group.point(X, B), B @ expm_skew(X))
    assert len(calls) == 2


@pytest.mark.parametrize("with_base", [True, False])
@pytest.mark.usefixtures("no_shape_hook")
# torch 2.15 reads `.grad` of its own intermediate results
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_the_operator_in_graphs(with_base, rng):
    """The operator passes opcheck, and a graph with it has the bits of eager mode."""
    X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float32, rng=rng) if with_base else None
    # opcheck compares all slots; a squaring, needed at this norm, writes all of them
    larger = (5 * X).detach().requires_grad_()
    torch.library.opcheck(torch.ops.isometry.rotation, (larger, B))
    B = None if B is None else B.contiguous()
    compiled = torch.compile(lambda X: rotation(X, B), fullgraph=True)
    G = torch.randn(40, 40, generator=rng)
    for Q in (compiled(X), compiled(X.detach().mT.requires_grad_().mT)):
        assert torch.equal(Q, rotation(X, B))
    (g,) = torch.autograd.grad(compiled(X), X, G)
    (expected,) = torch.autograd.grad(rotation(X, B), X, G)
    assert torch.equal(g, expected)


@pytest.mark.usefixtures("no_shape_hook")
def test_graphs_without_the_operator(rng, monkeypatch):
    """A base with a gradient, or with another shape, is compiled in steps."""
    monkeypatch.setattr(exponential, "_rotation_op", None)
    X = random_skew(40, norm=1.0, dtype=torch.float32, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float32, rng=rng, batch=(2,)).contiguous()
    compiled = torch.compile(rotation, fullgraph=True)
    assert_close(compiled(X, B), B @ expm_skew(skew(X)))
    B = B[0].clone().requires_grad_()
    assert torch.autograd.grad(compiled(X, B).sum(), B)[0].shape == B.shape


@pytest.mark.parametrize("with_base", [True, False])
def test_the_operator_without_kernels(with_base, rng):
    """A program exported with kernels runs without them, with the same values."""
    X = random_skew(40, norm=3.0, dtype=torch.float64, rng=rng).requires_grad_()
    B = random_unitary(40, dtype=torch.float64, rng=rng) if with_base else None
    G = torch.randn(40, 40, dtype=torch.float64, generator=rng)
    expected = rotation(X, B)
    (gradient,) = torch.autograd.grad(expected, X, G)
    with only_torch():
        Q = exponential._rotation_op(X, B)[0]
        assert_close(Q, expected)
        assert_close(torch.autograd.grad(Q, X, G)[0], gradient)
