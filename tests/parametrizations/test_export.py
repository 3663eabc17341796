"""Constrained models that leave Python: torch.export, ONNX, TorchScript, pickle."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.utils import parametrize
from torch.testing import assert_close

import isometry
from isometry.groups import Exp
from tests.helpers import needs_torch
from tests.parametrizations.cases import MAPS

pytestmark = pytest.mark.usefixtures("no_shape_hook")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Discard the compiled code of earlier tests.

    Torch 2.7 exports through Dynamo, which refuses to compile more once earlier tests
    have used up its limit.
    """
    torch.compiler.reset()


def model(retraction: Any = "exp") -> nn.Sequential:
    """Square and tall weights away from their bases, in evaluation mode."""
    network = nn.Sequential(
        isometry.orthogonal(nn.Linear(6, 6), "weight", retraction),
        nn.Tanh(),
        isometry.orthogonal(nn.Linear(6, 3), "weight", retraction),
    )
    with torch.no_grad():
        for X in network.parameters():
            X.add_(0.1)
    return network.eval()


def operations(program: ExportedProgram) -> list[str]:
    """All calls of a program, including its inner graphs."""
    graphs = [
        m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)
    ]
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    return [str(node.target) for node in nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("retraction", MAPS)
def test_a_program_has_the_numbers_of_the_model(retraction, strict, rng):
    """An exported program has the outputs of the model for any batch size.

    With other coordinates it computes the weight anew.
    """
    network = model(retraction)
    x, y = torch.randn(4, 6, generator=rng), torch.randn(7, 6, generator=rng)
    batch = ({0: Dim("batch")},)
    program = export(network, (x,), dynamic_shapes=batch, strict=strict).module()
    assert torch.equal(program(y), network(y))
    with torch.no_grad():
        for layer in (network[0], network[2]):
            layer.parametrizations.weight.original.mul_(10)
    program.load_state_dict(network.state_dict(), strict=False)
    assert torch.equal(program(y), network(y))


def test_a_folded_program_has_plain_weights(rng):
    """An exported folded model has only its linear maps and tanh.

    pytorch#167645: an exported model ignored the cache, and was 25 times slower. A
    constrained one computes its weights in each call.
    """
    network = model()
    x = torch.randn(4, 6, generator=rng)
    program = export(network, (x,))
    assert "isometry.expm_skew.default" in operations(program)
    y = network(x)
    folded = export(isometry.fold(network), (x,))
    linear = "aten.linear.default"
    assert operations(folded) == [linear, "aten.tanh.default", linear]
    assert set(folded.state_dict) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(folded.module()(x), network(x))
    # 5e-7: twice the worst of 20 seeds; the weights are equal, but their strides are
    # not, and products sum in another order
    assert_close(network(x), y, rtol=0, atol=5e-7)


class Twice(nn.Module):
    """Reads its weight twice, inside of torch's own cache or not."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.layer = isometry.orthogonal(nn.Linear(4, 4))
        self.cached = cached

    def forward(self, x: Tensor) -> Tensor:
        if self.cached:
            with parametrize.cached():
                return self.layer(self.layer(x))
        return self.layer(self.layer(x))


# torch warns about the dictionary of `cached()`, which is empty before and after
@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
@pytest.mark.parametrize(
    ("cached", "strict"),
    [
        pytest.param(
            *(True, True),
            marks=needs_torch("2.10", "`parametrize.cached()` in a strict export"),
        ),
        (True, False),
        (False, True),
        (False, False),
    ],
)
def test_a_program_computes_at_each_read_but_under_cached(cached, strict, rng):
    """A program computes the weight at each read, but once under `cached()`."""
    network = Twice(cached).eval()
    x = torch.randn(2, 4, generator=rng)
    program = export(network, (x,), strict=strict)
    reads = operations(program).count("isometry.expm_skew.default")
    assert reads == (1 if cached else 2)
    assert torch.equal(program.module()(x), network(x))


# torch 2.10 warns about its own way to read the file
@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("retraction", [*MAPS, Exp(reach=3.0)], ids=str)
def test_a_program_survives_a_file(retraction, rng, tmp_path):
    """A program survives a file; loading it needs isometry, whose operators it calls.

    Torch before 2.10 refuses NaN in the file, which tall weights used to contain.
    """
    network = model(retraction)
    x = torch.randn(4, 6, generator=rng)
    torch.export.save(export(network, (x,)), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    assert torch.equal(program.module()(x), network(x))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (model, (4, 6)),
    "conv": (lambda: isometry.orthogonal(nn.Conv2d(3, 4, 3)), (2, 3, 8, 8)),
    "RNN": (lambda: isometry.orthogonal(nn.RNN(3, 5), "weight_hh_l0"), (7, 2, 3)),
    "LSTM": (lambda: isometry.orthogonal(nn.LSTM(3, 5), "weight_hh_l0"), (7, 2, 3)),
}


def onnx_file(network: nn.Module, x: Tensor, path: Path) -> Path:
    program = torch.onnx.export(network, (x,), dynamo=True, verbose=False)
    assert program is not None
    program.save(path)
    return path


# torch warns about its own tree of arguments, and about the lists of nn.RNN
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.filterwarnings(r"ignore:The tensor attributes self\._flat_weights")
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_has_the_numbers_of_the_model(name, rng, tmp_path):
    make, shape = NETWORKS[name]
    network = make().eval()
    x = torch.randn(shape, generator=rng)
    expected = network(x)
    path = onnx_file(isometry.fold(network), x, tmp_path / "model.onnx")
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (first, *_) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = expected if isinstance(expected, Tensor) else expected[0]
    # 2e-6: twice the worst of 5 seeds, 9.5e-7 (conv); sums go in another order
    assert_close(torch.as_tensor(first), expected.detach(), rtol=0, atol=2e-6)


@pytest.mark.errors
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_onnx_without_fold_names_the_operator(rng, tmp_path):
    """torch names the operator that ONNX lacks: there is no matrix exponential."""
    x = torch.randn(4, 6, generator=rng)
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"isometry\.expm_skew"):
        onnx_file(model(), x, tmp_path / "model.onnx")


@pytest.mark.errors
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, (torch.ones(2, 6),))]
)
def test_torchscript_wants_a_folded_model(make):
    """TorchScript needs a folded model.

    pytorch#60971: the error was about a lambda, or a constant with a gradient.
    """
    network = model()
    with pytest.raises(TypeError, match=r"must have plain weights.*isometry\.fold"):
        make(network)
    folded = isometry.fold(copy.deepcopy(network))
    x = torch.ones(2, 6)
    assert torch.equal(make(folded)(x), folded(x))


@pytest.mark.errors
@pytest.mark.parametrize("save", [torch.save, pickle.dump])
def test_pickling_is_refused_before_anything_is_lost(save):
    """Pickling is refused, as in torch; the remedies are `state_dict` and `fold`.

    mlflow#8214, darts#2638, geotorch#6: the file could not be read again.
    """
    network = model()
    with pytest.raises(RuntimeError, match=r"only supported through state_dict\(\)"):
        save(network, io.BytesIO())
    folded, file = isometry.fold(copy.deepcopy(network)), io.BytesIO()
    save(folded, file)
    file.seek(0)
    loaded = (
        torch.load(file, weights_only=False)
        if save is torch.save
        else pickle.load(file)
    )
    x = torch.ones(2, 6)
    assert torch.equal(loaded(x), folded(x))
