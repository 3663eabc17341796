"""A parameter held by several modules: all of them see the constrained weight."""

import copy
import pickle

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

import isometry
from tests.parametrizations.cases import MAPS, orthonormality


class Tied(nn.Module):
    """An embedding that shares its weight with the head."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, dtype=dtype)
        self.head = nn.Linear(4, 9, bias=False, dtype=dtype)
        self.head.weight = self.words.weight

    def forward(self, indices: Tensor) -> Tensor:
        return self.head(self.words(indices))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("retraction", MAPS)
@pytest.mark.parametrize("first", ["words", "head"])
def test_both_uses_see_the_constrained_weight(first, retraction, dtype):
    """Both uses see the constrained weight.

    The module that was not constrained itself used to compute with the coordinates, and
    logits were exactly 0.
    """
    model = Tied(dtype)
    isometry.orthogonal(getattr(model, first), "weight", retraction)
    W = model.words.weight
    assert model.head.weight is W
    assert orthonormality(W.double()) <= 8 * torch.finfo(dtype).eps
    indices = torch.arange(9)
    assert torch.equal(model(indices), nn.functional.linear(W, W))


def test_training_moves_both_uses_at_once():
    model = Tied(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    isometry.orthogonal(model.words, rebase_every=2)
    assert len(list(model.parameters())) == 1
    before = model.words.weight.detach().clone()
    target = torch.linspace(-1, 1, 81, dtype=torch.float64).view(9, 9)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.arange(9)) - target).square().sum().backward()
        optimizer.step()
    assert torch.dist(model.words.weight, before) > 0.1
    assert torch.equal(model.words.weight, model.head.weight)
    assert orthonormality(model.head.weight) <= 1e-14


def test_the_gradient_is_the_sum_over_both_uses():
    tied, apart = Tied(torch.float64), Tied(torch.float64)
    apart.load_state_dict(tied.state_dict())
    apart.head.weight = nn.Parameter(apart.words.weight.detach().clone())
    isometry.orthogonal(tied.words)
    isometry.orthogonal(apart.words)
    isometry.orthogonal(apart.head)
    for model in (tied, apart):
        model(torch.arange(9)).pow(3).sum().backward()
    sums = sum(p.grad for p in apart.parameters())
    assert_close(tied.words.parametrizations.weight.original.grad, sums)


def test_two_names_in_one_module():
    module = nn.Module()
    module.first = module.second = nn.Parameter(torch.randn(4, 4))
    isometry.orthogonal(module, "first")
    assert module.second is module.first
    assert orthonormality(module.second) <= 1e-6


class EqualByValue(nn.Linear):
    """A layer that compares its weight, entry by entry."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> Tensor:
        assert isinstance(other, nn.Linear)
        return self.weight == other.weight


def test_modules_are_told_apart_by_identity():
    """Modules with an `__eq__` of their own can be tied, which used to raise."""
    first, second = EqualByValue(4, 4), EqualByValue(4, 4)
    second.weight = first.weight
    isometry.orthogonal(first)
    assert second.weight is first.weight
    assert orthonormality(first.weight) <= 8 * torch.finfo(torch.float32).eps


def test_a_recurrent_module_among_the_tied():
    cell, rnn = nn.RNNCell(3, 4), nn.RNN(3, 4)
    rnn.weight_hh_l0 = cell.weight_hh
    isometry.orthogonal(cell, "weight_hh")
    assert orthonormality(rnn.weight_hh_l0) <= 1e-6
    rnn(torch.randn(5, 2, 3))[0].sum().backward()
    assert cell.parametrizations.weight_hh.original.grad.abs().sum() > 0


def test_a_second_constraint_on_a_module_with_another():
    cell, rnn = nn.RNNCell(3, 4), nn.RNN(3, 4)
    isometry.orthogonal(rnn, "weight_ih_l0")
    rnn.weight_hh_l0 = cell.weight_hh
    isometry.orthogonal(cell, "weight_hh")
    assert orthonormality(rnn.weight_hh_l0) <= 1e-6
    assert orthonormality(rnn.weight_ih_l0) <= 1e-6


def test_a_copy_is_tied_within_itself():
    model = Tied()
    isometry.orthogonal(model.words)
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.words.weight
    assert torch.equal(twin.head.weight, model.head.weight)
    with torch.no_grad():
        twin.words.parametrizations.weight.original.add_(0.1)
    assert torch.equal(twin.head.weight, twin.words.weight)
    assert not torch.equal(twin.head.weight, model.head.weight)
    isometry.fold(twin)
    assert twin.head.weight is twin.words.weight
    assert type(twin.head) is nn.Linear
    assert set(twin.state_dict()) == {"words.weight", "head.weight"}
    assert orthonormality(model.head.weight) <= 1e-6


def test_checkpoints_have_both_names(tmp_path):
    saved, fresh, foreign = (Tied() for _ in range(3))
    for model in (saved, fresh, foreign):
        isometry.orthogonal(model.head)
    with torch.no_grad():
        saved.words.parametrizations.weight.original.add_(0.1)
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.words.weight, saved.words.weight)
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_model(saved, str(file))
    with torch.no_grad():
        fresh.words.parametrizations.weight.original.zero_()
    safetensors.torch.load_model(fresh, file)
    assert torch.equal(fresh.head.weight, saved.words.weight)
    isometry.load_foreign(foreign, isometry.fold(copy.deepcopy(saved)).state_dict())
    assert_close(foreign.head.weight, saved.head.weight, rtol=0, atol=1e-6)
    assert foreign.head.weight is foreign.words.weight


def test_a_tied_weight_is_reported_and_counted_once():
    model = Tied()
    isometry.orthogonal(model.words)
    assert list(isometry.diagnose(model)) == ["words.weight"]
    (group,) = isometry.param_groups(model, lr=0.1)
    assert len(group["params"]) == 1
    isometry.rebase(model)
    # n k - k (k + 1) / 2 for a 9 x 4 matrix
    assert isometry.count_parameters(model) == 26


@pytest.mark.usefixtures("no_shape_hook")
def test_tied_weights_compile():
    model = Tied()
    isometry.orthogonal(model.words)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    indices = torch.arange(9)
    compiled(indices).sum().backward()
    assert_close(compiled(indices), model(indices), rtol=0, atol=1e-6)


def test_an_embedding_of_transformers_that_is_tied_to_the_head():
    """GPT-2's embedding, tied to its head by default, can be constrained."""
    config = GPT2Config(
        vocab_size=32,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    words = torch.arange(8)[None]
    isometry.orthogonal(model.transformer.wte)
    logits = model(words).logits
    states = model.transformer(words).last_hidden_state
    assert_close(logits, states @ model.transformer.wte.weight.mT)
    assert logits.abs().max() > 0.1
    with pytest.raises(AttributeError):
        model.tie_weights()
    folded = isometry.fold(copy.deepcopy(model))
    assert folded.lm_head.weight is folded.transformer.wte.weight
    assert_close(folded(words).logits, logits)


def test_other_references_to_the_parameter_are_no_ties():
    """An optimizer, a variable or a shallow copy that holds the parameter is no tie."""
    layer = nn.Linear(4, 4)
    weight, shallow = layer.weight, copy.copy(layer)
    named = dict(layer.named_parameters())
    isometry.orthogonal(layer)
    assert layer.parametrizations.weight.original is weight
    assert named["weight"] is weight
    with pytest.raises(AttributeError):
        _ = shallow.weight


@pytest.mark.errors
def test_a_constrained_weight_cannot_be_tied_afterwards():
    """A constrained weight cannot be tied afterwards.

    Its coordinates are not a weight, and the weight is not a parameter.
    """
    model, head = Tied(), nn.Linear(4, 9)
    isometry.orthogonal(model.words)
    with pytest.raises(
        ValueError, match=r"coordinates of a constrained.*the other fol"
    ):
        head.weight = model.words.parametrizations.weight.original
    with pytest.raises(TypeError, match="cannot assign"):
        head.weight = model.words.weight
    with pytest.raises(TypeError, match=r"as a plain tensor.*got Parameter.*detach"):
        model.words.weight = head.weight
    assert isinstance(head.weight, nn.Parameter)
    coordinates = nn.ParameterList(model.parameters())
    assert len(coordinates) == 1


def loaded(layer: nn.Module) -> nn.Module:
    values = copy.deepcopy(layer.state_dict())
    layer.load_state_dict(values, assign=True)
    return layer


def pickled(layer: nn.Linear) -> nn.Linear:
    return pickle.loads(pickle.dumps(layer.parametrizations.weight))


LIVES = {
    "copied": lambda layer: copy.deepcopy(layer).parametrizations.weight,
    "moved": lambda layer: layer.to("meta").parametrizations.weight,
    "loaded": lambda layer: loaded(layer).parametrizations.weight,
    "pickled": pickled,
}


@pytest.mark.errors
@pytest.mark.parametrize("life", LIVES)
def test_coordinates_are_known_after_each_way_to_replace_them(life):
    """Coordinates are recognized after each way to replace them.

    torch makes a new parameter each time, without the attributes of the old one.
    """
    owner = isometry.orthogonal(nn.Linear(4, 4))
    before = owner.parametrizations.weight.original
    owner.parametrizations.weight = LIVES[life](owner)
    assert owner.parametrizations.weight.original is not before
    with pytest.raises(ValueError, match="to the coordinates of a constrained weight"):
        nn.Linear(4, 4).weight = owner.parametrizations.weight.original


def test_saved_parameters_load_without_isometry(tmp_path):
    """Saved parameters load without isometry.

    The mark on coordinates is a plain bool, which `weights_only` accepts.
    """
    layer = isometry.orthogonal(nn.Linear(4, 4))
    torch.save(list(layer.parameters()), tmp_path / "parameters.pt")
    values = torch.load(tmp_path / "parameters.pt", weights_only=True)
    for value, parameter in zip(values, layer.parameters(), strict=True):
        assert torch.equal(value, parameter)


def test_functional_call_without_its_own_ties_restores_the_coordinates():
    """With `tie_weights=False`, both places use the new coordinates, during the call.

    With torch's default, the new coordinates stay, as in any model that uses a module
    twice: torch restores the names in the wrong order.
    """
    model = Tied()
    isometry.orthogonal(model.words)
    key = "words.parametrizations.weight.original"
    X = model.get_parameter(key)
    W, index = model.words.weight.detach().clone(), torch.arange(3)
    before = model(index)
    new = {key: 0.1 * torch.randn_like(X)}
    changed = functional_call(model, new, (index,), tie_weights=False)
    assert model.get_parameter(key) is X
    assert torch.equal(model.head.weight, W)
    X.data.copy_(new[key])
    assert_close(model(index), changed)
    assert torch.dist(changed, before) > 1e-3


@pytest.mark.errors
def test_the_second_of_two_tied_weights_is_constrained_already():
    model = Tied()
    isometry.orthogonal(model.words)
    with pytest.raises(ValueError, match=r"`weight` must not be constrained already"):
        isometry.orthogonal(model.head)


@pytest.mark.errors
def test_a_tie_that_cannot_be_constrained_changes_nothing():
    model = Tied()
    model.words.padding_idx = 0
    with pytest.raises(ValueError, match="must not have padding_idx set"):
        isometry.orthogonal(model.head)
    parametrize.register_parametrization(model.words, "weight", nn.Identity())
    with pytest.raises(ValueError, match="a parametrization of its own; got one with"):
        isometry.orthogonal(model.head)
    assert type(model.head) is nn.Linear


@pytest.mark.errors
def test_torchs_own_removal_of_one_of_two_is_refused():
    """torch's own removal for one of two tied modules is refused.

    It writes the weight over the coordinates, which the other one still needs.
    """
    model = Tied()
    isometry.orthogonal(model.words)
    with pytest.raises(ValueError, match=r"`isometry\.fold`"):
        parametrize.remove_parametrizations(model.words, "weight")
