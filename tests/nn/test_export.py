"""Exported recurrent layers: the batch may have any size, the time steps are fixed."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import isometry
from isometry.nn import ExpGRU, ExpLSTM, ExpRNN
from tests.helpers import eps
from tests.nn.comparators import CASES, INPUTS

pytestmark = pytest.mark.usefixtures("no_shape_hook")

LAYERS = {
    "exp": lambda: ExpRNN(INPUTS, 5),
    "batch first": lambda: ExpRNN(INPUTS, 5, batch_first=True),
    "unitary": lambda: ExpRNN(INPUTS, 5, unitary=True),
    "last": lambda: ExpRNN(INPUTS, 5, train_h0=True, last_only=True, chunk=2),
    "two layers": lambda: ExpRNN(INPUTS, 5, 2, bidirectional=True),
    "lstm": lambda: ExpLSTM(INPUTS, 5, 2, bidirectional=True),
    "gru": lambda: ExpGRU(INPUTS, 5),
    "scornn": lambda: CASES["scornn"].network(dtype=torch.float32),
    "urnn": lambda: CASES["urnn"].network(dtype=torch.float32),
}


def assert_outputs_near(result: Any, expected: Any) -> None:
    """Equal up to the order of sums: C computes the layer, other code the program."""
    for X, Y in zip(tree_leaves(result), tree_leaves(expected), strict=True):
        # 8: more than twice the worst over 6 seeds, 3.2 (onnxruntime)
        atol = 8 * eps(torch.float32) * float(Y.detach().abs().max())
        assert_close(X, Y.detach(), rtol=0, atol=atol)


def sequences(batch: int, layer: Any, rng: torch.Generator) -> Tensor:
    x = torch.randn(3, batch, INPUTS, generator=rng)
    return x.transpose(0, 1).contiguous() if layer.batch_first else x


BATCH = Dim("batch")


@pytest.mark.parametrize(
    ("name", "strict"),
    [*((name, False) for name in LAYERS), ("two layers", True), ("lstm", True)],
)
def test_a_program_takes_batches_of_any_size(name, strict, rng):
    """A program accepts batches of any size.

    Export used to raise `UserError: specialized to 4`, because `len` of a tensor is a
    constant in the program (B6).
    """
    layer = isometry.fold(LAYERS[name]()).eval()
    x, y = (sequences(batch, layer, rng) for batch in (4, 9))
    shapes = ({0 if layer.batch_first else 1: BATCH},)
    program = export(layer, (x,), dynamic_shapes=shapes, strict=strict).module()
    assert_outputs_near(program(y), layer(y))


class Outputs(nn.Module):
    """The outputs of a layer, without its last states."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


# torch warns about its own tree of arguments
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", ["two layers", "lstm"])
def test_onnx_takes_batches_of_any_size(name, tmp_path: Path, rng):
    """An ONNX program accepts batches of any size.

    The export used to succeed with a fixed batch, and onnxruntime refused every other
    size.
    """
    layer = isometry.fold(LAYERS[name]()).eval()
    x, y = (sequences(batch, layer, rng) for batch in (4, 9))
    path = str(tmp_path / "layer.onnx")
    shapes = ({1: BATCH},)
    outputs = Outputs(layer).eval()
    torch.onnx.export(
        outputs, (x,), path, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    session = onnxruntime.InferenceSession(path)
    (node,) = session.get_inputs()
    assert node.shape == [3, "batch", INPUTS]
    (out,) = session.run(None, {node.name: y.numpy()})
    assert_outputs_near(torch.as_tensor(out), layer(y)[0])
