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
_LN10 = math.log(10)


def frame_count(samples: int) -> int:
    """Frames of a recording of so many samples at 8 kHz."""
    return math.ceil(samples / HOP) + 3


def log_power(samples: "np.ndarray") -> "Tensor":
    r"""Log-power spectra of a recording, in dB.

    $$ y = 10 \log_{10}(10^{-5} + |X|^2) $$

    with $X$ the short-time Fourier transform.

    Args:
        samples: at 8 kHz.

    Returns:
        (frames, 129), float32.
    """
    X = spectra(samples)
    power = X.real.square() + X.imag.square()
    return (10 * (FLOOR + power).log10()).float()


def spectra(samples: "np.ndarray") -> "Tensor":
    """Short-time Fourier transform of a recording.

    256 samples, half of them overlapping, under a periodic Hann window. The recording
    is filled up with zeros to a multiple of the hop, and 256 more stand at both ends:
    the first and last frames are silent.

    Args:
        samples: at 8 kHz.

    Returns:
        (frames, 129), complex128.
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
    return X.T.contiguous()


def waveform(y: "Tensor", X: "Tensor", samples: int) -> "Tensor":
    r"""The recording that log-power spectra stand for, with the phase of another.

    $$ s = \sum_t \operatorname{shift}_{128 t}
           \mathcal F^{-1}\bigl(10^{y_t / 20}\, X_t / |X_t|\bigr) $$

    Windows that overlap by half add up to 1, so that magnitudes and phases of one
    recording give it back, up to the floor of 10^-5.

    Args:
        y: (frames, 129), in dB.
        X: whose phases are taken; of the same shape.
        samples: of the recording.

    Returns:
        The samples at 8 kHz, float64.
    """
    import torch

    frames = torch.fft.irfft(torch.polar((y.double() / 20 * _LN10).exp(), X.angle()))
    early, late = frames[:, :HOP], frames[:, HOP:]
    whole = torch.nn.functional.pad(early, (0, 0, 0, 1))
    whole[1:] += late
    return whole.flatten()[WINDOW : WINDOW + samples]
