import geotorch
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import isometry
from isometry.groups import Exp, Sphere
from isometry.linalg import polar
from tests.helpers import shifted_seed

RECTANGULAR = [(8, 3), (3, 8)]
SHAPES = [(6, 6), *RECTANGULAR, (2, 5, 5)]


class Weights(nn.Module):
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(3))


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model.weight.abs().pow(3).sum().backward()
        optimizer.step()
    return model


def loaded(peer: nn.Module, ours: str | Exp, **options) -> nn.Module:
    model = Weights(tuple(peer.weight.shape), peer.weight.dtype)
    isometry.orthogonal(model, "weight", ours)
    result = isometry.load_foreign(model, peer.state_dict(), **options)
    assert result.missing_keys == result.unexpected_keys == []
    return model


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("retraction", "dtype"),
    [
        ("matrix_exp", torch.float64),
        ("matrix_exp", torch.complex128),
        ("cayley", torch.float64),
        ("cayley", torch.complex128),
        # torch has no complex reflections
        ("householder", torch.float64),
    ],
    ids=str,
)
@pytest.mark.parametrize("trivialize", [True, False])
def test_checkpoints_of_torch(trivialize, retraction, dtype, shape):
    """Torch's checkpoint gives the same weight and bias.

    Combinations that torch does not have are left out.
    """
    torch.manual_seed(shifted_seed(0))
    peer = Weights(shape, dtype)
    parametrizations.orthogonal(
        peer, orthogonal_map=retraction, use_trivialization=trivialize
    )
    model = loaded(trained(peer), retraction, retraction=retraction)
    assert_close(model.weight, peer.weight, rtol=0, atol=1e-13)
    assert torch.equal(model.bias, peer.bias)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("triv", ["expm", "cayley"])
def test_checkpoints_of_geotorch(triv, shape):
    torch.manual_seed(shifted_seed(0))
    peer = Weights(shape, torch.float64)
    geotorch.orthogonal(peer, "weight", triv)
    model = loaded(trained(peer), "exp", retraction=triv)
    assert_close(model.weight, peer.weight, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", [4, 64])
def test_checkpoints_in_half_precision(n):
    """A rounded checkpoint gives the weight up to rounding.

    It used to be refused, because "it had another constraint".
    """
    torch.manual_seed(shifted_seed(0))
    peer = trained(parametrizations.orthogonal(Weights((n, n), torch.float32)))
    W = peer.weight.detach()
    state = {key: X.bfloat16() for key, X in peer.state_dict().items()}
    model = isometry.orthogonal(Weights((n, n), torch.float32))
    isometry.load_foreign(model, state, retraction="exp")
    # 0.42: twice the worst over 200 seeds (n = 4)
    bound = 0.42 * n**0.5 * torch.finfo(torch.bfloat16).eps
    assert torch.dist(model.weight, W) <= bound


def test_the_map_of_the_checkpoint_can_be_another():
    """A checkpoint of the Cayley map can be loaded for the exponential."""
    torch.manual_seed(shifted_seed(0))
    peer = Weights((5, 5), torch.float64)
    parametrizations.orthogonal(peer, orthogonal_map="cayley")
    model = loaded(trained(peer), "exp", retraction="cayley")
    assert_close(model.weight, peer.weight, rtol=0, atol=1e-13)


def test_a_layer_with_a_reach_loads_checkpoints_of_the_exponential():
    """`Exp(reach=...)` is the exponential, although it is not equal to `Exp()`.

    The checkpoint used to be refused. Its angles may be out of reach.
    """
    torch.manual_seed(shifted_seed(0))
    peer = trained(parametrizations.orthogonal(Weights((5, 5), torch.float64)))
    model = loaded(peer, Exp(reach=0.1), retraction=Exp(reach=0.1))
    assert_close(model.weight, peer.weight, rtol=0, atol=1e-13)


@pytest.mark.parametrize("ours", ["exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "theirs", ["matrix_exp", "cayley", "householder", "geotorch", None]
)
def test_the_map_of_a_checkpoint_is_never_guessed(theirs, shape, ours):
    """A checkpoint does not say which map made it, so the map must be named.

    The map of our own constraint used to be assumed for square weights. A checkpoint of
    torch's square "householder" gave a weight that was off by up to 1.7, silently.
    """
    torch.manual_seed(shifted_seed(0))
    peer = Weights(shape, torch.float64)
    if theirs == "geotorch":
        geotorch.orthogonal(peer, "weight", "cayley")
    else:
        parametrizations.orthogonal(peer, orthogonal_map=theirs)
    # before the first step all coordinates are zero, and all maps give the base
    assert_close(loaded(peer, ours).weight, peer.weight, rtol=0, atol=1e-13)
    default = "householder" if theirs != "geotorch" and shape in RECTANGULAR else "exp"
    message = rf"must be given for 'weight'.*differ by .*'{default}'\}}, the default"
    with pytest.raises(ValueError, match=message):
        loaded(trained(peer), ours)


def test_the_default_map_of_torch_is_not_guessed():
    """The map must be named for each weight of a checkpoint of torch's defaults.

    torch takes exp for square weights and reflections for others, and does not record
    it. A first version took exp for both: the keys matched, and the weight was wrong.
    """
    torch.manual_seed(shifted_seed(0))
    peer = nn.Sequential(
        parametrizations.orthogonal(nn.Linear(5, 5, dtype=torch.float64)),
        parametrizations.orthogonal(nn.Linear(5, 9, dtype=torch.float64)),
    )
    optimizer = torch.optim.SGD(peer.parameters(), lr=0.1)
    peer(torch.randn(4, 5, dtype=torch.float64)).pow(3).sum().backward()
    optimizer.step()
    model = nn.Sequential(
        isometry.orthogonal(nn.Linear(5, 5, dtype=torch.float64)),
        isometry.orthogonal(nn.Linear(5, 9, dtype=torch.float64)),
    )
    names = {"0.weight": "exp", "1.weight": "householder"}
    for key in names:
        others = {name: phi for name, phi in names.items() if name != key}
        with pytest.raises(
            ValueError, match=rf"`retraction` must be given for '{key}'"
        ):
            isometry.load_foreign(model, peer.state_dict(), retraction=others)
    isometry.load_foreign(model, peer.state_dict(), retraction=names)
    for ours, theirs in zip(model, peer, strict=True):
        assert_close(ours.weight, theirs.weight, rtol=0, atol=1e-13)


@pytest.mark.errors
@pytest.mark.parametrize("library", ["torch", "geotorch"])
def test_a_kernel_of_the_peers_is_another_constraint(library):
    """A convolution kernel of other libraries is refused.

    They treat a kernel as a batch of kh x kw matrices; projecting it would give another
    layer.
    """
    peer = nn.Conv2d(3, 4, 3)
    if library == "torch":
        parametrizations.orthogonal(peer)
    else:
        geotorch.orthogonal(peer, "weight")
    model = isometry.orthogonal(nn.Conv2d(3, 4, 3))
    with pytest.raises(ValueError, match="treat a kernel as many small matrices"):
        isometry.load_foreign(model, peer.state_dict())


def test_a_vector_of_the_peers_is_not_a_matrix():
    """The coordinates of a vector are refused by name.

    It used to be an IndexError.
    """
    model = isometry.constrain(Weights((5,), torch.float32), "weight", Sphere(5))
    state = {"parametrizations.weight.original": torch.ones(5)}
    message = r"`parametrizations\.weight\.original` must be a matrix; got shape \(5,"
    with pytest.raises(ValueError, match=message):
        isometry.load_foreign(model, {**state, "bias": torch.zeros(3)})


def test_plain_weights_start_at_the_nearest_point():
    """A pretrained plain layer starts at the nearest point.

    geotorch#12 starts at a random one.
    """
    peer = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 2))
    model = nn.Sequential(isometry.orthogonal(nn.Linear(5, 5)), nn.Linear(5, 2))
    isometry.load_foreign(model, peer.state_dict())
    assert_close(model[0].weight, polar(peer[0].weight), rtol=0, atol=1e-5)
    assert torch.equal(model[1].weight, peer[1].weight)


def test_our_own_checkpoint_loads_as_it_is():
    a, b = (isometry.orthogonal(nn.Linear(5, 5)) for _ in range(2))
    isometry.load_foreign(b, a.state_dict())
    assert torch.equal(a.weight, b.weight)


@pytest.mark.errors
def test_nothing_is_loaded_from_a_bad_checkpoint():
    model = isometry.orthogonal(nn.Linear(5, 5))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    plain = nn.Linear(5, 5).state_dict()
    with pytest.raises(
        ValueError, match=r"`weight` must have the shape \(5, 5\).*\(4, 5\)"
    ):
        isometry.load_foreign(model, plain | {"weight": torch.zeros(4, 5)})
    with pytest.raises(ValueError, match="`weight` must be finite"):
        isometry.load_foreign(model, plain | {"weight": torch.full((5, 5), torch.nan)})
    with pytest.raises(ValueError, match=r"got unexpected \['extra'\]"):
        isometry.load_foreign(model, plain | {"extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"got missing \['weight'\]"):
        isometry.load_foreign(model, {"bias": torch.zeros(5)})
    with pytest.raises(ValueError, match=r"shapes \['bias \(4,\)'\]"):
        isometry.load_foreign(model, plain | {"bias": torch.zeros(4)})
    with pytest.raises(TypeError, match=r"must be a mapping.*got Linear"):
        isometry.load_foreign(model, nn.Linear(5, 5))
    peer = parametrizations.orthogonal(nn.Linear(5, 5)).state_dict()
    with pytest.raises(ValueError, match=r"maps of torch and geotorch; got 'pade-3'"):
        isometry.load_foreign(model, peer, retraction="pade-3")
    # a misspelled name used to be ignored, and the map of the constraint was assumed
    with pytest.raises(
        ValueError, match=r"only constrained .* got \['kernel'\]\. .* \['weight'\]\."
    ):
        isometry.load_foreign(model, peer, retraction={"kernel": "cayley"})
    after = model.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before)


def test_result_with_strict_false():
    model = isometry.orthogonal(nn.Linear(5, 5))
    weight = torch.eye(5)
    result = isometry.load_foreign(model, {"weight": weight}, strict=False)
    assert result.missing_keys == ["bias"]
    assert_close(model.weight, weight)


@pytest.mark.errors
def test_parameters_alone_are_not_the_model(caplog):
    """A checkpoint without the base, which is a buffer, is refused.

    It used to give another weight silently. `load_state_dict` refused it, but named
    `load_foreign` as the only remedy, which took the identity for the base: the weights
    were as far apart as two random ones.
    """
    one, other = (isometry.orthogonal(nn.Linear(8, 8)) for _ in range(2))
    state = {name: p.detach().clone() for name, p in one.named_parameters()}
    with pytest.raises(RuntimeError, match=r"must be the whole `state_dict\(\)`: the"):
        other.load_state_dict(state, strict=False)
    assert not caplog.records
    isometry.load_foreign(other, state)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("isometry", "WARNING")
    assert record.getMessage().startswith("weight: the checkpoint has no base, so")
    assert torch.dist(one.weight, other.weight) > 1
    # the whole state restores the model, without a message
    caplog.clear()
    isometry.load_foreign(other, one.state_dict())
    assert torch.equal(one.weight, other.weight)
    assert not caplog.records


@pytest.mark.errors
def test_a_missing_weight_has_its_plain_name():
    """The error names the plain weight that is missing.

    It used to list keys of coordinates, which a plain checkpoint never has.
    """
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4, bias=False)})
    model["b"].weight = model["a"].weight
    isometry.orthogonal(model["a"])
    state = {"a.weight": torch.eye(4), "a.bias": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"got missing \['b\.weight'\]\. Build"):
        isometry.load_foreign(model, state)


def test_a_method_of_the_same_name_is_not_called():
    """A module's own method `adopt` is not called; it used to get the checkpoint."""

    class Kennel(nn.Linear):
        def adopt(self, dog: str) -> None:
            raise AssertionError(dog)

    model = isometry.orthogonal(Kennel(4, 4))
    isometry.load_foreign(model, nn.Linear(4, 4).state_dict())
