"""Scores for how well predicted speech sounds: SegSNR, STOI and PESQ.

The predicted log-power spectra are turned into a recording with the phases of the true
recording, as in [WPH16]. Each score is a mean over the recordings of a split.
Recordings that have no score, such as silent or short ones, are left out of the mean.
"""

import importlib
import importlib.util
import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from isometry.lab._data.speech import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np

SCORE_PACKAGES = ("pesq", "pystoi")

# Segmental SNR cuts a recording into segments of 10 ms, as VOICEBOX does. SEGMENT is
# the number of samples in a segment. LOWEST and HIGHEST are the usual limits, in dB, to
# which the ratio of a segment is clipped.
SEGMENT = SAMPLE_RATE // 100
LOWEST, HIGHEST = -10.0, 35.0
# A segment is a pause if it is more than this many dB below the loudest segment of the
# recording. STOI uses the same limit.
RANGE = 40.0


def check_installed() -> None:
    """Raise an ImportError if a package for the scores is not installed."""
    find = importlib.util.find_spec
    if missing := [name for name in SCORE_PACKAGES if find(name) is None]:
        raise ImportError(
            f"`--scores` needs packages that are not installed: {', '.join(missing)}. "
            f"Install them, `pip install {' '.join(SCORE_PACKAGES)}` (pesq needs a C "
            f"compiler), or leave the option out."
        )


def judge(pairs: "Iterable[tuple[np.ndarray, np.ndarray]]") -> dict[str, float]:
    """Mean scores of a network's estimates of recordings.

    Args:
        pairs: each true recording with its estimate, of the same length, at 8 kHz.

    Returns:
        The means "segsnr" (in dB), "stoi" and "pesq". A score that could not be
        measured for any recording is left out.
    """
    values: dict[str, list[float]] = {name: [] for name in MEASURES}
    for reference, estimate in pairs:
        for name, measure in MEASURES.items():
            value = measure(reference, estimate)
            if value is not None:
                values[name].append(value)
    return {name: sum(v) / len(v) for name, v in values.items() if v}


def segmental_snr(reference: "np.ndarray", estimate: "np.ndarray") -> float | None:
    r"""Segmental signal-to-noise ratio in dB.

    $$ \frac1M \sum_m \operatorname{clip}_{[-10, 35]}
       10 \log_{10} \frac{\sum_{i \in m} r_i^2}{\sum_{i \in m} (r_i - s_i)^2} $$

    where $r$ is the true recording, $s$ is the estimate, and $m$ runs over $M$ segments
    of 10 ms. Segments that are more than 40 dB below the loudest one are pauses, and
    are left out. The authors of [WPH16] used VOICEBOX, which finds pauses with a voice
    activity detector, so our numbers differ from theirs.

    Args:
        reference: the true recording.
        estimate: the predicted recording, of the same length.

    Returns:
        The mean; None if the recording is silent or shorter than a segment.
    """
    import numpy as np

    def energies(x: "np.ndarray") -> "np.ndarray":
        count = len(x) // SEGMENT
        return np.square(x[: count * SEGMENT]).reshape(count, SEGMENT).sum(1)

    signal, noise = energies(reference), energies(reference - estimate)
    loudest = signal.max(initial=0.0)
    if loudest == 0:
        return None
    loud = signal >= loudest * 10 ** (-RANGE / 10)
    # Silence the warning about a division by zero: a segment in which the estimate is
    # exact has an infinite ratio, which `clip` turns into HIGHEST.
    with np.errstate(divide="ignore"):
        ratios = 10 * np.log10(signal[loud] / noise[loud])
    return float(ratios.clip(LOWEST, HIGHEST).mean())


def stoi(reference: "np.ndarray", estimate: "np.ndarray") -> float | None:
    """Short-time objective intelligibility (STOI), which is at most 1.

    Args:
        reference: the true recording.
        estimate: the predicted recording, of the same length.

    Returns:
        The score; None if there is less than 0.4 s of speech.

    References:
        [THHJ11].
    """
    from pystoi import stoi as measure

    # pystoi needs 30 windows, which take 0.4 s, and crashes on recordings shorter than
    # one window. So do not call it below 0.4 s. Silent recordings have no score either.
    if not reference.any() or len(reference) < 0.4 * SAMPLE_RATE:
        return None
    with warnings.catch_warnings():
        # without enough speech, pystoi warns and returns 1e-5, which is not a score
        warnings.simplefilter("error", RuntimeWarning)
        try:
            return float(measure(reference, estimate, SAMPLE_RATE))
        except RuntimeWarning:
            return None


def pesq(reference: "np.ndarray", estimate: "np.ndarray") -> float | None:
    """Perceptual evaluation of speech quality (PESQ), narrow band, from 1 to 4.55.

    Args:
        reference: the true recording.
        estimate: the predicted recording, of the same length.

    Returns:
        The score, on the scale of mean opinion scores; None if it cannot be measured,
        for example because no speech is found.

    References:
        ITU-T P.862 and P.862.1.
    """
    # Do not write `import pesq`: the package is optional, and where it is missing, type
    # checkers would report the statement as an error.
    package: Any = importlib.import_module("pesq")
    if not reference.any() or not estimate.any():
        return None
    quiet = package.PesqError.RETURN_VALUES
    value = float(package.pesq(SAMPLE_RATE, reference, estimate, "nb", on_error=quiet))
    # with `RETURN_VALUES`, the package returns a negative number for an error
    return value if math.isfinite(value) and value >= 0 else None


# functions of a recording and an estimate, keyed by the names of their scores
MEASURES = {"segsnr": segmental_snr, "stoi": stoi, "pesq": pesq}
