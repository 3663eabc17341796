"""A cached weight is never stale, whoever writes to it or to its coordinates.

A write that torch's version counter does not see used to leave the old weight in use.
"""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import isometry
from isometry._backend import memory
from isometry.parametrizations import _cache
from tests.parametrizations.cases import orthonormality

N = 6
KEY = "parametrizations.weight.original"


def make(dtype: torch.dtype = torch.float32, n: int = N, **options: Any) -> nn.Linear:
    layer = isometry.orthogonal(nn.Linear(n, n, dtype=dtype), **options)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        coordinates(layer).copy_(0.3 * torch.randn(n, n, generator=rng, dtype=dtype))
    return layer


def coordinates(layer: nn.Module) -> Any:
    return layer.parametrizations.weight.original


def base(layer: nn.Module) -> Any:
    return layer.parametrizations.weight[0].base


def fresh(layer: nn.Module) -> Any:
    """The weight as computed by a copy of the layer, whose cache is empty."""
    with torch.no_grad():
        return copy.deepcopy(layer).weight


@pytest.fixture(params=[True, False], ids=["gradients", "no_grad"])
def gradients(request):
    with torch.set_grad_enabled(request.param):
        yield request.param


@pytest.fixture(params=["C", "Python"])
def comparison(request, monkeypatch):
    """Compare bytes with the kernel, and as on machines without kernels."""
    if request.param == "Python":
        monkeypatch.setattr(memory, "c_watch", lambda: None)


def swap_two(X: Tensor) -> None:
    X[2, 0], X[3, 1] = X[3, 1].clone(), X[2, 0].clone()


WRITES = {
    "data.add_": lambda X: X.data.add_(0.1),
    "data.copy_": lambda X: X.data.copy_(torch.ones_like(X)),
    "data.zero_": lambda X: X.data.zero_(),
    "data.neg_": lambda X: X.data.neg_(),
    "data assigned": lambda X: setattr(X, "data", torch.ones_like(X.data)),
    "data transposed": lambda X: setattr(X, "data", X.data.t()),
    "numpy": lambda X: X.detach().numpy().__setitem__(slice(None), 0.5),
    "one entry": lambda X: X.data[-1, 0].add_(1e-3),
    "one entry, numpy": lambda X: X.detach().numpy().__setitem__((3, 1), 0.25),
    "a swap of two": lambda X: swap_two(X.data),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_the_coordinates_is_seen(name, gradients, comparison):
    """After any of these writes the weight is new.

    All reads used to return the old weight.
    """
    layer = make()
    before = layer.weight.detach().clone()
    WRITES[name](coordinates(layer))
    assert torch.equal(layer.weight, fresh(layer))
    assert torch.dist(layer.weight, before) > 1e-5


@pytest.mark.parametrize("name", [name for name in WRITES if "entry" not in name])
def test_a_write_to_the_base_is_seen(name, gradients, comparison):
    layer = make()
    _ = layer.weight
    target = torch.linalg.qr(base(layer).flip(0)).Q
    WRITES[name](base(layer))
    base(layer).data.copy_(target)
    assert torch.equal(layer.weight, fresh(layer))


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.complex64, torch.complex128, torch.float16, torch.bfloat16],
    ids=str,
)
def test_every_dtype_is_compared(dtype, gradients, comparison):
    layer = make(dtype)
    for entry in ((1, 0), (5, 4)):
        _ = layer.weight
        coordinates(layer).data[entry] += 0.25
        assert torch.equal(layer.weight, fresh(layer))


def test_a_lazy_conjugate_is_seen(gradients, comparison):
    """`p.data = p.data.conj()` changes the value, though no byte, and is noticed."""
    layer = make(torch.complex64)
    coordinates(layer).data.mul_(1 + 1j)
    before = layer.weight.detach().clone()
    coordinates(layer).data = coordinates(layer).data.conj()
    assert torch.dist(layer.weight, before) > 0.1


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (300, 300)], ids=str)
def test_tall_wide_and_large_weights_are_compared(shape, gradients, comparison):
    """Tall, wide and large weights are compared, large ones by several threads."""
    layer = isometry.orthogonal(nn.Linear(*shape))
    X = coordinates(layer)
    for entry in (1, X.numel() // 2 + 1, X.numel() - 2):
        first = layer.weight
        assert layer.weight is first
        X.data.view(-1)[entry] += 0.5
        assert torch.equal(layer.weight, fresh(layer))
        W = layer.weight
        W.data[0, 0] = 7
        assert torch.equal(layer.weight, fresh(layer))


def test_nan_equals_itself_and_negative_zero_differs(comparison):
    """Bytes are compared: NaN equals itself, and -0.0 differs from 0.0."""
    layer = isometry.orthogonal(nn.Linear(N, N))
    with torch.no_grad():
        first = layer.weight
        assert layer.weight is first
        coordinates(layer).data[1, 0] = -0.0
        second = layer.weight
        assert second is not first
        coordinates(layer).data[1, 0] = torch.nan
        third = layer.weight
        assert third.isnan().any()
        assert layer.weight is third


def double_numpy(layer: nn.Linear) -> None:
    array = layer.weight.detach().numpy()
    array *= 2


HANDED_OUT = {
    "data.normal_": lambda layer: layer.weight.data.normal_(0, 0.02),
    "numpy": lambda layer: layer.weight.detach().numpy().__setitem__(slice(None), 7),
    "numpy in place": double_numpy,
    "one entry": lambda layer: layer.weight.data[2, 3].add_(1e-3),
    "data assigned": lambda layer: setattr(layer.weight, "data", torch.ones(N, N)),
    "data transposed": lambda layer: setattr(
        layer.weight, "data", layer.weight.data.t()
    ),
    "apply": lambda layer: layer.apply(
        lambda m: m.weight.data.normal_() if isinstance(m, nn.Linear) else None
    ),
}


@pytest.mark.parametrize("name", HANDED_OUT)
def test_a_write_to_a_weight_changes_nothing(name, gradients, comparison):
    """A write to a weight changes nothing.

    The layer used to compute with what was written, off by 2.0 from orthogonal, while
    `diagnose` said 8e-8.
    """
    layer = make()
    expected = fresh(layer)
    x = torch.ones(2, N)
    y = layer(x).detach()
    HANDED_OUT[name](layer)
    assert torch.equal(layer(x), y)
    assert torch.equal(layer.weight, expected)
    error = isometry.diagnose(layer)["weight"].orthogonality_error
    defect = orthonormality(layer.weight.detach()) / N**0.5
    # 5: twice the worst over 200 seeds, 2.3
    assert max(error, defect) <= 5 * torch.finfo(torch.float32).eps


def test_gradcheck_over_a_layer():
    """gradcheck, which perturbs the coordinates through `.data`, passes.

    Its Jacobian used to be zero.
    """
    layer = make(torch.float64)
    x = torch.linspace(-1, 1, 2 * N, dtype=torch.float64).reshape(2, N)

    def loss(_: Tensor) -> Tensor:
        return layer(x)

    assert torch.autograd.gradcheck(loss, (coordinates(layer),))


def test_vector_to_parameters(gradients):
    layer, other = make(), make()
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        coordinates(other).mul_(-0.5)
    vector = nn.utils.parameters_to_vector(other.parameters()).detach()
    before = layer.weight.detach().clone()
    nn.utils.vector_to_parameters(vector, layer.parameters())
    assert torch.equal(layer.weight, other.weight)
    assert torch.dist(layer.weight, before) > 0.1


def test_swapping_averages_in_and_out(gradients):
    """Averages can be swapped in and out by `p.data.copy_`, as every EMA does.

    Outputs used to be those of the weights before the swap.
    """
    layer = make()
    x = torch.ones(1, N)
    average = {key: 0.5 * p.detach() for key, p in layer.named_parameters()}
    own = {key: p.detach().clone() for key, p in layer.named_parameters()}
    trained = layer(x).detach()
    for key, p in layer.named_parameters():
        p.data.copy_(average[key])
    assert torch.equal(layer.weight, fresh(layer))
    assert torch.dist(layer(x), trained) > 0.1
    for key, p in layer.named_parameters():
        p.data.copy_(own[key])
    assert torch.equal(layer(x), trained)


@torch.enable_grad()
def _train_shared(layer: nn.Module, x: Tensor, y: Tensor) -> None:
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()


@pytest.mark.once
def test_training_in_shared_memory(gradients, rng):
    """A child trains in shared memory, and the parent sees it.

    The parent used to see a loss of 2.10 instead of 0.0002.
    """
    layer = make().share_memory()
    x = torch.randn(32, N, generator=rng)
    goal = copy.deepcopy(layer)
    with torch.no_grad():
        # within reach: the same base, and coordinates of the other sign
        coordinates(goal).neg_()
        y = goal(x)
    before = (layer(x) - y).detach().square().mean()
    # a parametrized module cannot be pickled, so a child inherits it
    child = torch.multiprocessing.get_context("fork").Process(
        target=_train_shared, args=(layer, x, y)
    )
    child.start()
    child.join(120)
    assert child.exitcode == 0
    after = (layer(x) - y).detach().square().mean()
    # the worst over 20 seeds is 1e-4 of the loss before
    assert after < 0.5 * before
    assert torch.equal(layer.weight, fresh(layer))


def test_a_second_backward_pass_after_an_unseen_write():
    """A second backward pass after an unseen write is an error, as after a step.

    The graph would be recomputed from other coordinates.
    """
    layer = make()
    first, second = layer(torch.ones(1, N)).sum(), layer(torch.ones(2, N)).sum()
    first.backward()
    coordinates(layer).data.mul_(2)
    with pytest.raises(RuntimeError, match="must not change between two backward"):
        second.backward()


def test_inference_mode_remembers():
    """In inference mode the weight is cached.

    It used to be computed for every read.
    """
    layer = make()
    with torch.inference_mode():
        first = layer.weight
        assert layer.weight is first
    assert not first.is_inference()
    with torch.no_grad():
        assert layer.weight is first
    layer(torch.ones(1, N)).sum().backward()


def test_a_weight_without_bytes_is_kept_by_its_graph_only(monkeypatch):
    """Where bytes cannot be compared, only a graph keeps the weight.

    A write through `.data`, as on other devices, is seen once the graph is gone.
    """
    monkeypatch.setattr(_cache, "is_block", lambda _: False)
    layer = make()
    x = torch.ones(1, N, requires_grad=True)
    y = layer(x)
    # the product has saved the weight, and holds it
    first = layer.weight
    assert layer.weight is first
    del y, first
    coordinates(layer).data.mul_(0.5)
    assert torch.equal(layer.weight, fresh(layer))
    # an in-place change and the step of an optimizer are seen at once
    references = layer(x), layer.weight
    with torch.no_grad():
        coordinates(layer).mul_(0.5)
    assert torch.equal(layer.weight, fresh(layer))
    references = layer(x), layer.weight
    references[0].sum().backward()
    torch.optim.Adam(layer.parameters(), lr=0.1, fused=True).step()
    assert torch.equal(layer.weight, fresh(layer))
    with torch.no_grad():
        assert layer.weight is not layer.weight


def test_other_devices_remember_within_a_graph_only():
    """Other devices cache the weight within a graph only.

    To compare bytes, the host would wait for the device; meta stands in for one.
    """
    layer = isometry.orthogonal(nn.Linear(N, N, device="meta"))
    with torch.no_grad():
        assert layer.weight is not layer.weight
    first = layer.weight
    assert layer.weight is first
    with torch.no_grad(), parametrize.cached():
        assert layer.weight is layer.weight


def test_threads_train_and_read_one_layer():
    """Threads train and read one layer, each with its own graph.

    A thread used to raise because of a step in another thread.
    """
    layer = make(n=32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    x = torch.ones(3, 32)
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(train: bool) -> None:
        try:
            for _ in range(50):
                if not train:
                    with torch.no_grad():
                        assert layer(x).isfinite().all()
                    continue
                loss = layer(x).square().sum()
                with lock:
                    loss.backward()
                    optimizer.step()
        except BaseException as error:  # noqa: BLE001 - the main thread looks at it
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i < 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    with torch.no_grad():
        assert torch.equal(layer.weight, fresh(layer))
