"""Parameters with their first values."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Draw:
    """Makes the parameters of a cell, one after the other.

    All are drawn in double precision on the CPU, so that a generator gives the same
    network in every precision and on every device.

    Args:
        device: of the parameters.
        dtype: of the parameters, real; complex ones have the complex of it.
        generator: source of the numbers.
    """

    device: torch.device | str | None = None
    dtype: torch.dtype | None = None
    generator: torch.Generator | None = None

    def uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """Uniform between minus and plus a bound."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.uniform_(-bound, bound, generator=self.generator))

    def complex_uniform(self, *shape: int, bound: float) -> nn.Parameter:
        """Real and imaginary part of each number by themselves."""
        X = torch.empty(*shape, 2, dtype=torch.float64, device="cpu")
        X.uniform_(-bound, bound, generator=self.generator)
        return self.parameter(torch.view_as_complex(X))

    def normal(self, *shape: int, std: float) -> nn.Parameter:
        """Normal, around zero."""
        X = torch.empty(shape, dtype=torch.float64, device="cpu")
        return self.parameter(X.normal_(std=std, generator=self.generator))

    def zeros(self, *shape: int) -> nn.Parameter:
        """Zeros."""
        return self.parameter(torch.zeros(shape, device="cpu"))

    def parameter(self, X: Tensor) -> nn.Parameter:
        """A parameter with these values."""
        real = self.dtype or torch.get_default_dtype()
        dtype = real.to_complex() if X.is_complex() else real
        device = self.device or torch.get_default_device()
        return nn.Parameter(X.to(device=device, dtype=dtype, copy=True))


def glorot(fan_in: int, fan_out: int) -> float:
    """The bound of Glorot's uniform distribution."""
    return math.sqrt(6 / (fan_in + fan_out))
