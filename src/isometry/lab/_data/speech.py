"""Reads recordings of speech, computes their spectra, and splits them into sets."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


# As in the literature, a window is 32 ms long, and overlaps the next window by half.
# SAMPLE_RATE is in Hz; WINDOW and HOP are in samples.
SAMPLE_RATE = 8000
WINDOW = 256
HOP = 128
BINS = WINDOW // 2 + 1
# As in the literature, this number is added to every entry of a power spectrum, so that
# silence has -50 dB.
FLOOR = 1e-5
SILENCE = -50.0


def frame_count(samples: int) -> int:
    """Number of frames of a recording with this many samples at 8 kHz."""
    return math.ceil(samples / HOP) + 3


def log_power(samples: "np.ndarray") -> "Tensor":
    r"""Log-power spectra of a recording, in dB.

    $$ y = 10 \log_{10}(10^{-5} + |X|^2) $$

    where $X$ is the short-time Fourier transform of the recording.

    Args:
        samples: the recording at 8 kHz.

    Returns:
        The spectra (frames, 129), float32.
    """
    X = spectra(samples)
    power = X.real.square() + X.imag.square()
    return (10 * (FLOOR + power).log10()).float()


def spectra(samples: "np.ndarray") -> "Tensor":
    """Short-time Fourier transform of a recording.

    Each frame has 256 samples under a periodic Hann window, and overlaps the next frame
    by half. The recording is padded with zeros to a multiple of 128 samples, and then
    with 256 more zeros at each end, so that the first frame and the last frame are
    silent.

    Args:
        samples: the recording at 8 kHz.

    Returns:
        The spectra (frames, 129), complex128.
    """
    import torch

    fill = -len(samples) % HOP
    recording = torch.as_tensor(samples, dtype=torch.float64)
    x = torch.nn.functional.pad(recording, (WINDOW, fill + WINDOW))
    window = torch.hann_window(WINDOW, dtype=torch.float64)
    X = torch.stft(x, WINDOW, HOP, window=window, center=False, return_complex=True)
    return X.T.contiguous()


def waveform(y: "Tensor", X: "Tensor", samples: int) -> "Tensor":
    r"""The recording with given log-power spectra and given phases.

    $$ s = \sum_t \operatorname{shift}_{128 t}
           \mathcal F^{-1}\bigl(10^{y_t / 20}\, X_t / |X_t|\bigr) $$

    Here $\mathcal F^{-1}$ is the inverse Fourier transform of frame $t$, and
    $\operatorname{shift}_{128 t}$ moves the frame $128 t$ samples to the right.
    Periodic Hann windows that overlap by half add up to 1. Therefore the log-power
    spectra and the phases of a recording reproduce this recording, except for the
    effect of the power $10^{-5}$ that `log_power` adds.

    Args:
        y: log-power spectra (frames, 129), in dB.
        X: spectra with the phases, of the same shape. Their moduli are not used.
        samples: number of samples in the recording.

    Returns:
        The samples at 8 kHz, float64, without the zeros that `spectra` adds.
    """
    import torch

    frames = torch.fft.irfft(torch.polar(10 ** (y.double() / 20), X.angle()))
    early, late = frames[:, :HOP], frames[:, HOP:]
    whole = torch.nn.functional.pad(early, (0, 0, 0, 1))
    whole[1:] += late
    return whole.flatten()[WINDOW : WINDOW + samples]


# usual size of the header of a NIST SPHERE file, in bytes
HEADER = 1024


def recordings(root: Path) -> list[Path]:
    """All `.wav` files below a folder, as paths relative to that folder."""
    files = (p for p in root.rglob("*") if p.suffix.lower() == ".wav" and p.is_file())
    return [path.relative_to(root) for path in files]


def recording_frames(path: Path) -> int:
    """Number of frames in the spectra of a recording, computed from its header."""
    import soundfile

    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, str(error)) from error
    return frame_count(math.ceil(info.frames * SAMPLE_RATE / info.samplerate))


def read_recording(path: Path) -> "np.ndarray":
    """The first channel of a recording, resampled to 8 kHz. Full scale is 1.

    Args:
        path: path of the file.

    Returns:
        The samples, float64.

    Raises:
        ValueError: if the file cannot be read, has no samples, or is shorter or longer
            than its header says.
    """
    import soundfile
    from scipy.signal import resample_poly

    try:
        samples, rate = soundfile.read(path, dtype="float64", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise _unreadable(path, str(error)) from error
    _check_whole(path, len(samples))
    common = math.gcd(rate, SAMPLE_RATE)
    # the literature used MATLAB's `resample`, whose filter has this Kaiser window
    return resample_poly(
        samples[:, 0], SAMPLE_RATE // common, rate // common, window=("kaiser", 5.0)
    )


def _check_whole(path: Path, samples: int) -> None:
    """Raise if a file has no samples, or its length is not the length in its header.

    libsndfile does not check the length. Only NIST SPHERE and RIFF headers are read.
    """
    with path.open("rb") as stream:
        head = stream.read(HEADER)
    expected, got, unit = samples, samples, "samples"
    if head.startswith(b"NIST_1A"):
        count = re.search(rb"^sample_count -i (\d+)\s", head, re.MULTILINE)
        if count is None:
            raise _unreadable(path, "a header without its number of samples")
        expected = int(count[1])
    elif head.startswith(b"RIFF"):
        expected, unit = int.from_bytes(head[4:8], "little") + 8, "bytes"
        got = path.stat().st_size
        # A chunk of odd length is followed by a padding byte. Some programs do not
        # count it in the header, so a file may be one byte longer than its header says.
        got -= got == expected + 1
    if got != expected:
        raise _unreadable(path, f"{got} {unit} where its header says {expected}")
    if samples == 0:
        raise _unreadable(path, "no samples")


def _unreadable(path: Path, what: str) -> ValueError:
    return ValueError(
        f"`{path}` must be a whole recording that libsndfile reads; got {what}. Copy "
        f"it again, or remove it."
    )


# the speakers of TIMIT's core test set, from its documentation (testset.doc, table 1)
CORE = """
mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
"""

# the speakers of the usual development set: 50 of TIMIT's other test speakers
DEVELOPMENT = """
faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0
fadg0 fdms0 fedw0 mgjf0 mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0
mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0 fjsj0
majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1
"""

# The number of recordings in each split of the complete corpus: 8 for each speaker.
# Seven of the 462 training speakers are left out because their names contain "sa" (see
# `timit_splits`).
COUNTS = {"train": 8 * (462 - 7), "development": 8 * 50, "core": 8 * 24}


class Splits(NamedTuple):
    """The recordings of each set, in a fixed order.

    Attributes:
        train: the recordings for training.
        core: the core test set of TIMIT; for another corpus, the recordings of the
            first half of the speakers that are held out.
        development: the development set of TIMIT; for another corpus, the recordings of
            the second half of the speakers that are held out.
        padding: the recordings that determine the padding. Both held-out sets are
            padded to the number of frames of the longest recording in this list.
    """

    train: list[PurePath]
    core: list[PurePath]
    development: list[PurePath]
    padding: list[PurePath]


def timit_splits(paths: Sequence[PurePath]) -> Splits:
    """The splits of TIMIT that the paper uses.

    The sentences sa1 and sa2, which all speakers read, are in none of the three sets.
    The recordings of these sentences by test speakers are only in `padding`. For
    training, the paper's code drops every path that contains "sa", and so does this
    function. Thus 3640 training recordings remain instead of 3696.

    Args:
        paths: paths of recordings, relative to the folder of the corpus, such as
            `TRAIN/DR1/FCJF0/SX37.WAV`, in upper or lower case.

    Returns:
        The splits.

    Raises:
        ValueError: if a split has the wrong number of recordings.
    """
    lower = {path: PurePath(path.as_posix().lower()) for path in sorted(paths)}
    training = [path for path, name in lower.items() if "train" in name.parts[:-1]]
    test = [path for path, name in lower.items() if "test" in name.parts[:-1]]
    spoken = [path for path in test if not lower[path].name.startswith("sa")]

    def read_by(speakers: str) -> list[PurePath]:
        return [path for path in spoken if lower[path].parent.name in speakers.split()]

    train = [path for path in training if "sa" not in lower[path].as_posix()]
    splits = Splits(train, read_by(CORE), read_by(DEVELOPMENT), padding=test)
    counts = {name: len(getattr(splits, name)) for name in COUNTS}
    if counts != COUNTS:
        raise ValueError(
            f"`root` must hold TIMIT, with {_listed(COUNTS)} recordings; got "
            f"{_listed(counts)}. Give the folder that has TRAIN and TEST in it, or add "
            f"`--split speakers` for any other folder of recordings."
        )
    return splits


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def speaker_splits(paths: Sequence[PurePath]) -> Splits:
    """Splits for any corpus. Each held-out set has 1/8 of the speakers, rounded up.

    Each folder with recordings counts as a speaker. If there are fewer than three such
    folders, each file counts as a speaker. Recordings named sa1 or sa2 are left out: in
    TIMIT and its free sample, all speakers read these two sentences.

    Args:
        paths: paths of recordings, relative to the folder of the corpus.

    Returns:
        The splits.

    Raises:
        ValueError: if fewer than three recordings remain.
    """
    import numpy as np

    spoken = [path for path in sorted(paths) if path.stem.lower() not in ("sa1", "sa2")]
    speakers: dict[PurePath, list[PurePath]] = {}
    for path in spoken:
        speakers.setdefault(path.parent, []).append(path)
    if len(speakers) < 3:
        speakers = {path: [path] for path in spoken}
    if len(speakers) < 3:
        raise ValueError(
            f"`root` must hold at least 3 recordings (.wav); got {len(spoken)}. Give "
            f"the folder that holds the folders of the speakers."
        )
    # shuffle the speakers, since their names are often ordered by sex or dialect
    order = np.random.default_rng(0).permutation(len(speakers))
    held, by_speaker = math.ceil(len(speakers) / 8), list(speakers.values())
    core, development, train = (
        sorted(path for i in group for path in by_speaker[i])
        for group in np.split(order, (held, 2 * held))
    )
    return Splits(train, core, development, core + development)
