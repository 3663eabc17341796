"""Wrong arguments give errors in the house form, and leave the module as it was."""

import math
from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch
from torch import nn

import isometry
from isometry.groups import SO, SU, Sp, Sphere, Stiefel, U
from tests.parametrizations.cases import Circle, Weight

pytestmark = pytest.mark.errors


def buffered() -> nn.Module:
    module = nn.Module()
    module.register_buffer("weight", torch.eye(3))
    return module


def with_value(value: float) -> nn.Module:
    W = torch.eye(3)
    W[1, 1] = value
    return Weight(W)


MODULES = {
    "no such name": (lambda: nn.Linear(3, 3), "wait", TypeError, r"parameters \['wei"),
    "a buffer": (buffered, "weight", TypeError, "must be a parameter of the module"),
    "a bias of None": (
        lambda: nn.Linear(3, 3, bias=False),
        "bias",
        TypeError,
        "must be a parameter",
    ),
    "ours already": (
        lambda: isometry.orthogonal(nn.Linear(3, 3)),
        "weight",
        ValueError,
        r"constrained already; Linear has \['Trivialization'\].*`isometry\.fold`",
    ),
    "torch's already": (
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
        "weight",
        ValueError,
        r"\['_Orthogonal'\].*remove_parametrizations`",
    ),
    "0-d": (
        lambda: Weight(torch.tensor(1.0)),
        "weight",
        ValueError,
        r"two or more axes.*got shape \(\)",
    ),
    "1-d": (lambda: nn.Linear(3, 3), "bias", ValueError, r"got shape \(3,\).*Sphere"),
    "NaN": (lambda: with_value(math.nan), "weight", ValueError, "must be finite"),
    "infinity": (lambda: with_value(math.inf), "weight", ValueError, "must be finite"),
    "lazy": (lambda: nn.LazyLinear(3), "weight", TypeError, "LazyLinear is lazy"),
    "max_norm": (
        lambda: nn.Embedding(3, 3, max_norm=1.0),
        "weight",
        ValueError,
        r"must not have max_norm set.*got 1\.0",
    ),
    "padding_idx": (
        lambda: nn.Embedding(3, 3, padding_idx=0),
        "weight",
        ValueError,
        "must not have padding_idx set.*got 0",
    ),
    "float8": (
        lambda: Weight(torch.eye(3).to(torch.float8_e4m3fn)),
        "weight",
        TypeError,
        "one of the dtypes .*float32.* got torch.float8_e4m3fn",
    ),
    "sparse": (
        lambda: nn.Embedding(3, 3, sparse=True),
        "weight",
        ValueError,
        "must not have sparse set",
    ),
}


def state(module: nn.Module) -> tuple:
    tensors = {**module._parameters, **module._buffers}
    return type(module), {n: id(t) for n, t in tensors.items()}, list(module._modules)


@pytest.mark.parametrize("what", MODULES)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_bad_weight(what):
    make, name, error, message = MODULES[what]
    module = make()
    before = state(module)
    with pytest.raises(error, match=message):
        isometry.orthogonal(module, name)
    assert state(module) == before


COMPLEX = {"dtype": torch.complex64}
OPTIONS = {
    "unknown map": (
        lambda m: isometry.orthogonal(m, "weight", "euler"),
        {},
        r"one of exp, cayley, pade-m, householder for O.*got 'euler'",
    ),
    "a stray suffix": (
        lambda m: isometry.orthogonal(m, "weight", "exp-3"),
        {},
        r"one of exp, cayley, pade-m, householder for O.*got 'exp-3'",
    ),
    "no matrix on a group": (
        lambda _: isometry.constrain(nn.Linear(3, 3), "bias", SO(3)),
        {},
        r"shape \(\*batch, 3, 3\) for SO\(n=3\); got \(3,\)",
    ),
    "degree": (
        lambda m: isometry.orthogonal(m, "weight", "pade-x"),
        {},
        r"name the degree.*got 'pade-x'",
    ),
    "SU has no Cayley": (
        lambda m: isometry.constrain(m, "weight", SU(4), "cayley"),
        COMPLEX,
        r"one of exp for SU\(n=4\); got 'cayley'",
    ),
    "Sp has no reflections": (
        lambda m: isometry.constrain(m, "weight", Sp(2), "householder"),
        COMPLEX,
        "one of exp, cayley, pade-m for Sp",
    ),
    "det of complex": (
        lambda m: isometry.orthogonal(m, det=1),
        COMPLEX,
        r"`det` must be None, or 1 for a square real weight",
    ),
    "det -1": (lambda m: isometry.orthogonal(m, det=-1), {}, r"`det` must be.*got -1"),
    "another size": (
        lambda m: isometry.constrain(m, "weight", SO(5)),
        {},
        r"shape \(\*batch, 5, 5\) for SO\(n=5\); got \(4, 4\)",
    ),
    "complex weight on a real group": (
        lambda m: isometry.constrain(m, "weight", SO(4)),
        COMPLEX,
        r"real floating-point dtype for SO\(n=4\); got torch.complex64",
    ),
    "real weight on a complex group": (
        lambda m: isometry.constrain(m, "weight", U(4)),
        {},
        r"complex dtype for U\(n=4\); got torch.float32",
    ),
    "unknown retraction": (
        lambda m: isometry.orthogonal(m, retraction="euler"),
        {},
        r"`retraction` must be one of exp, .* for O.*got 'euler'",
    ),
    "two names of the map": (
        lambda m: isometry.orthogonal(m, "weight", "exp", retraction="cayley"),
        {},
        r"must be left out if .*; got 'exp' and 'cayley'\.",
    ),
    "unknown map for unitary": (
        lambda m: isometry.unitary(m, retraction="euler"),
        COMPLEX,
        r"`retraction` must be one of exp, .* for U.*got 'euler'",
    ),
    "no degree for unitary": (
        lambda m: isometry.unitary(m, retraction="pade"),
        COMPLEX,
        r"`retraction` must name the degree.*got 'pade'",
    ),
    "None is no map of unitary": (
        lambda m: isometry.unitary(m, retraction=cast("Any", None)),
        COMPLEX,
        r"`retraction` must be .*got None",
    ),
    "real weight for unitary": (isometry.unitary, {}, "Use `isometry.orthogonal`"),
    "a class for a group": (
        lambda m: isometry.constrain(m, "weight", SO),
        {},
        r"must be a manifold of isometry.groups, such as SO\(4\); got <class",
    ),
    "no group": (
        isometry.constrain,
        {},
        r"must be a manifold of isometry.groups, such as SO\(4\); got None",
    ),
    "a map in the place of the group": (
        lambda m: isometry.constrain(m, SO(4), "cayley"),
        {},
        r"`name` must be a string; got SO\(n=4\).*by keyword",
    ),
    "a tensor for init": (
        lambda m: isometry.orthogonal(m, init=torch.eye(4)),
        {},
        "`init` must be None",
    ),
    "sphere of another length": (
        lambda m: isometry.constrain(m, "weight", Sphere(3)),
        {},
        r"shape \(\*batch, 3\) for Sphere",
    ),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_bad_option(what):
    call, options, message = OPTIONS[what]
    module = nn.Linear(4, 4, bias=False, **options)
    before = state(module)
    with pytest.raises((TypeError, ValueError), match=message):
        call(module)
    assert state(module) == before


def test_not_a_module():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got Parameter"):
        isometry.orthogonal(nn.Linear(3, 3).weight)


def test_stiefel_of_a_wide_shape():
    with pytest.raises(ValueError, match=r"`k` must be .* below n = 3; got 5"):
        Stiefel(3, 5)


def test_a_class_is_not_a_group():
    """A class in place of a group is refused.

    `constrain(layer, SO)` used to say that the class must be a parameter.
    """
    with pytest.raises(
        TypeError, match=r"`manifold` must .* such as SO\(4\); got .*\.SO'>"
    ):
        isometry.constrain(nn.Linear(3, 3), SO)


def test_the_remedy_for_a_weight_on_a_users_group():
    """The remedy calls `nearest` of the user's group, not one of `isometry.groups`."""
    layer = isometry.constrain(nn.Linear(4, 4), Circle())
    with pytest.raises(ValueError, match=r"with `Circle\(\)\.nearest\(value\)`"):
        layer.weight = torch.ones(4, 4)


@dataclass(frozen=True)
class Upright(Sphere):
    """Half of the sphere, as a user would write it, with an error of its own."""

    def defect(self, Q: torch.Tensor) -> torch.Tensor:
        return torch.where(Q[..., 0] < 0, math.inf, super().defect(Q))

    def refusal(self, Q: torch.Tensor, *args: Any, **options: Any) -> ValueError:
        if (Q[..., 0] < 0).any():
            return ValueError(f"`{options['name']}` must point up.")
        return super().refusal(Q, *args, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_of_a_users_manifold(dtype):
    """The user's own error is raised by assignments and by `check_point`.

    In half precision, an assignment used to speak of a defect of inf instead.
    """
    up = torch.eye(3, dtype=dtype)[0]
    layer = isometry.constrain(Weight(up), "weight", Upright(3))
    with pytest.raises(ValueError, match="`value` must point up"):
        layer.weight = -up
    with pytest.raises(ValueError, match=r"a defect of 3\.0e\+00, .*nearest\(value\)"):
        layer.weight = 2 * up
    with pytest.raises(ValueError, match="`Q` must point up"):
        Upright(3).check_point(-up.float(), name="Q")
