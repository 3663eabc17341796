"""Constrained modules among others: copies, ties, casts, devices, layouts."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.testing import assert_close

import isometry
from isometry.groups import SO, Cayley, Stiefel
from tests.helpers import new_generator
from tests.parametrizations.cases import MAPS, Weight, orthonormality


def test_folding_a_copy_leaves_the_module_alone():
    """Folding a copy leaves the module alone.

    torch keeps the weight in a class that copies share, and would remove it there.
    """
    for module in (nn.Linear(4, 4), nn.RNN(3, 4)):
        name = "weight" if isinstance(module, nn.Linear) else "weight_hh_l0"
        isometry.orthogonal(module, name)
        folded = isometry.fold(copy.deepcopy(module))
        assert torch.equal(getattr(folded, name), getattr(module, name))
        x = torch.randn(5, 2, 4 if name == "weight" else 3)
        output = module(x)
        (output if name == "weight" else output[0]).sum().backward()


def test_constraining_a_copy_further_leaves_the_module_alone():
    rnn = isometry.orthogonal(nn.RNN(3, 4), "weight_hh_l0")
    isometry.orthogonal(copy.deepcopy(rnn), "weight_ih_l0")
    rnn(torch.randn(5, 2, 3))


def test_an_rnn_survives_torchs_own_removal():
    rnn = isometry.orthogonal(nn.RNN(3, 4), "weight_hh_l0")
    x = torch.randn(5, 2, 3)
    before = rnn(x)[0]
    parametrize.remove_parametrizations(rnn, "weight_hh_l0")
    assert type(rnn) is nn.RNN
    assert_close(rnn(x)[0], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_optimizer_made_before_trains_the_weight(dtype):
    """An optimizer made before the constraint trains the weight.

    In half precision the coordinates are wider than the weight was.
    """
    layer = nn.Linear(6, 6).to(dtype)
    # a larger step can turn the weight by a full turn, back to its start
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    isometry.orthogonal(layer)
    W = layer.weight.detach().clone()
    layer(torch.ones(2, 6, dtype=dtype)).pow(3).sum().backward()
    optimizer.step()
    assert torch.dist(layer.weight.float(), W.float()) > 1e-2


@pytest.mark.parametrize("retraction", MAPS)
def test_half_precision_on_meta_can_be_materialized(retraction):
    with torch.device("meta"):
        layer = nn.Linear(6, 3).to(torch.bfloat16)
        layer = isometry.orthogonal(layer, "weight", retraction)
    layer = layer.to_empty(device="cpu")
    other = isometry.orthogonal(
        nn.Linear(6, 3).to(torch.bfloat16), "weight", retraction
    )
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.weight, other.weight)
    assert all(not t.is_meta for t in layer.state_dict().values())


def test_shared_memory_reaches_base_and_coordinates():
    layer = isometry.orthogonal(nn.Linear(4, 4)).to(torch.bfloat16).share_memory()
    state = layer.state_dict()
    assert all(t.is_shared() for t in state.values() if t.is_floating_point())


def test_sampling_does_not_depend_on_the_default_device():
    """Sampling does not depend on the default device.

    With `torch.set_default_device("cuda")` a generator of the CPU still works.
    """
    layer = nn.Linear(6, 6)
    rng = new_generator(0)
    with torch.device("meta"):
        for init in ("haar", "henaff", "cayley"):
            isometry.orthogonal(layer, init=init, generator=rng, rebase_radius=0.01)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            layer(torch.ones(1, 6, device="cpu")).pow(3).sum().backward()
            optimizer.step()
            isometry.fold(layer)
    assert not layer.weight.is_meta


@pytest.mark.errors
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_a_real_weight_does_not_become_complex():
    layer = isometry.orthogonal(nn.Linear(4, 4))
    with pytest.raises(TypeError, match=r"must stay real or complex.*isometry\.fold"):
        layer.to(torch.complex64)


@pytest.mark.errors
def test_a_reflection_is_no_rotation():
    layer = isometry.orthogonal(nn.Linear(4, 4), det=1)
    message = r"`value` must have determinant 1 .* SO\(n=4\); got determinant -1"
    with pytest.raises(ValueError, match=message):
        layer.weight = torch.diag(torch.tensor([-1.0, 1, 1, 1]))


@pytest.mark.parametrize("layer", [nn.Linear(8, 3), nn.Conv2d(3, 4, 3)], ids=str)
def test_folded_weights_are_contiguous(layer):
    layer = copy.deepcopy(layer)
    assert isometry.fold(isometry.orthogonal(layer)).weight.is_contiguous()


def test_constrain_sees_wide_weights_and_kernels_as_tall_ones():
    wide = isometry.constrain(nn.Linear(9, 4), "weight", Stiefel(9, 4))
    assert orthonormality(wide.weight) <= 2e-6
    kernel = isometry.constrain(nn.Conv2d(3, 4, 3), "weight", Stiefel(27, 4))
    assert orthonormality(kernel.weight.flatten(1)) <= 2e-6
    square = isometry.constrain(nn.Conv2d(3, 27, 3), "weight", SO(27))
    assert orthonormality(square.weight.flatten(1)) <= 2e-5


def test_constrain_takes_the_weight_unless_another_name_is_given():
    """`constrain(layer, manifold)` takes the weight, as `orthogonal(layer)` does.

    It used to raise.
    """
    W = torch.eye(4)
    for options in ((SO(4),), ("weight", SO(4))):
        layer = isometry.constrain(Weight(W.clone()), *options)
        assert layer.parametrizations.weight[0].manifold == SO(4)
    layer = isometry.constrain(Weight(W), manifold=SO(4), retraction="cayley")
    assert layer.parametrizations.weight[0].retraction == Cayley()


@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (0, 4, 4), (0, 0), (3, 0)])
def test_batches_and_empty_weights(shape, retraction):
    layer = isometry.orthogonal(Weight(torch.zeros(shape)), "weight", retraction)
    assert layer.weight.shape == shape
    isometry.diagnose(layer)
    isometry.rebase(layer)
    batched = isometry.orthogonal(
        Weight(torch.zeros(shape)), "weight", retraction, init="identity"
    )
    assert_close(
        batched.weight, torch.eye(*shape[-2:]).expand(shape), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("retraction", MAPS)
def test_autocast_computes_the_weight_in_full(retraction):
    layer = isometry.orthogonal(nn.Linear(16, 16), "weight", retraction)
    W = layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, W)


@pytest.mark.parametrize("retraction", ["exp", "householder"])
@pytest.mark.parametrize("is_made_inside", [False, True])
def test_a_layer_constrained_in_inference_mode_can_be_trained(
    is_made_inside, retraction, rng
):
    """Inference mode ends with its block, and so do its effects on the weight.

    The weight used to stay where it was, without an error.
    """
    layer = nn.Linear(6, 6, bias=False)
    with torch.inference_mode():
        if is_made_inside:
            layer = nn.Linear(6, 6, bias=False)
        isometry.orthogonal(layer, retraction=retraction)
    before = layer.weight.detach().clone()
    x, y = torch.randn(2, 4, 6, generator=rng)
    (layer(x) - y).square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert torch.dist(layer.weight, before) > 1e-3
