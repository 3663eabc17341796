"""Use isometry with a torch that lacks private names: one by one, then all of them.

Run as a program, this module prints a line for each name. Each name is hidden in a
process of its own, before isometry is imported, as if a newer torch had dropped it.
"""

import importlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap
from torch.nn.utils import parametrize
from torch.testing import assert_close

# private attributes of objects; `Module` records which private functions are asked for
ATTRIBUTES = {
    "Tensor._version": torch.Tensor,
    "Tensor._cdata": torch.Tensor,
    "UntypedStorage._cdata": torch.UntypedStorage,
}
VARIABLES = {
    "forward_ad._current_level": (torch.autograd, forward_ad),
    "parametrize._cache_enabled": (torch.nn.utils, parametrize),
}

asked: set[str] = set()
fork = multiprocessing.get_context("fork")


class Module:
    """A module of torch without the names in `hidden`.

    Records the names it is asked for.
    """

    def __init__(self, module: Any, hidden: set[str]) -> None:
        self.module, self.hidden = module, hidden

    def __getattr__(self, name: str) -> Any:
        full = f"{self.module.__name__}.{name}"
        asked.add(full)
        if full in self.hidden:
            raise AttributeError(full)
        return getattr(self.module, name)


def absent(_object: Any) -> Any:
    """A property that behaves as if the class had no such attribute."""
    raise AttributeError


@contextmanager
def without(hidden: set[str]) -> Iterator[None]:
    """Hide names while isometry is imported; torch itself needs some of them later."""
    find = importlib.import_module

    def find_some(name: str, package: str | None = None) -> Any:
        module = find(name, package)
        return Module(module, hidden) if name.startswith("torch._") else module

    for name in hidden & ATTRIBUTES.keys():
        setattr(ATTRIBUTES[name], name.partition(".")[2], property(absent))
    for name in hidden & VARIABLES.keys():
        package, module = VARIABLES[name]
        public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
        setattr(package, name.partition(".")[0], SimpleNamespace(**public))
    importlib.import_module = find_some
    try:
        yield
    finally:
        importlib.import_module = find
        for package, module in VARIABLES.values():
            setattr(package, module.__name__.rpartition(".")[2], module)


def use() -> None:
    """Compute, differentiate and train; raise if a number is wrong."""
    import isometry
    from isometry.linalg import expm_skew, skew

    torch.manual_seed(0)
    X = torch.randn(3, 40, 40, dtype=torch.float64) / 8

    def loss(X: torch.Tensor, f: Callable[..., torch.Tensor]) -> torch.Tensor:
        return f(skew(X))[..., 0].sum()

    ours, torchs = ((lambda X, f=f: loss(X, f)) for f in (expm_skew, torch.matrix_exp))
    assert_close(ours(X), torchs(X))
    assert_close(vmap(grad(ours))(X), vmap(grad(torchs))(X))
    assert_close(jvp(ours, (X,), (X,)), jvp(torchs, (X,), (X,)))
    Y = X[0, :3, :3]
    assert_close(hessian(ours)(Y), hessian(torchs)(Y))
    # forward mode twice, where torch drops a tangent of autograd functions
    twice = [
        jvp(lambda Y, f=f: jvp(f, (Y,), (Y,))[1], (Y,), (Y,)) for f in (ours, torchs)
    ]
    assert_close(*twice)
    with torch.device("meta"):
        assert isometry.orthogonal(torch.nn.Linear(8, 8)).weight.is_meta
    train(isometry)
    recur(isometry)


def train(isometry: Any) -> None:
    """Train a layer with both kinds of checkpointing, and write to its coordinates."""
    layer = isometry.orthogonal(torch.nn.Linear(8, 8), rebase_every=2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    x = torch.ones(8, requires_grad=True)
    gradients = []
    for reentrant in (None, False, True):
        optimizer.zero_grad()
        y = (
            layer(layer(x))
            if reentrant is None
            else torch.utils.checkpoint.checkpoint(
                lambda x: layer(layer(x)), x, use_reentrant=reentrant
            )
        )
        y[0].backward(retain_graph=reentrant is None)
        if reentrant is None:
            optimizer.zero_grad()
            y[0].backward()
        gradients.append([p.grad.clone() for p in layer.parameters()])
    for others in gradients[1:]:
        assert_close(others, gradients[0])
    for _ in range(4):
        optimizer.zero_grad()
        layer(layer(x)).square().sum().backward()
        optimizer.step()
        W = layer.weight
        assert torch.dist(W.mT @ W, torch.eye(8)) < 1e-5
    X, W = layer.parametrizations.weight.original, layer.weight.detach().clone()
    with torch.no_grad():
        assert torch.equal(layer.weight, W)
        X.add_(torch.ones_like(X).tril(-1))
        assert torch.dist(layer.weight, W) > 0.1


def recur(isometry: Any) -> None:
    """Train a recurrent layer with an optimizer on the manifold."""
    from isometry import optim
    from isometry.nn import ExpRNN

    layer, x = ExpRNN(3, 8), torch.randn(5, 2, 3)
    layer(x)[0].square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    layer = torch.nn.Linear(6, 6)
    layer.weight.data.copy_(torch.eye(6))
    isometry.declare(layer, "weight", isometry.groups.SO(6))
    optimizer = optim.RiemannianSGD(isometry.param_groups(layer, lr=0.1))
    before = layer.weight.detach().clone()
    layer(torch.ones(6))[0].backward()
    optimizer.step()
    W = layer.weight.detach()
    assert torch.dist(W.mT @ W, torch.eye(6)) < 1e-5 < torch.dist(W, before)


def use_without(hidden: set[str]) -> None:
    """Use isometry without these names, and print the number of warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        # torch warns about its own formulas of forward mode
        warnings.filterwarnings("ignore", "`torch.jit")
        with without(hidden):
            importlib.import_module("isometry._torch")
        use()
    texts = [str(warning.message) for warning in caught]
    sys.stdout.write(" ".join([str(len(texts)), *sorted(hidden), *texts]) + "\n")


def run(function: Callable[..., None], *args: object) -> None:
    """Call `function` in a copy of this process, which has not imported isometry."""
    process = fork.Process(target=function, args=args)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"failed: {args}")


def send_names(queue: Any) -> None:
    """Import isometry, and send the names that it asks torch's private modules for."""
    with without(set()):
        importlib.import_module("isometry._torch")
    queue.put(asked)


if __name__ == "__main__":
    # torch compiles its formulas of forward mode once, here instead of in each copy
    jvp(grad(lambda Y: torch.matrix_exp(Y).sum()), (torch.eye(2),), (torch.eye(2),))
    names = fork.SimpleQueue()
    run(send_names, names)
    everything = {*names.get(), *ATTRIBUTES, *VARIABLES}
    for name in sorted(everything):
        run(use_without, {name})
    run(use_without, everything)
