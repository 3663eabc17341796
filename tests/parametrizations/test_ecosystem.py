"""Constrained weights in the libraries around torch.

These are safetensors, transformers (models from a local config, without downloads) and
Accelerate.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

import isometry
from isometry.linalg import polar
from tests.helpers import shifted_seed
from tests.parametrizations.cases import MAPS, orthonormality


def model(retraction: str = "exp") -> nn.Sequential:
    """Square, wide and complex weights, away from their bases."""
    network = nn.Sequential(
        isometry.orthogonal(nn.Linear(8, 8), "weight", retraction),
        isometry.orthogonal(nn.Linear(8, 3), "weight", retraction),
        isometry.unitary(nn.Linear(3, 3, dtype=torch.complex64), "weight", retraction),
    )
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return network


def outputs(network: nn.Sequential) -> Tensor:
    x = torch.linspace(-1, 1, 32).reshape(4, 8)
    return network[2](network[1](network[0](x)).to(torch.complex64))


@pytest.mark.parametrize("way", ["model", "state_dict"])
@pytest.mark.parametrize("retraction", MAPS)
def test_safetensors_keep_every_bit(retraction, way, tmp_path):
    """safetensors keep every bit: strict loading gives the same orthogonal weights."""
    file = tmp_path / "model.safetensors"
    saved, fresh = model(retraction), model(retraction)
    assert not torch.equal(outputs(saved), outputs(fresh))
    if way == "model":
        safetensors.torch.save_model(saved, str(file))
        missing, unexpected = safetensors.torch.load_model(fresh, file)
        assert not missing
        assert not unexpected
    else:
        safetensors.torch.save_file(saved.state_dict(), file)
        fresh.load_state_dict(safetensors.torch.load_file(file))
    assert torch.equal(outputs(saved), outputs(fresh))
    for layer in fresh:
        n = min(layer.weight.shape)
        assert orthonormality(layer.weight) <= 1e-6 * n**0.5


def tied(retraction: str = "exp") -> nn.Sequential:
    first, second = (
        isometry.orthogonal(nn.Linear(4, 4), "weight", retraction) for _ in range(2)
    )
    second.parametrizations["weight"] = first.parametrizations["weight"]
    return nn.Sequential(first, nn.Tanh(), second)


@pytest.mark.parametrize("retraction", MAPS)
def test_safetensors_of_tied_weights(retraction, tmp_path):
    """`save_model` writes one of two tied weights, and `load_model` finds both.

    Loading used to raise, because the step counter of the missing weight was made up.
    """
    file = tmp_path / "model.safetensors"
    saved, fresh = tied(retraction), tied(retraction)
    with torch.no_grad():
        saved[0].parametrizations.weight.original.add_(0.1)
    safetensors.torch.save_model(saved, str(file))
    safetensors.torch.load_model(fresh, file)
    assert torch.equal(fresh[0].weight, saved[0].weight)
    assert fresh[2].parametrizations.weight is fresh[0].parametrizations.weight
    x = torch.ones(2, 4)
    assert torch.equal(fresh(x), saved(x))


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def constrain(network: LlamaForCausalLM) -> None:
    for layer in network.model.layers:
        for name in PROJECTIONS:
            isometry.orthogonal(layer.self_attn.get_submodule(name))


class OrthogonalLlama(LlamaForCausalLM):
    """The manual's recipe for `from_pretrained`: constrain where layers are made."""

    built_on_meta: bool

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        constrain(self)
        self.built_on_meta = self.lm_head.weight.is_meta


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )


@pytest.fixture
def words(rng) -> Tensor:
    return torch.randint(0, 32, (2, 8), generator=rng)


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def projections(network: LlamaForCausalLM) -> list[Tensor]:
    return [
        layer.self_attn.get_submodule(name).weight.detach()
        for layer in network.model.layers
        for name in PROJECTIONS
    ]


def logits(network: LlamaForCausalLM, words: Tensor) -> Tensor:
    with torch.no_grad():
        return network.eval()(input_ids=words).logits


def trained(words: Tensor) -> OrthogonalLlama:
    network = OrthogonalLlama(config())
    optimizer = torch.optim.AdamW(isometry.param_groups(network, lr=0.05))
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(network(input_ids=words, labels=words).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]
    return network


def load(kind: type, folder: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    return kind.from_pretrained(folder, output_loading_info=True, **options)


def test_a_pretrained_model_is_restored(words, tmp_path):
    """`from_pretrained` restores the base, though it builds on the meta device.

    adapters#805: it lost the base.
    """
    network = trained(words)
    network.save_pretrained(tmp_path)
    restored, info = load(OrthogonalLlama, tmp_path)
    assert restored.built_on_meta
    assert not any(info.values())
    assert torch.equal(logits(restored, words), logits(network, words))
    for W in projections(restored):
        assert orthonormality(W) <= 1e-6 * 4

    half, info = load(OrthogonalLlama, tmp_path, dtype=torch.bfloat16)
    assert not any(info.values())
    for W, narrow in zip(projections(network), projections(half), strict=True):
        assert narrow.dtype == torch.bfloat16
        assert torch.equal(narrow, W.to(torch.bfloat16))


def test_a_folded_model_is_one_for_everybody(words, tmp_path):
    """The library's own class reads a folded model, without isometry."""
    network = trained(words)
    isometry.fold(copy.deepcopy(network)).save_pretrained(tmp_path)
    plain, info = load(LlamaForCausalLM, tmp_path)
    assert not any(info.values())
    assert torch.equal(logits(plain, words), logits(network, words))


def test_a_plain_checkpoint_is_constrained_after_loading(words, tmp_path):
    """After loading a plain checkpoint, weights are constrained at the nearest points.

    This works in place and by `load_foreign`.
    """
    LlamaForCausalLM(config()).save_pretrained(tmp_path)
    plain, _ = load(LlamaForCausalLM, tmp_path)
    before = projections(plain)
    other = OrthogonalLlama(config())
    isometry.load_foreign(other, plain.state_dict())
    constrain(plain)
    for old, one, two in zip(
        before, projections(plain), projections(other), strict=True
    ):
        # 1.2e-6: twice the worst of 20 seeds
        assert_close(one, polar(old), rtol=0, atol=1.2e-6)
        assert torch.equal(two, one)
    # a class that constrains does not find its tensors in a plain checkpoint
    _, info = load(OrthogonalLlama, tmp_path)
    assert len(info["missing_keys"]) == 8 * 4
    assert len(info["unexpected_keys"]) == 8


def forget_accelerate() -> None:
    """Reset Accelerate's global state, which a page of the manual also leaves set."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    forget_accelerate()
    yield
    forget_accelerate()


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(shifted_seed(0))
    network = nn.Sequential(
        isometry.orthogonal(nn.Linear(8, 8), rebase_every=2),
        nn.Tanh(),
        isometry.orthogonal(nn.Linear(8, 3)),
    )
    optimizer = torch.optim.AdamW(isometry.param_groups(network, lr=0.05))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    return network, optimizer, schedule


class Run:
    """Training by Accelerate: two batches per step, bfloat16, clipped gradients."""

    def __init__(self) -> None:
        self.accelerator = Accelerator(
            cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2
        )
        prepared: Any = self.accelerator.prepare(*parts())
        self.network, self.optimizer, self.schedule = prepared

    def train(self, x: Tensor, y: Tensor) -> None:
        for x_i, y_i in zip(x, y, strict=True):
            with self.accelerator.accumulate(self.network):
                loss = (self.network(x_i) - y_i).square().mean()
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.network.parameters(), 0.5)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

    def state(self) -> dict[str, Tensor]:
        plain = self.accelerator.unwrap_model(self.network)
        return copy.deepcopy(plain.state_dict())


def train_by_hand(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The training loop of `Run` in plain torch."""
    network, optimizer, schedule = parts()
    for i in range(0, len(x), 2):
        for x_i, y_i in zip(x[i : i + 2], y[i : i + 2], strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                output = network(x_i)
            loss = (output.float() - y_i).square().mean()
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return network.state_dict()


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_accelerate_trains_and_resumes(fresh_accelerate, rng, tmp_path):
    """Accelerate has the bits of a plain loop, and resumes with the same bits."""
    x = torch.randn(10, 4, 8, generator=rng)
    y = torch.randn(10, 4, 3, generator=rng)
    run = Run()
    run.train(x[:6], y[:6])
    # three steps, and a base that moved after two
    assert int(run.state()["0.parametrizations.weight.0.steps"]) == 1
    assert same(run.state(), train_by_hand(x[:6], y[:6]))
    run.accelerator.save_state(str(tmp_path))
    run.train(x[6:], y[6:])

    resumed = Run()
    resumed.accelerator.load_state(str(tmp_path))
    resumed.train(x[6:], y[6:])
    assert same(run.state(), resumed.state())
    plain = resumed.accelerator.unwrap_model(resumed.network)
    assert type(plain) is nn.Sequential
    for layer in (plain[0], plain[2]):
        assert layer.weight.dtype == torch.float32
        assert orthonormality(layer.weight) <= 1e-6 * layer.weight.shape[0] ** 0.5


def test_functional_call_by_the_name_of_the_weight():
    """`functional_call` accepts the name of the weight.

    pytorch PR#186565: torch assigns the new weight, calls, and assigns the old weight.
    So the new weight must be on the manifold, and the base moves. Under the name of the
    coordinates no base moves, not even in transforms of torch.func (test_cache.py).
    """
    network = nn.Sequential(isometry.orthogonal(nn.Linear(4, 4)))
    W = network[0].weight.detach().clone()
    x = torch.ones(2, 4)
    y = functional_call(network, {"0.weight": -torch.eye(4)}, (x,))
    assert_close(y, network[0].bias - x)
    # 1.2e-7: twice the worst of 20 seeds; an assigned weight is polished
    assert_close(network[0].weight, W, rtol=0, atol=1.2e-7)
    with pytest.raises(ValueError, match="must be a point of O"):
        functional_call(network, {"0.weight": torch.ones(4, 4)}, (x,))
    assert_close(network[0].weight, W, rtol=0, atol=1.2e-7)
