"""Which recordings a speech corpus trains on, and which it is judged by."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

# the core test set of TIMIT, from its own documentation (testset.doc, table 1)
CORE = """
mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
"""

# the usual development set: 50 of the other test speakers
DEVELOPMENT = """
faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0
fadg0 fdms0 fedw0 mgjf0 mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0
mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0 mrcs0 mrjm4 fcal1 mmwh0 fjsj0
majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1
"""

# of the whole corpus; 462 speakers train, of whom 7 have "sa" in their names
COUNTS = {"train": 8 * (462 - 7), "development": 8 * 50, "core": 8 * 24}


class Splits(NamedTuple):
    """Recordings by their use, in a fixed order.

    Attributes:
        train: to learn from.
        core: of TIMIT, its core test set; elsewhere the first held-out speakers.
        development: of TIMIT, the development set; elsewhere the second.
        padding: those whose longest gives the number of frames in evaluation.
    """

    train: list[PurePath]
    core: list[PurePath]
    development: list[PurePath]
    padding: list[PurePath]


def timit_splits(paths: Sequence[PurePath]) -> Splits:
    """The splits of the paper.

    The sentences sa1 and sa2, which all speakers read, are left out; in training by the
    rule of the paper's programs, which drops every path with "sa" in it: 3640
    recordings remain, and not 3696.

    Args:
        paths: of recordings below the folder of the corpus, `TRAIN/DR1/FCJF0/SX37.WAV`
            in either case.

    Returns:
        The splits.

    Raises:
        ValueError: if the corpus is not whole.
    """
    parts = {path: path.as_posix().lower().split("/") for path in sorted(paths)}
    test = [path for path, names in parts.items() if "test" in names[:-1]]
    core, development = CORE.split(), DEVELOPMENT.split()
    spoken = [path for path in test if not parts[path][-1].startswith("sa")]
    found = Splits(
        train=[
            path
            for path, names in parts.items()
            if "train" in names[:-1] and "sa" not in "/".join(names)
        ],
        core=[path for path in spoken if parts[path][-2] in core],
        development=[path for path in spoken if parts[path][-2] in development],
        padding=test,
    )
    counts = {name: len(getattr(found, name)) for name in COUNTS}
    if counts != COUNTS:
        raise ValueError(
            f"`root` must hold TIMIT, with {_listed(COUNTS)} recordings; got "
            f"{_listed(counts)}. Give the folder that has TRAIN and TEST in it, or ask "
            f'for the split "speakers" (`--split speakers`), which takes any folder of '
            f"recordings."
        )
    return found


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def speaker_splits(paths: Sequence[PurePath]) -> Splits:
    """Splits of any recordings: an eighth of the speakers for each that is held out.

    A folder is a speaker; where there are fewer than three, a file is. Of the sample of
    TIMIT, sa1 and sa2 are left out.

    Args:
        paths: of recordings below the folder of the corpus.

    Returns:
        The splits.

    Raises:
        ValueError: if there are fewer than three recordings.
    """
    import numpy as np

    kept = [path for path in sorted(paths) if path.stem.lower() not in ("sa1", "sa2")]
    speakers: dict[PurePath, list[PurePath]] = {}
    for path in kept:
        speakers.setdefault(path.parent, []).append(path)
    if len(speakers) < 3:
        speakers = {path: [path] for path in kept}
    if len(speakers) < 3:
        raise ValueError(
            f"`root` must hold at least 3 recordings (.wav); got {len(kept)}. Give the "
            f"folder above those of the speakers."
        )
    # shuffled, since names are often in the order of sex or dialect
    names = list(speakers)
    order = np.random.default_rng(0).permutation(len(names))
    held = math.ceil(len(names) / 8)
    groups = (order[:held], order[held : 2 * held], order[2 * held :])
    core, development, train = (
        sorted(path for i in group for path in speakers[names[i]]) for group in groups
    )
    return Splits(train, core, development, core + development)
