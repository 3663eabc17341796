"""The paper's networks by name: sizes, first values, optimizers and constraints."""

import copy
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, RMSprop
from torch.testing import assert_close

import isometry
from isometry import count_parameters
from isometry.groups import SO, U
from isometry.lab import Recipe, SequenceModel
from isometry.lab.paper.networks import NETWORKS, recipe_for
from isometry.lab.paper.protocol import SIZES
from isometry.lab.paper.tables import PAPER
from isometry.lab.task import AbstractTask
from isometry.lab.tasks import AddingTask, CopyingTask, MnistTask, TimitTask
from isometry.nn import ExpRNN, HouseholderRNN, LieRNN, ScoRNN, ScuRNN
from isometry.optim import RiemannianRMSprop, RiemannianSGD
from tests.helpers import eps

NAMES = list(NETWORKS)

TASKS: dict[str, AbstractTask] = {
    "copying": CopyingTask(),
    "mnist": MnistTask(),
    "pmnist": MnistTask(permute=True),
    "timit": TimitTask(),
    "adding": AddingTask(),
}


def by_name(
    name: str, task: str, hidden_size: int | None = None, **options: Any
) -> Recipe:
    return recipe_for(name, TASKS[task], hidden_size, **options)


def d_k(task: str) -> tuple[int, int]:
    return TASKS[task].input_size, TASKS[task].output_size


def orthogonal(task: str, n: int) -> int:
    d, k = d_k(task)
    return n * (n - 1) // 2 + n * d + n + n * k + k


def lstm(task: str, n: int) -> int:
    d, k = d_k(task)
    return 4 * (n * (n + d) + n) + n * k + k


def urnn(task: str, n: int) -> int:
    d, k = d_k(task)
    return 7 * n + 2 * n * d + 3 * n + 2 * n * k + k


def rgd(task: str, n: int) -> int:
    d, k = d_k(task)
    return n**2 + 2 * n * d + 3 * n + 2 * n * k + k


def scurnn(task: str, n: int) -> int:
    return rgd(task, n) + n


def eurnn(task: str, n: int, L: int) -> int:
    d, k = d_k(task)
    return L * (n - 1) + n + 2 * n * d + n + n * k + k


FORMULAS = {
    "exprnn": orthogonal,
    "scornn": orthogonal,
    "lstm": lstm,
    "urnn": urnn,
    "rgd": rgd,
    "scurnn": scurnn,
}

# every size in the paper's tables, and its number of parameters by the formulas
COUNTS = [
    *[("exprnn", "mnist", n, c) for n, c in ((170, 16415), (360, 68950))],
    *[("exprnn", "pmnist", n, c) for n, c in ((170, 16415), (512, 136970))],
    ("exprnn", "timit", 224, 83121),
    ("exprnn", "timit", 322, 135208),
    ("exprnn", "timit", 425, 200304),
    ("exprnn", "copying", 190, 21764),
    ("scornn", "copying", 190, 21764),
    ("scornn", "mnist", 170, 16415),
    ("scornn", "mnist", 360, 68950),
    ("scornn", "mnist", 512, 136970),
    ("scornn", "timit", 224, 83121),
    ("scornn", "timit", 322, 135208),
    ("scornn", "timit", 425, 200304),
    ("lstm", "mnist", 128, 67850),
    ("lstm", "mnist", 256, 266762),
    ("lstm", "mnist", 512, 1057802),
    ("lstm", "timit", 84, 82869),
    ("lstm", "timit", 120, 135609),
    ("lstm", "timit", 158, 202527),
    ("lstm", "copying", 68, 22109),
    # printed as 9K
    ("urnn", "mnist", 512, 16394),
    ("urnn", "mnist", 2170, 69450),
    # printed as rows of EURNN
    ("urnn", "timit", 158, 83237),
    ("urnn", "timit", 256, 134785),
    ("urnn", "timit", 378, 198957),
    ("urnn", "copying", 470, 22569),
    # printed as 9K
    ("rgd", "mnist", 116, 16366),
    # printed as 137K
    ("rgd", "mnist", 512, 274954),
    ("rgd", "timit", 128, 82945),
    ("rgd", "timit", 192, 136641),
    ("rgd", "timit", 256, 198529),
    ("rgd", "copying", 128, 21641),
    ("scurnn", "mnist", 116, 16482),
    ("scurnn", "mnist", 250, 69010),
    ("scurnn", "copying", 130, 22369),
]


@pytest.mark.parametrize(("name", "task", "n", "count"), COUNTS)
def test_free_parameters_are_those_of_the_formula(name, task, n, count):
    """The count is the group's dimension, the other weights, and the output layer."""
    model = by_name(name, task, n).make_model()
    assert count_parameters(model) == FORMULAS[name](task, n) == count


@pytest.mark.parametrize(
    ("task", "options", "count"),
    [
        # n = 512 and L = 12 make 22K, as many as the other networks have
        ("copying", {}, 22013),
        ("mnist", {}, 9222),
        ("mnist", {"style": "fft", "unitary": False}, 8458),
    ],
)
def test_free_parameters_of_eurnn(task, options, count):
    """L (n - 1) + n + 2dn + n + nk + k; if real, L (n - 1) / 2 + dn + n + nk + k."""
    recipe = by_name("eurnn", task, **options)
    if not options:
        assert eurnn(task, 512, recipe.options["capacity"]) == count
    assert count_parameters(recipe.make_model()) == count


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        # n m - m (m - 1) / 2 for the reflections, d n for the inputs, and n each for
        # bias and first state
        ("householder", {"reflections": 5}, 8 * 5 - 10 + 80 + 16 + 72 + 9),
        # twice n (n - 1) / 2 for the rotations, and n singular values
        ("spectral", {}, 56 + 8 + 80 + 8 + 72 + 9),
        # n^2 coefficients, and a complex bias
        ("lie", {}, 64 + 160 + 16 + 144 + 9),
        # four rotations, with an input kernel and a bias each
        ("explstm", {}, 4 * (28 + 80 + 8) + 72 + 9),
        ("gru", {}, 3 * (64 + 80 + 2 * 8) + 72 + 9),
    ],
)
def test_free_parameters_of_the_others(name, options, count):
    assert (
        count_parameters(by_name(name, "copying", 8, **options).make_model()) == count
    )


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_the_tables_are_all_counted_or_ours(name):
    """Every size in `SIZES` for copying and TIMIT has a row in `COUNTS`.

    The networks are those in `FORMULAS`; scuRNN on TIMIT is left out.
    """
    rows = {(row[0], row[1], row[2]) for row in COUNTS}
    for task in ("copying", "timit"):
        if name in FORMULAS and (name, task) != ("scurnn", "timit"):
            for n in SIZES[name][task]:
                assert (name, task, n) in rows


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_counts_of_other_modules():
    """A constrained weight counts by its dimension, a frozen one not at all."""
    plain = nn.Linear(5, 5)
    assert count_parameters(plain) == 30
    assert count_parameters(isometry.orthogonal(plain)) == 10 + 5
    tall = isometry.orthogonal(nn.Linear(3, 5, bias=False))
    # 5 x 3 orthonormal columns: nk - k (k + 1) / 2
    assert count_parameters(tall) == 9
    assert count_parameters(ExpRNN(2, 4, unitary=True)) == 16 + 16 + 4
    assert count_parameters(nn.Linear(5, 5).requires_grad_(False)) == 0
    # count_parameters used to divide by the number of entries of a point, which is 0
    assert count_parameters(isometry.orthogonal(nn.Linear(4, 0))) == 0


@pytest.mark.parametrize("kind", [ScoRNN, ScuRNN, HouseholderRNN, LieRNN])
def test_frozen_coordinates_do_not_count(kind):
    """Coordinates that are frozen, or shared by two cells, are counted correctly.

    The number of entries without effect used to be subtracted even if all were frozen,
    and once for each cell: a frozen ScoRNN of size 4 had -10 parameters.
    """
    network = kind(2, 4)
    (cell,) = network.cells
    coordinates = cell.V if kind is HouseholderRNN else cell.X
    others = [p for p in network.parameters() if p is not coordinates]
    rest = sum(p.numel() * (1 + p.is_complex()) for p in others)
    free = count_parameters(network)
    pair = nn.ModuleList([cell, copy.copy(cell)])
    assert count_parameters(pair) == free > rest
    coordinates.requires_grad_(False)
    assert count_parameters(network) == rest
    assert count_parameters(network.requires_grad_(False)) == 0


def example(task: str, rng: torch.Generator) -> Tensor:
    size = TASKS[task].input_size
    if task == "copying":
        return torch.randint(size, (12, 4), generator=rng)
    return torch.rand(12, 4, size, generator=rng)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_by_its_own_optimizers(name, task, rng):
    """Each parameter is moved by exactly one optimizer, and constraints hold."""
    recipe = by_name(name, task, 8)
    model = recipe.make_model(generator=rng)
    x = example(task, rng)
    makers = recipe.make_optimizers(model)
    moved = [
        p
        for optimizer in makers
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    assert len(moved) == len({id(p) for p in moved})
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {id(p) for p in moved} == {id(p) for p in trained}
    before = [p.detach().clone() for p in trained]
    for _ in range(5):
        for optimizer in makers:
            optimizer.zero_grad()
        y = model(x)
        steps = 1 if TASKS[task].last_only else 12
        assert y.shape == (steps, 4, TASKS[task].output_size)
        ((y - 1) ** 2).mean().backward()
        for optimizer in makers:
            optimizer.step()
        recipe.after_step(model)
    assert all(not torch.equal(p, old) for p, old in zip(trained, before, strict=True))
    if name not in ("lstm", "gru"):
        check_constraint(name, model)


def check_constraint(name: str, model: SequenceModel) -> None:
    network: Any = model.network
    (cell,) = network.cells
    W = cell.weight_hh if name.startswith("exp") else cell.recurrent_matrix()
    s = torch.linalg.svdvals(W.detach())
    low, high = {"spectral": (0.9, 1.1), "lie": (1.05, 1.05)}.get(name, (1.0, 1.0))
    # n eps: twice the worst over 10 seeds, all networks and tasks, 0.5 n eps
    tol = cell.hidden_size * eps(torch.float32)
    assert s.min() >= low - tol
    assert s.max() <= high + tol


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_says_where_it_comes_from(name):
    for task in TASKS:
        recipe = by_name(name, task)
        assert recipe.schedule.source
        assert recipe.hidden_size == SIZES[name][task][0]


def test_rates_of_the_appendix():
    """The paper's table: a tenth of the rate for the orthogonal weight."""
    for task, size, lr in (
        ("copying", 190, 2e-4),
        ("mnist", 170, 7e-4),
        ("mnist", 512, 3e-4),
        ("pmnist", 360, 7e-4),
        ("timit", 322, 7e-4),
    ):
        rest, slow = by_name("exprnn", task, size).schedule.optimizers
        assert rest.options["lr"] == lr
        assert slow.options["lr"] == pytest.approx(lr / 10)
        assert rest.optimizer_class is (Adam if task == "timit" else RMSprop)
        assert slow.optimizer_class is RMSprop


def test_reflections_are_unit_vectors_after_a_step(rng):
    recipe = by_name("householder", "adding", 6)
    model = recipe.make_model(generator=rng)
    recipe.after_step(model)
    network: Any = model.network
    lengths = torch.linalg.vector_norm(network.cells[0].V.detach(), dim=0)
    assert_close(lengths, torch.ones(6))


def test_rates_of_descent_are_on_the_manifold(rng):
    """The unitary weight's parameter group has the manifold U(n), the others None."""
    recipe = by_name("rgd", "copying", 8)
    groups = {
        w.optimizer_class: param_groups
        for w, param_groups in recipe.param_groups(recipe.make_model())
    }
    assert [g["manifold"] for g in groups[RiemannianSGD]] == [U(8)]
    assert all(g["manifold"] is None for g in groups[RiemannianRMSprop])
    recipe = by_name("spectral", "copying", 8)
    *_, (_, (both,)) = recipe.param_groups(recipe.make_model())
    assert both["manifold"] == SO(8)
    assert len(both["params"]) == 2


def test_lstm_is_that_of_tensorflow():
    """The LSTM has one bias vector, whose forget gate is 1, as TensorFlow's has.

    torch's second bias is zero and stays zero.
    """
    network: Any = by_name("lstm", "mnist", 16).make_model().network
    bias = network.bias_ih_l0.detach()
    assert_close(bias[16:32], torch.ones(16))
    assert_close(bias[:16].abs().sum() + bias[32:].abs().sum(), torch.tensor(0.0))
    assert not network.bias_hh_l0.requires_grad
    assert not network.bias_hh_l0.any()
    assert network.weight_hh_l0.abs().max() <= math.sqrt(6 / (17 + 64))


@pytest.mark.parametrize(
    ("name", "task", "bound", "bias"),
    [
        ("scornn", "copying", math.sqrt(6 / (32 + 9)), math.sqrt(1 / 3)),
        ("scornn", "mnist", math.sqrt(6 / (32 + 10)), 0.0),
        # 32 complex numbers count as 64 real ones
        ("urnn", "copying", math.sqrt(6 / (64 + 9)), 0.0),
        # the bound has the number of inputs, 10, in place of the number of features
        ("eurnn", "copying", math.sqrt(6 / (10 + 9)), 0.01),
        ("exprnn", "mnist", 1 / math.sqrt(32), 1 / math.sqrt(32)),
    ],
)
def test_output_layers_start_as_their_authors_wrote(name, task, bound, bias, rng):
    output = by_name(name, task, 32).make_model(generator=rng).output
    assert 0.9 * bound <= output.weight.abs().max() <= bound
    # the largest of nine or ten uniform numbers is below 0.2 once in two million draws
    assert 0.2 * bias <= output.bias.abs().max() <= bias
    assert output.in_features == (64 if name == "urnn" else 32)


def test_options_replace_those_of_the_task():
    recipe = by_name("eurnn", "copying", 8, capacity=2)
    network: Any = recipe.make_model().network
    assert network.cells[0].theta.shape == (1, 7)


@pytest.mark.errors
def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"`model` must be one of exprnn, .*'resnet'"):
        by_name("resnet", "copying")
    with pytest.raises(
        ValueError, match=r"`task.settings_of` must be one of .*'chess'"
    ):
        recipe_for("scornn", Chess())


class Chess(CopyingTask):
    """A task for which the paper has no recipe."""

    settings_of: ClassVar[str] = "chess"


def test_every_printed_size_is_a_size_of_its_network():
    """Each size in the paper's tables is a size of its network in the registry."""
    for task in ("mnist", "pmnist", "timit"):
        for row in PAPER[task].rows:
            sizes = SIZES[row.model][task]
            # the rows of scoRNN and EURNN in Table 2 have the sizes of their own papers
            assert row.hidden_size in sizes, (task, row)
