"""modReLU: sigma(z) = z / |z| max(|z| + b, 0)."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry._backend import TimeSteps
from isometry._backend.nonlinearities import Sigma
from isometry.nn import ModReLU
from isometry.nn._scan import Weights, scan
from isometry.nn._sequence import Pass
from tests.helpers import DTYPES, random_unitary


def layer(dtype: torch.dtype, n: int = 5) -> ModReLU:
    module = ModReLU(n, dtype=dtype.to_real())
    with torch.no_grad():
        # some thresholds are negative, and some are not
        module.bias.copy_(torch.linspace(-1, 1, n))
    return module


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_modulus_is_moved_and_phase_is_kept(dtype, rng):
    """|sigma(z)| = max(|z| + b, 0), and sigma(z) has the phase of z, or is zero."""
    f = layer(dtype)
    z = torch.randn(100, 5, dtype=dtype, generator=rng)
    h = f(z)
    size = torch.clamp(z.abs() + f.bias, min=0)
    assert h.dtype == dtype
    assert (size == 0).any()
    assert (size > 0).any()
    assert_close(h.abs(), size)
    assert_close(h * z.abs(), size * z)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_commutes_with_phases(dtype, rng):
    """sigma(D z) = D sigma(z) for diagonal unitary D, whatever b is."""
    f = layer(dtype)
    z = torch.randn(100, 5, dtype=dtype, generator=rng)
    D = random_unitary(1, dtype=dtype, rng=rng, batch=(5,)).flatten()
    assert_close(f(D * z), D * f(z))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threshold", [-0.1, 0.0, 0.1])
def test_zero_is_zero_with_a_finite_gradient(threshold, dtype):
    """sigma(0) = 0 and the gradient, once NaN, is 0, although z / |z| is 0 / 0."""
    f = ModReLU(3, dtype=dtype.to_real())
    torch.nn.init.constant_(f.bias, threshold)
    z = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    h = f(z)
    assert not h.any()
    h.abs().sum().backward()
    assert z.grad is not None
    assert f.bias.grad is not None
    assert not z.grad.any()
    assert not f.bias.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_gradient(dtype, rng):
    f = layer(dtype)
    z = torch.randn(4, 5, dtype=dtype, generator=rng, requires_grad=True)
    b = f.bias.detach().clone().requires_grad_()

    def call(z: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(f, {"bias": b}, (z,))

    assert torch.autograd.gradcheck(call, (z, b))
    assert torch.autograd.gradgradcheck(call, (z, b))


def scanned(sigma: Sigma, z: Tensor, b: Tensor, G: Tensor) -> list[Tensor]:
    """The result of one time step of the scan, and the gradients for z and b."""
    zero, eye = torch.zeros_like(z), torch.eye(z.shape[1], dtype=z.dtype)
    z, b = z.clone().requires_grad_(), b.clone().requires_grad_()
    weights = Weights(eye, torch.zeros_like(eye), b, sigma)
    _, h = scan(z, weights, zero, Pass(TimeSteps((len(z),)), last_only=True))
    return [h.detach(), *torch.autograd.grad(h, (z, b), G)]


@pytest.mark.parametrize(
    ("sigma", "dtype", "power"),
    [
        (Sigma("complex_modrelu"), torch.float32, -100),
        (Sigma("complex_modrelu"), torch.float32, -66),
        (Sigma("complex_modrelu"), torch.float32, 66),
        (Sigma("complex_modrelu"), torch.float32, 120),
        (Sigma("complex_modrelu"), torch.float64, -900),
        (Sigma("complex_modrelu"), torch.float64, -550),
        (Sigma("complex_modrelu"), torch.float64, 550),
        (Sigma("complex_modrelu"), torch.float64, 1000),
        (Sigma("smooth_modrelu", 1e-5), torch.float32, 66),
        (Sigma("smooth_modrelu", 1e-5), torch.float32, 120),
        (Sigma("smooth_modrelu", 1e-5), torch.float64, 1000),
    ],
)
def test_tiny_and_huge_numbers(sigma, dtype, power, engine, rng):
    """With the threshold sb, sigma(sz) is s sigma(z), and its gradient does not change.

    In C, |z|^2 used to be zero in float32 for |z| = 1e-20, so a layer without a bias
    returned zeros, and infinite for 1e20, so it returned NaN. At such sizes, the
    epsilon of smooth modReLU has no effect.
    """
    angle = 2 * math.pi * torch.rand(7, 33, dtype=dtype, generator=rng)
    modulus = 0.5 + torch.rand(7, 33, dtype=dtype, generator=rng)
    z = torch.view_as_real(torch.polar(modulus, angle)).flatten(1)
    b = 0.6 * torch.rand(33, dtype=dtype, generator=rng) - 0.3
    G = torch.randn(z.shape, dtype=dtype, generator=rng)
    h, dz, db = scanned(sigma, 2.0**power * z, 2.0**power * b, G)
    expected = scanned(Sigma("complex_modrelu"), z, b, G)
    assert_close([2.0**-power * h, dz, db], expected)


def test_starts_near_the_identity():
    """b is uniform in (-0.01, 0.01), drawn from torch's global generator."""
    b = ModReLU(10_000).bias.detach()
    # a number close to the end of the range may be rounded to the end
    assert b.abs().max() <= torch.tensor(0.01)
    # the standard deviation of the mean is 6e-5, and that of the deviation is smaller
    assert abs(float(b.mean())) < 3e-4
    assert_close(float(b.std()), 0.01 / 3**0.5, rtol=0.05, atol=0)


def test_says_its_size():
    assert repr(ModReLU(7)) == "ModReLU(7)"


@pytest.mark.errors
def test_another_size_is_an_error():
    with pytest.raises(
        ValueError, match=r"`z` must have 3 features .* got shape \(2, 4"
    ):
        ModReLU(3)(torch.zeros(2, 4))
