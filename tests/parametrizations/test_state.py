"""What a checkpoint of a constrained layer contains, and which ones are refused."""

import copy
import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import isometry
from tests.parametrizations.cases import CASES, MAPS, ROWS, Weight, orthonormality


@pytest.mark.parametrize(("name", "retraction"), ROWS)
def test_state_dict_is_the_whole_state(name, retraction, rng):
    """A state contains tensors only, and restores the layer to the last bit."""
    case = CASES[name]
    dtype = case.dtype(double=False)
    first, second = (
        case.constrain(Weight(case.random(rng, dtype)), retraction) for _ in range(2)
    )
    first.parametrizations.weight.original.data.add_(0.1)
    state = first.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    second.load_state_dict(state)
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(copy.deepcopy(first).weight, first.weight)


@pytest.mark.errors
@pytest.mark.parametrize("saved", MAPS)
def test_a_checkpoint_of_another_map_is_refused(saved):
    """A checkpoint of another map is refused.

    Its coordinates mean another weight; as the keys match, it used to load.
    """
    state = isometry.orthogonal(nn.Linear(4, 4), "weight", saved).state_dict()
    for retraction in set(MAPS) - {saved}:
        layer = isometry.orthogonal(nn.Linear(4, 4), "weight", retraction)
        with pytest.raises(
            RuntimeError, match=f"must be '{retraction}'.*got '{saved}'"
        ):
            layer.load_state_dict(state)


@pytest.mark.errors
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_a_base_is_saved_if_and_only_if_there_is_one(saved, strict):
    """A checkpoint with a base, and a layer without, do not fit; nor vice versa.

    Without the base, the coordinates mean another weight. torch used to name an
    unexpected or missing key, and with `strict=False` it loaded that weight silently.
    """
    one, other = (
        isometry.orthogonal(nn.Linear(4, 4), det=1, use_trivialization=has_base)
        for has_base in (saved, not saved)
    )
    before = other.weight.detach().clone()
    message = rf"0\.base` must be in .* was saved {'with' if saved else 'without'} one"
    with pytest.raises(RuntimeError, match=message):
        other.load_state_dict(one.state_dict(), strict=strict)
    isometry.load_foreign(other, {"weight": one.weight.detach(), "bias": one.bias})
    assert_close(other.weight, one.weight)
    assert torch.dist(before, one.weight) > 0.1


@pytest.mark.errors
def test_a_base_that_is_not_orthogonal_is_refused():
    layer = isometry.orthogonal(nn.Linear(4, 4))
    state = layer.state_dict()
    for bad in (torch.randn(4, 4), torch.full((4, 4), math.nan)):
        with pytest.raises(RuntimeError, match=r"0\.base` must be a point of O\("):
            layer.load_state_dict(state | {"parametrizations.weight.0.base": bad})
    rotation = isometry.orthogonal(nn.Linear(4, 4), det=1)
    reflection = torch.diag(torch.tensor([-1.0, 1, 1, 1]))
    message = r"base` must be a point of SO\(n=4\); got a negative determinant\..*`det`"
    with pytest.raises(RuntimeError, match=message):
        rotation.load_state_dict(
            rotation.state_dict() | {"parametrizations.weight.0.base": reflection}
        )


@pytest.mark.errors
def test_a_base_of_other_blocks_is_refused():
    """The error for a base with other blocks names the blocks.

    It used to say only that the base is not a point of Stiefel(24, 8).
    """
    blocks = isometry.orthogonal(nn.Linear(8, 24), blocks=3)
    whole = isometry.orthogonal(nn.Linear(8, 24))
    for saved, loaded in ((blocks, whole), (whole, blocks)):
        with pytest.raises(RuntimeError, match=r"0\.base` must be a point.*`blocks`"):
            loaded.load_state_dict(saved.state_dict())


@pytest.mark.errors
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("options", [{}, {"use_trivialization": False}])
@pytest.mark.parametrize("retraction", MAPS)
def test_a_checkpoint_of_the_other_field_is_refused(retraction, options, strict):
    """A real layer refuses a complex checkpoint, and a complex layer a real one.

    torch used to drop the imaginary parts: the weight was orthogonal, but wrong.
    """
    Q = torch.eye(4)
    real = isometry.orthogonal(Weight(Q), "weight", retraction, det=1, **options)
    unitary = isometry.unitary(Weight(Q + 0j), "weight", retraction, **options)
    unitary.parametrizations.weight.original.data.add_(0.1 + 0.2j)
    layers = {"real": real, "complex": unitary}
    for field, other in (("real", unitary), ("complex", real)):
        layer = layers[field]
        before = layer.weight.detach().clone()
        message = rf"original` must be {field}, like the weight on \w+\(n=4\); the ch"
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(other.state_dict(), strict=strict)
        assert torch.equal(layer.weight, before)


@pytest.mark.errors
def test_plain_weights_may_become_complex_but_not_real(rng):
    Q = torch.linalg.qr(torch.randn(4, 4, generator=rng)).Q
    unitary = isometry.unitary(Weight(torch.eye(4) + 0j))
    isometry.load_foreign(unitary, {"weight": Q})
    assert_close(unitary.weight, Q + 0j)
    real = isometry.orthogonal(Weight(torch.eye(4)))
    with pytest.raises(ValueError, match=r"`weight` must be real.*got torch.complex64"):
        isometry.load_foreign(real, {"weight": Q + 0j})


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_checkpoint_that_was_rounded_on_disk_is_orthogonal_again(dtype, whole):
    """A checkpoint that was rounded on disk is orthogonal again after loading.

    It used to leave a defect of 2.4e-3 at n = 64, for good. If integers were cast too,
    the name of the map, stored as bytes, raised a TypeError.
    """
    layer = isometry.orthogonal(nn.Linear(64, 64))
    W = layer.weight.detach().clone()
    state = {
        k: v.to(dtype) if whole or v.is_floating_point() else v
        for k, v in layer.state_dict().items()
    }
    layer.load_state_dict(state)
    assert orthonormality(layer.weight) <= 1e-5
    assert_close(layer.weight, W, rtol=0, atol=2 * torch.finfo(dtype).eps)


@pytest.mark.errors
def test_the_checkpoint_of_torch_is_pointed_to_the_right_door():
    layer = isometry.orthogonal(nn.Linear(4, 4))
    peer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
    for state in (peer.state_dict(), nn.Linear(4, 4).state_dict()):
        with pytest.raises(RuntimeError, match=r"`isometry\.load_foreign`"):
            layer.load_state_dict(state)


def test_a_checkpoint_without_the_layer_leaves_it_as_it_is():
    """Keys that are missing in a checkpoint are returned, as by torch.

    `strict=False` used to raise.
    """
    model = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 4))
    before = model[0].weight.detach().clone()
    head = {
        key: torch.ones_like(p) for key, p in model[1].state_dict(prefix="1.").items()
    }
    missing, unexpected = model.load_state_dict(head, strict=False)
    assert set(missing) == set(model.state_dict()) - set(head)
    assert not unexpected
    assert torch.equal(model[0].weight, before)
    assert torch.equal(model[1].weight, torch.ones(4, 4))


@pytest.mark.errors
def test_a_checkpoint_that_has_the_weight_otherwise_is_refused_in_any_case():
    """A checkpoint with the plain weight is refused even if not strict.

    Otherwise the weight would be skipped without a word.
    """
    model = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)))
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.parametrizations\.weight"):
        model.load_state_dict({})
    peer = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)))
    for state in (peer.state_dict(), nn.Sequential(nn.Linear(4, 4)).state_dict()):
        with pytest.raises(RuntimeError, match=r"`isometry\.load_foreign`"):
            model.load_state_dict(state, strict=False)


@pytest.fixture
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("retraction", MAPS)
def test_loading_by_swaps_after_a_forward_pass(retraction, grad):
    """Loading by swaps works after a forward pass.

    It used to raise: torch swaps no tensor that a cached weight refers to.
    """
    layer, other = (
        isometry.orthogonal(nn.Linear(4, 4), "weight", retraction) for _ in range(2)
    )
    with torch.set_grad_enabled(grad):
        y = layer(torch.ones(2, 4))
    # torch swaps no tensor of a live graph either
    del y
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.weight, other.weight)
    layer.double()
    assert orthonormality(layer.weight) <= 1e-13


@pytest.mark.parametrize("retraction", MAPS)
def test_a_wider_dtype_is_as_orthogonal_as_it_can_be(retraction):
    """After `.double()` the weight is a point in float64, and can be assigned."""
    layer = isometry.orthogonal(nn.Linear(16, 16), "weight", retraction).double()
    holder: Any = layer.parametrizations.weight
    # a compiled graph calls the constraint like this, without the checks of a read
    computed = holder[0](holder.original)
    # twice the worst over 200 seeds, 1.04 n eps for reflections; one step of polishing
    # left 15 n eps
    bound = 2.1 * 16 * torch.finfo(torch.float64).eps
    assert orthonormality(computed) <= bound
    assert orthonormality(layer.weight) <= bound
    layer.weight = layer.weight.detach()


def test_a_cast_repairs_each_base_that_is_finite(caplog):
    """After `.double()`, finite bases lose the rounding of float32 without a message.

    If one base of a batch was NaN, the others used to stay off by 6e-8.
    """
    layer = isometry.orthogonal(Weight(torch.eye(4).repeat(3, 1, 1)), init="haar")
    layer.parametrizations.weight[0].base[1] = math.nan
    with caplog.at_level(logging.INFO):
        base = layer.double().parametrizations.weight[0].base
    assert not caplog.records
    assert base[1].isnan().all()
    # 2e-15 is 4 eps sqrt(n), as for any point
    assert orthonormality(base[::2]) <= 2e-15
