"""One row for each comparator: its class, its matrix and its nonlinearity."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isometry.nn import (
    EURNN,
    URNN,
    FullCapacityURNN,
    HouseholderRNN,
    LieRNN,
    ScoRNN,
    ScuRNN,
    SpectralRNN,
)
from tests.helpers import new_generator
from tests.nn import reference

INPUTS, N = 3, 8


@dataclass(frozen=True)
class Case:
    """A network, the matrix of its cells and their nonlinearity."""

    make: type[nn.Module]
    weight: Callable[[Any], Tensor]
    sigma: Callable[[Any, Tensor], Tensor]
    options: dict[str, Any]

    def network(self, **options: Any) -> Any:
        usual = {"dtype": torch.float64, "generator": new_generator(0)}
        return self.make(INPUTS, N, **(usual | self.options | options))


def with_bias(sigma: Callable[[Tensor, Tensor], Tensor]) -> Callable:
    return lambda cell, z: sigma(z, cell.bias)


WISDOM = with_bias(reference.wisdom_modrelu)
SMOOTH = with_bias(partial(reference.wisdom_modrelu, epsilon=0.1))
EXACT = with_bias(reference.exact_modrelu)


def scornn(cell: Any) -> Tensor:
    return reference.scaled_cayley(reference.skew(cell.X), cell.D)


def scurnn(cell: Any) -> Tensor:
    D = torch.exp(1j * cell.theta)
    return reference.scaled_cayley(reference.skew(cell.X), D)


def eurnn(style: str) -> Callable[[Any], Tensor]:
    return lambda cell: reference.eurnn_weight(cell, style)


CASES = {
    "scornn": Case(ScoRNN, scornn, with_bias(reference.modrelu), {"negatives": 3}),
    "scurnn": Case(ScuRNN, scurnn, WISDOM, {}),
    "scurnn smooth": Case(ScuRNN, scurnn, SMOOTH, {"epsilon": 0.1}),
    "scurnn exact": Case(ScuRNN, scurnn, EXACT, {"epsilon": 0.0}),
    "urnn": Case(URNN, reference.urnn_weight, WISDOM, {}),
    "urnn exact": Case(URNN, reference.urnn_weight, EXACT, {"epsilon": 0.0}),
    "full": Case(FullCapacityURNN, lambda cell: cell.weight_hh, WISDOM, {}),
    "full smooth": Case(
        FullCapacityURNN, lambda cell: cell.weight_hh, SMOOTH, {"epsilon": 0.1}
    ),
    "full exact": Case(
        FullCapacityURNN, lambda cell: cell.weight_hh, EXACT, {"epsilon": 0.0}
    ),
    "eurnn": Case(
        EURNN, eurnn("tunable"), with_bias(reference.jing_modrelu), {"capacity": 4}
    ),
    "eurnn real": Case(
        *(EURNN, eurnn("tunable"), with_bias(reference.jing_modrelu)),
        {"capacity": 4, "unitary": False},
    ),
    "eurnn fft": Case(
        EURNN, eurnn("fft"), with_bias(reference.jing_modrelu), {"style": "fft"}
    ),
    "eurnn fft real": Case(
        *(EURNN, eurnn("fft"), with_bias(reference.jing_modrelu)),
        {"style": "fft", "unitary": False},
    ),
    "householder": Case(
        HouseholderRNN,
        lambda cell: reference.reflections(cell.V),
        lambda cell, z: reference.leaky_relu(z + cell.bias),
        {"reflections": 5},
    ),
    "spectral": Case(
        SpectralRNN,
        reference.spectral_weight,
        lambda cell, z: torch.tanh(z + cell.bias),
        {"margin": 0.3},
    ),
    "lie": Case(
        LieRNN,
        reference.lie_weight,
        lambda cell, z: reference.by_parts(torch.tanh, z + cell.bias),
        {},
    ),
    "lie relu": Case(
        LieRNN,
        reference.lie_weight,
        lambda cell, z: reference.by_parts(torch.relu, z + cell.bias),
        {"nonlinearity": "relu"},
    ),
}


def assert_near_largest(X: Tensor, expected: Tensor, *, tol: float) -> None:
    """Equal up to a fraction of the largest entry, or of 1e-3 if all are small."""
    scale = expected.abs().max().clamp(min=1e-3)
    assert ((X - expected).abs().max() <= tol * scale).item()
