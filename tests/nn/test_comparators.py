"""The comparators of the paper against their definitions."""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

import isometry
from isometry import manifold_of
from isometry._declare import declared_parameters
from isometry.groups import SO, U
from isometry.nn import (
    EURNN,
    URNN,
    ExpGRU,
    ExpLSTM,
    ExpRNN,
    HouseholderRNN,
    LieRNN,
    ScoRNN,
    SpectralRNN,
)
from isometry.nn._cell import AbstractCell
from isometry.optim import RiemannianAdam
from tests.helpers import new_generator
from tests.nn import reference
from tests.nn.comparators import CASES, INPUTS, Case, N, assert_near_largest

# neither a nonlinearity nor a style, which `Any` hides from the type checker
UNKNOWN: Any = "gelu"
# not an integer
REAL: Any = 2.0


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def shaken(network: Any, rng: torch.Generator) -> Any:
    """Move parameters away from zero, where some start; points stay on manifolds."""
    with torch.no_grad():
        for cell in network.cells:
            for name, p in cell.named_parameters():
                if manifold_of(cell, name) is None:
                    p.add_(
                        torch.randn(p.shape, dtype=p.dtype, generator=rng), alpha=0.1
                    )
    return network


def slow(case: Case, network: Any, x: Tensor) -> Tensor:
    """States of a batch (time, batch, inputs), one sequence after the other."""
    (cell,) = network.cells
    W = case.weight(cell)
    h0 = torch.zeros(N, dtype=W.dtype) if cell.h0 is None else cell.h0
    return torch.stack(
        [
            reference.states(
                x[:, i], W, cell.weight_ih, lambda z: case.sigma(cell, z), h0
            )
            for i in range(x.shape[1])
        ],
        1,
    )


def gradients(H: Tensor, network: Any, x: Tensor) -> dict[str, Tensor]:
    """Gradients of a weighted sum over all parts of all states."""
    weights = torch.arange(1.0, H.numel() + 1, dtype=torch.float64).sin().view_as(H)
    loss = (H.real * weights).sum()
    if H.is_complex():
        loss = loss + (H.imag * weights.flip(0)).sum()
    named = {"x": x, **dict(network.named_parameters())}
    return dict(
        zip(named, torch.autograd.grad(loss, list(named.values())), strict=True)
    )


def test_recurrence_is_the_definition(case, engine, rng):
    """States and gradients, of the input too, agree with the definition."""
    network = shaken(case.network(), rng)
    x = torch.randn(6, 4, INPUTS, dtype=torch.float64, generator=rng)
    x.requires_grad_()

    H, last = network(x)

    expected = slow(case, network, x)
    # modReLU and its gradient divide by |z|, which may be small by chance. Over 120
    # seeds the worst were 1.3e-14 for states (Lie, whose exponential of large angles
    # loses the most) and 1.0e-13 for gradients (full); 4e-14 and 1e-12 were seen, too.
    assert_near_largest(H, expected, tol=1e-12)
    assert torch.equal(last[0], H[-1])
    ours, theirs = gradients(H, network, x), gradients(expected, network, x)
    for name, G in ours.items():
        assert_near_largest(G, theirs[name], tol=1e-11)


def test_packed_sequences_are_those_by_themselves(case, rng):
    """Packed sequences of lengths 5, 2, 7 have the results that they have alone."""
    network = shaken(case.network(), rng)
    sequences = [
        torch.randn(length, INPUTS, dtype=torch.float64, generator=rng)
        for length in (5, 2, 7)
    ]
    packed, last = network(pack_sequence(sequences, enforce_sorted=False))
    padded, _ = nn.utils.rnn.pad_packed_sequence(packed)
    for i, sequence in enumerate(sequences):
        H, h = network(sequence)
        assert_close(padded[: len(sequence), i], H)
        assert_close(last[:, i], h)


def test_class_indices_are_unit_vectors(case, rng):
    network = shaken(case.network(), rng)
    index = torch.randint(INPUTS, (6, 4), generator=rng)
    hot = nn.functional.one_hot(index, INPUTS).double()
    assert_close(network(index), network(hot))


def test_chunks_change_nothing_but_memory(case, rng):
    """Chunks change neither the last states nor any gradient."""
    whole = shaken(case.network(last_only=True), rng)
    chunked = copy.deepcopy(whole)
    chunked.chunk = 2
    sequences = [
        torch.randn(length, INPUTS, dtype=torch.float64, generator=rng)
        for length in (7, 5, 2)
    ]
    x = pack_sequence(sequences)
    results = []
    for network in (whole, chunked):
        _, last = network(x)
        (last.abs() ** 2).sum().backward()
        results.append((last.detach(), [p.grad for p in network.parameters()]))
    assert_close(results[0], results[1])


def test_chunks_inside_a_transform(case, rng):
    """Inside `torch.func.grad` and `vmap`, chunks do not change the gradient.

    `URNN` and `EURNN` used to raise, since both transforms refuse to recompute a chunk.
    """
    network = shaken(case.network(last_only=True), rng)
    x = torch.randn(5, 2, INPUTS, dtype=torch.float64, generator=rng)

    def loss(x: Tensor) -> Tensor:
        return (network(x)[1].abs() ** 2).sum()

    expected = torch.func.grad(loss)(x)
    network.chunk = 2
    assert_close(torch.func.grad(loss)(x), expected)
    several = x[None].requires_grad_()
    (G,) = torch.autograd.grad(torch.func.vmap(loss)(several).sum(), several)
    assert_close(G[0], expected)


def test_layers_and_directions(case, rng):
    """Two layers with two directions have torch's shapes.

    All parameters get gradients.
    """
    network = case.network(num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(4, 6, INPUTS, dtype=torch.float64, generator=rng)
    H, last = network(x)
    assert H.shape == (4, 6, 2 * N)
    assert last.shape == (4, 4, N)
    (H.abs() ** 2).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_a_state_goes_on(case, rng):
    """Two halves of a sequence, joined by the state, give what the whole gives."""
    network = shaken(case.network(), rng)
    x = torch.randn(6, 4, INPUTS, dtype=torch.float64, generator=rng)
    H, last = network(x)
    first, between = network(x[:3])
    second, end = network(x[3:], between)
    assert_close(torch.cat((first, second)), H)
    assert_close(end, last)


def test_autocast_leaves_the_recurrence_alone(case, rng):
    """Autocast changes nothing: weights with three digits would not be orthogonal."""
    network = case.network(dtype=torch.float32)
    x = torch.randn(6, 4, INPUTS, generator=rng)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        H, _ = network(x)
    assert torch.equal(H, network(x)[0])


def test_a_generator_makes_one_network_in_all_precisions(case):
    wide, narrow = (
        case.network(dtype=dtype).state_dict()
        for dtype in (torch.float64, torch.float32)
    )
    for name, X in wide.items():
        assert torch.equal(X.to(narrow[name].dtype), narrow[name])


def test_survives_a_deepcopy_and_a_state_dict(case, rng):
    network = shaken(case.network(), rng)
    other = case.network(generator=new_generator(1))
    other.load_state_dict(network.state_dict())
    x = torch.randn(6, 4, INPUTS, dtype=torch.float64, generator=rng)
    assert torch.equal(network(x)[0], other(x)[0])
    assert torch.equal(network(x)[0], copy.deepcopy(network)(x)[0])


def test_the_signature_has_every_option(case):
    """`help` shows all options; a layer has no attribute for device or generator."""
    parameters = inspect.signature(case.make).parameters
    shared = {"batch_first", "dropout", "bidirectional", "last_only", "chunk"}
    place = {"device", "dtype", "generator"}
    assert shared | place | set(case.options) <= set(parameters)
    assert not any(hasattr(case.network(), name) for name in place)


def test_no_parameter_is_drawn_on_meta(case):
    network = case.network(device="meta")
    assert all(p.is_meta for p in network.parameters())


@pytest.mark.parametrize("name", ["urnn", "scurnn", "full", "eurnn"])
def test_gradients_at_zero_are_finite(name):
    """At a state of zeros, where |z| has no derivative, gradients are finite."""
    network = CASES[name].network()
    with torch.no_grad():
        for cell in network.cells:
            if cell.h0 is not None:
                cell.h0.zero_()
    H, _ = network(torch.zeros(3, 2, INPUTS, dtype=torch.float64))
    (H.real.sum() + H.imag.sum()).backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


def test_scornn_starts_at_rotations_in_the_first_quadrant():
    """(I + A)^-1 (I - A) D has rotations by u in (0, pi / 2) as blocks, up to signs."""
    (cell,) = CASES["scornn"].network().cells
    signs = torch.tensor([1.0] * 5 + [-1.0] * 3, dtype=torch.float64)
    Z = cell.recurrent_matrix() * signs
    even = torch.arange(0, N, 2)
    # cosine and sine of u: above the diagonal the sine is positive in Z, negative in A
    assert (Z[even, even] > 0).all()
    assert (Z[even, even + 1] > 0).all()
    assert_close(Z[even, even] ** 2 + Z[even, even + 1] ** 2, torch.ones(4).double())


def test_weights_of_descent_are_declared():
    (full,) = CASES["full"].network().cells
    (spectral,) = CASES["spectral"].network().cells
    assert manifold_of(full, "weight_hh") == U(N)
    assert manifold_of(spectral, "U") == manifold_of(spectral, "V") == SO(N)
    U(N).check_point(full.weight_hh.detach(), name="W")
    SO(N).check_point(spectral.U.detach(), name="U")


@pytest.mark.errors
@pytest.mark.parametrize("copied", [False, True], ids=["original", "copy"])
@pytest.mark.parametrize("name", ["full", "spectral"])
def test_weights_of_descent_do_not_leave_their_manifold_silently(name, copied):
    """Adam refuses to move declared weights. It used to move them off the manifold."""
    network = CASES[name].network()
    network = copy.deepcopy(network) if copied else network
    network.load_state_dict(CASES[name].network().state_dict())
    H, _ = network(torch.ones(3, 2, INPUTS, dtype=torch.float64))
    H.abs().sum().backward()
    with pytest.raises(TypeError, match="got Adam, which ignores the"):
        torch.optim.Adam(network.parameters()).step()
    RiemannianAdam(isometry.param_groups(network, lr=0.1)).step()
    for key, p, manifold in declared_parameters(network):
        manifold.check_point(p.detach(), name=key)


def test_renormalizing_keeps_the_weight(rng):
    """Renormalizing gives unit columns, zero above the diagonal, and the same W."""
    network = shaken(CASES["householder"].network(), rng)
    (cell,) = network.cells
    W = cell.recurrent_matrix().detach()
    network.renormalize_()
    assert_close(cell.recurrent_matrix().detach(), W)
    assert_close(
        torch.linalg.vector_norm(cell.V.detach(), dim=0), torch.ones(5).double()
    )
    assert torch.equal(cell.V, cell.V.tril())


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-25, 1e25])
def test_reflections_of_any_length_survive_renormalization(size, rng):
    """`renormalize_` leaves W unchanged, also for a column of this size; 0 gives H = I.

    A column of zeros, or of float32 numbers whose squares under- or overflow, used to
    become NaN or zero.
    """
    network = HouseholderRNN(3, 5, generator=rng)
    (cell,) = network.cells
    with torch.no_grad():
        cell.V[:, 1] = size
        cell.V[3, 1] *= 2
    before = cell.recurrent_matrix().detach()
    network.renormalize_()
    length = torch.linalg.vector_norm(cell.V[:, 1].detach())
    assert_close(length, torch.tensor(float(size > 0)))
    assert_close(cell.recurrent_matrix().detach(), before, rtol=0, atol=1e-5)


def test_singular_values_stay_within_the_margin(rng):
    """1 - m <= s <= 1 + m however far p goes, and s = 1 at p = 0."""
    (cell,) = CASES["spectral"].network().cells
    assert_close(cell.singular_values(), torch.ones(N).double())
    with torch.no_grad():
        cell.p.copy_(100 * torch.randn(N, dtype=torch.float64, generator=rng))
    s = torch.linalg.svdvals(cell.recurrent_matrix().detach())
    assert s.max() <= 1.3 + 1e-12
    assert s.min() >= 0.7 - 1e-12


@pytest.mark.errors
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScoRNN(2, 4, negatives=5), "`negatives` must be an integer .* got 5"),
        # a float used to fail later, with an error of torch
        (lambda: ScoRNN(2, 4, negatives=REAL), "integer between 0 .* 2.0"),
        (lambda: ScoRNN(0, 4), "`input_size` must be a positive integer; got 0"),
        (lambda: URNN(2, 4, epsilon=-1.0), "`epsilon` must be 0, or .* got -1.0"),
        # in float32, 0 / (0 + epsilon) would be 0 / 0
        (lambda: URNN(2, 4, epsilon=1e-40), "at least 1.2e-38; got 1e-40"),
        (lambda: EURNN(2, 5), "`hidden_size` must be even, .* got 5. Use 6"),
        (lambda: EURNN(2, 4, capacity=3), "`capacity` must be .* even .* got 3. Use 4"),
        (lambda: EURNN(2, 6, style="fft"), "must be a power of two .* got 6"),
        (lambda: EURNN(2, 6, style=UNKNOWN), "`style` must be one of 'tunable', 'fft'"),
        (lambda: EURNN(2, 4, capacity=REAL), "even integer, .* got 2.0"),
        (lambda: HouseholderRNN(2, 4, reflections=5), "`reflections` must be .* got 5"),
        (
            lambda: HouseholderRNN(2, 4, reflections=REAL),
            "`reflections` must be an integer between 1 .* got 2.0",
        ),
        (lambda: SpectralRNN(2, 4, margin=1.5), "`margin` must be between 0 and 1"),
        (
            lambda: SpectralRNN(2, 4, nonlinearity=UNKNOWN),
            "`nonlinearity` must be one of",
        ),
        (
            lambda: LieRNN(2, 4, nonlinearity=UNKNOWN),
            "must be one of 'tanh', 'relu'; got 'gelu'",
        ),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("no_shape_hook")
@pytest.mark.parametrize("name", ["scornn", "scurnn", "urnn", "eurnn", "householder"])
def test_compiles_in_one_graph(name, rng):
    """Both loops compile to one graph, in which the scan is ordinary operations."""
    network = shaken(CASES[name].network(), rng)
    x = torch.randn(2, 3, INPUTS, dtype=torch.float64, generator=rng)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), network(x))


def test_the_recurrent_matrix_is_that_of_the_definition(case, rng):
    """`recurrent_matrix` is the matrix of the definition, even if a cell forms none."""
    cell = shaken(case.network(), rng).typed_cells()[0]
    assert isinstance(cell, AbstractCell)
    # twice the worst over 30 seeds and all networks, 3.3 (lie relu)
    tol = 6.6 * N * torch.finfo(torch.float64).eps
    assert_near_largest(cell.recurrent_matrix(), case.weight(cell), tol=tol)


@pytest.mark.parametrize("kind", [ExpRNN, ExpLSTM, ExpGRU])
def test_our_cells_say_their_matrix_too(kind):
    """The `recurrent_matrix` of a gated cell is the matrix of its first gate."""
    (cell,) = kind(INPUTS, N).typed_cells()
    W = cell.recurrent_matrix().detach()
    assert isinstance(cell, AbstractCell)
    assert torch.equal(W, cell.weight_hh if kind is ExpRNN else cell.weight_hh[0])
