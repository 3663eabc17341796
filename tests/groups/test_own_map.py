"""A map that a user writes can be used wherever the library's own maps can."""

import copy
import math
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import isometry
from isometry import manifold_of
from isometry.groups import (
    SO,
    SU,
    AbstractManifold,
    AbstractMap,
    AbstractRetraction,
    Cayley,
    Exp,
    Householder,
    O,
    Pade,
    Product,
    Sphere,
    Stiefel,
    Torus,
    U,
)
from isometry.linalg import cayley, skew
from isometry.linalg._pade import pade_phase
from isometry.optim import RiemannianAdam, RiemannianSGD
from isometry.testing import check_map


def coordinates_of(layer: nn.Module) -> Any:
    parts: Any = layer.parametrizations
    return parts["weight"].original


@dataclass(frozen=True)
class TwoHalves(AbstractRetraction):
    """The Cayley map of half of the matrix, squared: it reaches the eigenvalue -1."""

    name = "two-halves"
    order = 3.0

    def at_identity(self, A: Tensor) -> Tensor:
        Q = cayley(A / 2)
        return Q @ Q


@dataclass(frozen=True)
class Mirrored(Exp):
    """The exponential, with a method `around` of its own."""

    def around(self, X: Tensor, B: Tensor | None) -> Tensor:
        return super().around(-X, B)


@pytest.mark.parametrize("reach", [None, 6.0])
def test_a_subclass_of_the_exponential_overrides_around(reach, rng):
    """The method `around` of a subclass of Exp is called, with a reach and without.

    With a reach, it used to be ignored.
    """
    X = torch.randn(3, 3, dtype=torch.float64, generator=rng)
    assert_close(O(3).point(X, None, Mirrored(reach)), Exp().around(-X, None))


@dataclass(frozen=True)
class Uneven(TwoHalves):
    """TwoHalves without the claim of equivariance."""

    name = "uneven"
    is_equivariant = False


@dataclass(frozen=True)
class NoRetraction(AbstractMap):
    """A map without a formula that a constraint could use."""

    name = "no-retraction"


@dataclass(frozen=True)
class Reversed(Householder):
    """Products of reflections, with the columns of the product reversed."""

    name = "reversed"

    def product(self, V: Tensor) -> Tensor:
        return super().product(V).flip(-1)

    def vectors(self, Q: Tensor) -> tuple[Tensor, Tensor]:
        V, phase = super().vectors(Q.flip(-1))
        return V, phase.flip(-1)


@pytest.mark.parametrize(("n", "is_complex"), [(4, False), (2, True)])
def test_it_keeps_the_contract_of_maps(n, is_complex, rng):
    """The user's map passes `check_map`, with the order and symmetry that it claims."""
    check_map(TwoHalves(), n=n, is_complex=is_complex, generator=rng)


def test_a_wrong_claim_is_found():
    @dataclass(frozen=True)
    class Boast(TwoHalves):
        order = 5.0

    with pytest.raises(AssertionError, match="agree with exp to order 5"):
        check_map(Boast(), n=4)


@pytest.mark.parametrize("shape", [(6, 6), (9, 3), (3, 9), (5, 4)], ids=str)
def test_in_orthogonal(shape, rng):
    """A weight made by the user's map trains and stays orthogonal."""
    layer = isometry.orthogonal(nn.Linear(*shape[::-1]), "weight", TwoHalves())
    assert "two-halves" in repr(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    target = torch.randn(shape, generator=rng)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (layer.weight - target).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    manifold = manifold_of(layer, "weight")
    assert manifold is not None
    W = layer.weight.detach()
    assert manifold.contains(W.mT if shape[0] < shape[1] else W)


def test_the_weight_is_its_value_at_the_coordinates(rng):
    layer = isometry.orthogonal(nn.Linear(5, 5).double(), "weight", TwoHalves())
    base = layer.weight.detach().clone()
    X = torch.randn(5, 5, dtype=torch.float64, generator=rng)
    coordinates_of(layer).data.copy_(X)
    assert_close(layer.weight, base @ TwoHalves().at_identity(skew(X)))


def test_copies_pickles_and_checkpoints(rng):
    """A checkpoint has the map's name, and is refused by a layer with another map."""
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", TwoHalves())
    coordinates_of(layer).data.normal_(generator=rng)
    twins = [
        copy.deepcopy(layer),
        isometry.orthogonal(nn.Linear(4, 4), "weight", TwoHalves()),
    ]
    twins[1].load_state_dict(layer.state_dict())
    for twin in twins:
        assert torch.equal(twin.weight, layer.weight)
    assert pickle.loads(pickle.dumps(TwoHalves())) == TwoHalves()
    by_exp = isometry.orthogonal(nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match=r"must be .exp.*got .two-halves"):
        by_exp.load_state_dict(layer.state_dict())


def test_it_compiles_to_one_graph(no_shape_hook, rng):
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", TwoHalves())
    x = torch.randn(2, 4, generator=rng)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), layer(x))


def test_the_base_moves(rng):
    """`rebase` works with any map, and does not change the weight."""
    layer = isometry.orthogonal(
        nn.Linear(5, 5), "weight", TwoHalves(), rebase_radius=0.5
    )
    coordinates_of(layer).data.normal_(generator=rng)
    before = layer.weight.detach().clone()
    isometry.rebase(layer)
    assert_close(layer.weight, before)
    assert not coordinates_of(layer).any()


MANIFOLDS: list[AbstractManifold] = [
    SO(5),
    O(4),
    U(3),
    Torus(3),
    Product(SO(2), SO(3)),
    Stiefel(9, 3),
    Stiefel(4, 3),
    Sphere(5),
]


@pytest.mark.parametrize("lr", [1e-3, 2.0])
@pytest.mark.parametrize("manifold", MANIFOLDS, ids=str)
def test_in_an_optimizer(manifold, lr, rng):
    """One step of SGD is `retract` along the gradient, for short and long steps."""
    dtype = torch.complex128 if manifold.is_complex else torch.float64
    Q = manifold.random(dtype=dtype, generator=rng)
    G = torch.randn(Q.shape, dtype=dtype, generator=rng)
    p = nn.Parameter(Q.clone())
    p.grad = G.clone()
    RiemannianSGD([p], lr=lr, manifold=manifold, retraction=TwoHalves()).step()
    expected = manifold.retract(Q, -lr * manifold.gradient(Q, G), TwoHalves())
    # twice the worst over 10 seeds, 4e-15
    assert_close(p.detach(), expected, rtol=0, atol=1e-14)


def test_the_state_of_an_optimizer_has_the_name(tmp_path, rng):
    """The state of an optimizer loads only if the optimizer has the same map."""
    p = nn.Parameter(SO(4).random(generator=rng))
    p.grad = torch.randn(4, 4, generator=rng)
    ours = RiemannianAdam([p], manifold=SO(4), retraction=TwoHalves())
    ours.step()
    torch.save(ours.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert state["param_groups"][0]["retraction"] == "two-halves"
    ours.load_state_dict(state)
    assert ours.param_groups[0]["retraction"] == TwoHalves()
    by_exp = RiemannianAdam([p], manifold=SO(4))
    with pytest.raises(ValueError, match=r"`retraction` must be .* got 'two-halves'"):
        by_exp.load_state_dict(state)


def test_names_are_read_once():
    """A parameter group holds the map itself, at the beginning and after a load."""
    p = nn.Parameter(torch.eye(3))
    optimizer = RiemannianSGD([p], manifold=SO(3), retraction="cayley")
    assert optimizer.param_groups[0]["retraction"] == Cayley()
    by_exp = RiemannianSGD([p], manifold=SO(3))
    by_exp.load_state_dict(optimizer.state_dict())
    assert by_exp.param_groups[0]["retraction"] == Cayley()


def test_in_diagnose(rng):
    """The reported condition is the condition of the map's Jacobian."""
    layer = isometry.orthogonal(nn.Linear(4, 4).double(), "weight", TwoHalves())
    X = torch.randn(4, 4, dtype=torch.float64, generator=rng)
    coordinates_of(layer).data.copy_(X)
    report = isometry.diagnose(layer)["weight"]
    rows, columns = torch.tril_indices(4, 4, -1)

    def weight(x: Tensor) -> Tensor:
        L = torch.zeros(4, 4, dtype=torch.float64).index_put((rows, columns), x)
        return TwoHalves().at_identity(L - L.mT)

    jacobian = torch.autograd.functional.jacobian(weight, X[rows, columns])
    s = torch.linalg.svdvals(jacobian.reshape(16, 6))
    assert report.condition == pytest.approx(float(s[0] / s[-1]), rel=1e-6)
    assert report.border_distance is not None


def test_a_map_without_symmetry_has_no_condition():
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", Uneven())
    assert isometry.diagnose(layer)["weight"].condition is None


@pytest.mark.parametrize("phi", [Exp(), Cayley(), Pade(2), Pade(3)], ids=repr)
def test_the_default_phase_is_that_of_the_formula(phi, rng):
    """The default phase agrees with the closed forms, modulo full turns.

    Its derivative agrees as well.
    """
    theta = 3 * torch.randn(20, dtype=torch.float64, generator=rng)
    turn, slope = AbstractRetraction.phase(phi, theta)
    is_exp = isinstance(phi, Exp)
    expected, derivative = phi.phase(theta) if is_exp else pade_phase(theta, phi.degree)
    gap = torch.remainder(turn - expected + math.pi, 2 * math.pi) - math.pi
    assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-12)
    assert_close(slope, derivative, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(9, 3), (5, 4)], ids=str)
@pytest.mark.parametrize("phi", [Exp(), Cayley(), Pade(3)], ids=repr)
def test_the_default_for_tall_matrices_is_that_of_the_formula(phi, shape, rng):
    """The default for tall matrices agrees with each closed form.

    The default makes the n x n matrix A; the closed forms do not.
    """
    X = torch.randn(2, *shape, dtype=torch.float64, generator=rng)
    B = Stiefel(*shape).random(2, dtype=torch.float64, generator=rng)
    for base in (B, None):
        Y = AbstractRetraction.tall(phi, X, base)
        # twice the worst over 10 seeds, 5e-15
        assert_close(Y, phi.tall(X, base), rtol=0, atol=1e-14)


def test_reflections_may_be_modified(rng):
    """The constraint asks its map, which may be a subclass of Householder."""
    Q = O(4).random(generator=rng)
    layer = isometry.orthogonal(nn.Linear(4, 4), "weight", Reversed())
    layer.weight = Q
    assert_close(layer.weight, Q)
    V = coordinates_of(layer).detach()
    product = Householder().product(V)
    assert_close(layer.weight.abs(), product.flip(-1).abs())


@pytest.mark.errors
def test_where_it_cannot_be_used():
    """SU(n), and weights without a base, refuse a map that they cannot use."""
    layer = nn.Linear(3, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"one of exp for SU\(n=3\); got TwoHalves"):
        isometry.constrain(layer, "weight", SU(3), TwoHalves())
    # a map that is no retraction used to be replaced with Householder reflections
    message = r"one of exp, cayley, pade-m, householder for O\(n=3\); got NoRetraction"
    # with `can_parametrize = True` the map used to be accepted, and reading the weight
    # raised an error
    for can_parametrize in (False, True):
        claim = {"can_parametrize": can_parametrize}
        phi = type("NoRetraction", (NoRetraction,), claim)()
        with pytest.raises(ValueError, match=message):
            isometry.orthogonal(nn.Linear(3, 3), "weight", phi)
    message = r"two-halves reaches .* have an inverse"
    with pytest.raises(ValueError, match=message):
        isometry.orthogonal(
            nn.Linear(3, 3), "weight", TwoHalves(), use_trivialization=False
        )
