"""A rectifier of the modulus."""

import torch
from torch import Tensor, nn

from isometry.nn._sigma import complex_modrelu, modrelu


class ModReLU(nn.Module):
    r"""$\sigma(z) = \frac{z}{|z|} \max(|z| + b, 0)$, with a trained $b$ a feature.

    It keeps the sign of a real number and the phase of a complex one, so it commutes
    with what unitary maps are made of. $\sigma(0) = 0$, and the gradient there is
    zero.

    Args:
        features: size of the last axis.
        device: of $b$.
        dtype: of $b$, real also for complex inputs.

    References:
        [ASB16]; [LM19] for $b$ uniform in $(-0.01, 0.01)$ at the start.
    """

    def __init__(
        self,
        features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw $b$ anew."""
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def forward(self, z: Tensor) -> Tensor:
        """Rectify the last axis."""
        if z.shape[-1:] != self.bias.shape:
            raise ValueError(
                f"`z` must have {self.features} features on its last axis; got shape "
                f"{tuple(z.shape)}. Make a ModReLU of the size of what it gets."
            )
        return (complex_modrelu if z.is_complex() else modrelu)(z, self.bias)

    def extra_repr(self) -> str:
        """The number of features."""
        return str(self.features)
