"""Recordings on disk: RIFF, NIST SPHERE and what else libsndfile reads."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from isometry.lab.data._speech import RATE, frame_count

if TYPE_CHECKING:
    import numpy as np

# of a NIST SPHERE file
HEADER = 1024


def recordings(root: Path) -> list[Path]:
    """All recordings below a folder, as paths relative to it."""
    if not root.is_dir():
        raise ValueError(
            f"`root` must be a folder of recordings; got {root}. TIMIT is sold by the "
            f"Linguistic Data Consortium (LDC93S1); any folder of .wav files serves "
            f'with the split "speakers".'
        )
    found = (p for p in root.rglob("*") if p.suffix.lower() == ".wav" and p.is_file())
    return [path.relative_to(root) for path in found]


def recording_frames(path: Path) -> int:
    """Frames of the spectra of a recording, from its header."""
    import soundfile

    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, str(error)) from error
    return frame_count(math.ceil(info.frames * RATE / info.samplerate))


def read_recording(path: Path) -> "np.ndarray":
    """The first channel of a recording at 8 kHz, in [-1, 1].

    Args:
        path: of the file.

    Returns:
        The samples, float64.

    Raises:
        ValueError: if the file cannot be read, is empty, or has another length than its
            header says.
    """
    import soundfile
    from scipy.signal import resample_poly

    try:
        samples, rate = soundfile.read(path, dtype="float64", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, str(error)) from error
    _check_whole(path, len(samples))
    common = math.gcd(rate, RATE)
    # the window of MATLAB's `resample`, which the literature used
    return resample_poly(
        samples[:, 0], RATE // common, rate // common, window=("kaiser", 5.0)
    )


def _check_whole(path: Path, samples: int) -> None:
    """Raise unless the length is that of the header: libsndfile reads what there is."""
    with path.open("rb") as stream:
        head = stream.read(HEADER)
    if head.startswith(b"NIST_1A"):
        count = re.search(rb"^sample_count -i (\d+)\s", head, re.MULTILINE)
        expected, got, unit = int(count[1]) if count else -1, samples, "samples"
    elif head.startswith(b"RIFF"):
        expected, unit = int.from_bytes(head[4:8], "little") + 8, "bytes"
        got = path.stat().st_size
        # a chunk of odd length has one more byte, which some writers do not count
        got -= got == expected + 1
    else:
        expected, got, unit = samples, samples, "samples"
    if got != expected:
        raise _unreadable(path, f"{got} {unit} where its header says {expected}")
    if samples == 0:
        raise _unreadable(path, "no samples")


def _unreadable(path: Path, what: str) -> ValueError:
    return ValueError(
        f"`{path}` must be a whole recording that libsndfile reads; got {what}. Copy "
        f"it again, or remove it."
    )
