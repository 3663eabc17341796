"""Log-power spectra of speech."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# of the literature: 32 ms at 8 kHz, half of them overlapping
RATE = 8000
WINDOW = 256
HOP = 128
BINS = WINDOW // 2 + 1
# power of silence, as the literature adds it; -50 dB
FLOOR = 1e-5
SILENCE = -50.0


def frame_count(samples: int) -> int:
    """Frames of a recording of so many samples at 8 kHz."""
    return math.ceil(samples / HOP) + 3


def log_power(samples: "np.ndarray") -> "Tensor":
    r"""Log-power spectra of a recording, in dB.

    $$ y = 10 \log_{10}(10^{-5} + |X|^2) $$

    with $X$ the short-time Fourier transform: 256 samples, half of them overlapping,
    under a periodic Hann window. The recording is filled up with zeros to a multiple of
    the hop, and 256 more stand at both ends: the first and last frames are silent.

    Args:
        samples: at 8 kHz.

    Returns:
        (frames, 129), float32.
    """
    import torch

    fill = -len(samples) % HOP
    padded = torch.nn.functional.pad(
        torch.as_tensor(samples, dtype=torch.float64), (WINDOW, fill + WINDOW)
    )
    X = torch.stft(
        padded,
        WINDOW,
        HOP,
        window=torch.hann_window(WINDOW, dtype=torch.float64),
        center=False,
        return_complex=True,
    )
    power = X.real.square() + X.imag.square()
    return (10 * (FLOOR + power).log10()).T.contiguous().float()
