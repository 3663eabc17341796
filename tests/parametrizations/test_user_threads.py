"""Questions and complaints of users of other libraries, each with its answer.

`user_threads.py` lists the threads, each with the tests that answer it. The tests here
are the ones that no other file has.
"""

import ast
import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import isometry
from isometry import manifold_of
from isometry.groups import SO, O, Stiefel
from tests.helpers import random_skew, random_unitary
from tests.parametrizations import reference
from tests.parametrizations.cases import MAPS, Weight
from tests.parametrizations.user_threads import THREADS

ROOT = Path(__file__).parents[2]


def test_every_thread_is_answered():
    """Each of 38 threads is answered by tests, or has a reason why it is not ours."""
    assert list(THREADS) == list(range(1, 39))
    for number, thread in THREADS.items():
        assert re.fullmatch(r"[\w.-]+#\d+(, ([\w.-]*)#\d+)*", thread.where), number
        assert thread.tests or thread.reason, number


@pytest.mark.parametrize("number", THREADS)
def test_the_tests_that_answer_a_thread_exist(number):
    for test in THREADS[number].tests:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert name in names, test


class Seen(TorchDispatchMode):
    """Records the operations that torch executes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        #: rows and columns of all results
        self.sizes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket.__name__)
        self.sizes += [
            tuple(t.shape[-2:])
            for t in (result if isinstance(result, tuple | list) else [result])
            if isinstance(t, Tensor) and t.ndim > 1
        ]
        return result


def trained_once(module: nn.Module, coordinates: Tensor) -> Seen:
    """Operations of a forward and a backward pass through the weight."""
    module.parametrizations.weight.original.data.copy_(coordinates)
    with Seen() as seen:
        module.weight.square().sum().backward()
    return seen


@pytest.mark.parametrize("shape", [(32, 32), (96, 12), (12, 96)], ids=str)
@pytest.mark.parametrize("retraction", MAPS)
def test_no_matrix_is_larger_than_it_must_be(retraction, shape, rng):
    """No matrix is 2n x 2n, and none is n x n if the weight is tall.

    pytorch#105225, diffBloch#174, geotorch#30. torch's backward pass multiplies
    matrices of twice the size.
    """
    module = isometry.orthogonal(Weight(torch.eye(*shape)), "weight", retraction)
    X = 0.1 * torch.randn(shape, generator=rng)
    # leave out sums of up to eight matrices, which are flattened to rows of one matrix
    sizes = {size for size in trained_once(module, X).sizes if min(size) > 8}
    n, k = max(shape), min(shape)
    # a tall exponential consists of 2k x 2k matrices
    inner = k if n == k else 2 * k
    assert sizes
    assert {size for size in sizes if min(size) > inner or max(size) > n} == set()


@pytest.mark.parametrize("retraction", MAPS)
def test_a_batch_is_not_computed_one_by_one(retraction, rng):
    """A batch is computed at once.

    pytorch#107291: batches of tiny matrices were scaled in a loop.
    """
    X = torch.randn(10, 3, 3, generator=rng)
    counts = []
    for times in (1, 100):
        module = Weight(torch.eye(3).expand(10 * times, 3, 3).clone())
        isometry.orthogonal(module, "weight", retraction)
        names = trained_once(module, X.repeat(times, 1, 1)).names
        # `detach` computes nothing, and torch 2.7 calls it twice as often as 2.13
        counts.append(sum(name != "detach" for name in names))
    # The counts are equal for four seeds of five. If few matrices need a plan of their
    # own, a small batch may take up to 25 operations more; a large one never did in 200
    # seeds.
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("shape", [(16, 16), (96, 8)], ids=str)
def test_the_default_map_factorizes_nothing(shape, rng):
    """The default map factorizes nothing and needs products only.

    pytorch#136692: matrix_exp is missing on some devices.
    """
    module = isometry.orthogonal(Weight(torch.eye(*shape)))
    seen = trained_once(module, 0.1 * torch.randn(shape, generator=rng))
    rare = re.compile(r"inv|solve|lu_|qr$|eig|svd|cholesky|matrix_exp|householder")
    assert [name for name in seen.names if rare.search(name)] == []


@pytest.mark.parametrize("ratio", [1, 2])
def test_reflections_are_not_applied_one_by_one(ratio, rng):
    """Reflections are applied in blocks.

    householder#7: the backward pass took a thousand times as long as the forward pass.
    """
    counts = []
    for n in (8, 64):
        shape = (n, n // ratio)
        module = isometry.orthogonal(Weight(torch.eye(*shape)), "weight", "householder")
        seen = trained_once(module, torch.randn(shape, generator=rng))
        counts.append(len(seen.names))
    assert counts[0] == counts[1]


def test_the_keys_of_a_checkpoint_do_not_change_with_use(rng):
    """The keys of a checkpoint do not change with use.

    expRNN#7: after a forward pass there was one more key, which did not load.
    """
    layer = isometry.orthogonal(nn.Linear(5, 5), rebase_every=1)
    fresh = isometry.orthogonal(nn.Linear(5, 5))
    keys = list(layer.state_dict())
    layer.eval()
    with torch.no_grad():
        layer(torch.randn(2, 5, generator=rng))
    optimizer = torch.optim.SGD(layer.train().parameters(), lr=0.1)
    layer(torch.randn(2, 5, generator=rng)).square().sum().backward()
    optimizer.step()
    assert list(layer.state_dict()) == keys == list(fresh.state_dict())
    fresh.load_state_dict(layer.state_dict())
    assert torch.equal(fresh.weight, layer.weight)


def test_a_checkpoint_of_the_first_version_is_read(rng):
    """A checkpoint of the first version is read: the format is fixed.

    peft#2219: adapters of an older version did not load.
    """
    X = 0.1 * torch.randn(5, 5, generator=rng)
    B = random_unitary(5, dtype=torch.float32, rng=rng)
    layer = isometry.orthogonal(nn.Linear(5, 5, bias=False))
    layer.load_state_dict(
        {
            "parametrizations.weight.original": X,
            "parametrizations.weight.0.map": torch.tensor([101, 120, 112]).byte(),
            "parametrizations.weight.0.base": B,
            "parametrizations.weight.0.steps": torch.tensor(7),
        }
    )
    expected = B.double() @ torch.matrix_exp(reference.skew(X.double()))
    assert_close(layer.weight.double(), expected, rtol=0, atol=2e-6)
    assert int(layer.parametrizations.weight[0].steps) == 7
    vectors = torch.randn(5, 5, generator=rng)
    other = isometry.orthogonal(nn.Linear(5, 5, bias=False), "weight", "householder")
    phase = torch.tensor([1.0, -1, 1, 1, -1])
    name = torch.tensor(list(b"householder")).byte()
    other.load_state_dict(
        {
            "parametrizations.weight.original": vectors,
            "parametrizations.weight.0.map": name,
            "parametrizations.weight.0.phase": phase,
        }
    )
    assert_close(other.weight, reference.reflected(vectors, phase), rtol=0, atol=2e-6)


@pytest.mark.parametrize("retraction", MAPS)
def test_a_model_made_on_meta_is_whole_after_loading(retraction):
    """A model made on meta is complete after loading.

    adapters#805: the base stayed on meta. In isometry the name of the map used to stay
    there, and the model could not be moved.
    """
    with torch.device("meta"):
        layer = isometry.orthogonal(nn.Linear(5, 5), "weight", retraction)
    other = isometry.orthogonal(nn.Linear(5, 5), "weight", retraction)
    result = layer.load_state_dict(other.state_dict(), assign=True)
    assert result.missing_keys == result.unexpected_keys == []
    assert not any(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
    assert torch.equal(layer.to("cpu").weight, other.weight)


def test_it_is_the_coordinates_that_have_a_gradient(rng):
    """The coordinates have the gradient, since the weight is computed.

    geotorch#44: "grad is None".
    """
    layer = isometry.orthogonal(nn.Linear(5, 5))
    W = layer.weight
    W.retain_grad()
    layer(torch.randn(2, 5, generator=rng)).square().sum().backward()
    assert W.grad is not None
    assert W.grad.abs().sum() > 0
    assert all(p.grad is not None for p in layer.parameters())


def orthogonal_matrices(n: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Orthogonal matrices as users obtain them, in single precision."""
    X = torch.randn(n, n, generator=rng)
    U, _, Vh = torch.linalg.svd(X)
    Q = random_unitary(n, dtype=torch.float32, rng=rng)
    power = Q
    for _ in range(4):
        power = power @ power
    A = random_skew(n, norm=3.0, dtype=torch.float32, rng=rng)
    return {
        "QR": torch.linalg.qr(X).Q,
        "SVD": U @ Vh,
        "nn.init": nn.init.orthogonal_(torch.empty(n, n), generator=rng),
        "Haar": SO(n).random(generator=rng),
        "product": power,
        "matrix_exp": torch.matrix_exp(A),
        "polar": isometry.linalg.polar(X),
        "on disk": isometry.linalg.polar(X).mT.contiguous(),
    }


@pytest.mark.parametrize("n", [1, 2, 3, 10, 64, 200])
def test_what_is_orthogonal_to_rounding_is_taken(n, rng):
    """A matrix that is orthogonal up to rounding can be assigned.

    geotorch#15: assignments failed at random, by a tolerance that was too small.
    """
    layer = isometry.orthogonal(Weight(torch.eye(n)))
    for _ in range(3):
        for Q in orthogonal_matrices(n, rng).values():
            layer.weight = Q
            # 1.1e-5: twice the worst entry, the error of matrix_exp at n = 200
            assert_close(layer.weight, Q, rtol=0, atol=1.1e-5)


def test_a_copy_lives_on_the_same_manifold():
    """A copy stays on the manifold.

    geoopt#188: a deepcopy was a plain tensor, and left the manifold in training.
    """
    layer = isometry.orthogonal(nn.Linear(5, 5), det=1)
    twin = copy.deepcopy(layer)
    assert manifold_of(twin, "weight") == SO(5)
    square = copy.deepcopy(isometry.orthogonal(nn.Linear(5, 5)))
    assert manifold_of(square, "weight") == O(5)
    assert "O(n=5), exp" in repr(square)
    tall = copy.deepcopy(isometry.orthogonal(nn.Linear(3, 5)))
    assert manifold_of(tall, "weight") == Stiefel(5, 3)
