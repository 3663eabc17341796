"""The runs of docs/reproduction.md: about 20 core-hours."""

from isometry.lab.reproduce._plan import MNIST, PMNIST, PlannedRun, copying_words

# the map and its base, which a later default must not change
_EXP = ("--model-options", "orthogonal_map=exp", "--model-options", "rebase_every=null")

# the rates and the first weight of the paper's copying task, and of its MNIST
_COPYING_EXP = (*_EXP, "--model-options", "init=henaff", "--lr", "2e-4")
_COPYING_EXP += ("--lr-ratio", "0.1")
_PIXEL_EXP = (*_EXP, "--model-options", "init=cayley", "--lr-ratio", "0.1")
_MOVING = ("--model-options", "rebase_every=100")

# networks of Table 2 at their first sizes
_SPEECH = (
    *(("exprnn", 224), ("scornn", 224), ("lstm", 84), ("rgd", 128), ("eurnn", 158)),
)


def recorded() -> list[PlannedRun]:
    """All runs, most telling first, and slow ones last.

    Returns:
        The runs.
    """
    first, *copying = _figure1()
    longest, *pixels = _table1()
    return [first, longest, *copying, *pixels, *_remarks(), *_table2(), *_slow()]


def _figure1() -> list[PlannedRun]:
    """Copying memory with lags of 1000 and 2000."""
    return [
        _copying("exprnn", 190, 2000, *_COPYING_EXP),
        _copying("lstm", 68, 2000),
        _copying("scornn", 190, 2000),
        _copying("exprnn", 190, 4000, *_COPYING_EXP, lag=2000),
        _copying("rgd", 128, 2000),
        _copying("scurnn", 130, 2000),
        _copying("exprnn", 190, 2000, *_COPYING_EXP, "--seed", "5545", note="seed5545"),
        _copying("exprnn", 190, 2000, *_COPYING_EXP, "--seed", "5546", note="seed5546"),
        _copying("scornn", 190, 1500, lag=2000),
        _copying("lstm", 68, 1500, lag=2000),
    ]


def _table1() -> list[PlannedRun]:
    """Permuted MNIST, then MNIST pixel by pixel."""
    slow, slower, usual = ("--lr", "7e-4"), ("--lr", "5e-4"), ("--lr", "1e-3")
    gated = (*_EXP, *usual, "--lr-ratio", "0.1")
    moving = (*_PIXEL_EXP, *_MOVING)
    return [
        _pixels("exprnn", 170, 70, *_PIXEL_EXP, *usual),
        _pixels("scornn", 170, 10),
        _pixels("lstm", 128, 10),
        _pixels("rgd", 116, 10),
        _pixels("exprnn", 170, 10, *moving, *usual, note="rebase100"),
        _pixels("exprnn", 170, 20, *_PIXEL_EXP, *slow, permute=False),
        _pixels("scornn", 170, 10, permute=False),
        _pixels("lstm", 128, 10, permute=False),
        _pixels("exprnn", 170, 10, *moving, *slow, permute=False, note="rebase100"),
        _pixels("rgd", 116, 10, permute=False),
        # gated cells of 16.5 thousand parameters, about as many as ExpRNN 170 has
        _pixels("explstm", 87, 5, *gated),
        _pixels("expgru", 100, 5, *gated),
        _pixels("exprnn", 360, 5, *_PIXEL_EXP, *slow),
        _pixels("exprnn", 512, 5, *_PIXEL_EXP, *slower),
    ]


def _remarks() -> list[PlannedRun]:
    """Variants of ExpRNN and RGD, each compared with the first of its kind."""
    variants = {
        "reference": (),
        "init-cayley": ("--model-options", "init=cayley"),
        "unitary": ("--model-options", "unitary=true"),
        "ratio-1": ("--lr-ratio", "1"),
        "ratio-10": ("--lr-ratio", "10"),
        "trained-h0": ("--model-options", "train_h0=true"),
    }
    retractions = ("cayley", "exp", "pade-3")
    return [
        *(
            _remark("exprnn", 190, *_COPYING_EXP, *v, note=k)
            for k, v in variants.items()
        ),
        *(_remark("rgd", 128, "--retraction", name, note=name) for name in retractions),
    ]


def _table2() -> list[PlannedRun]:
    """Speech, on any folder of recordings, split by speakers."""
    words = (
        "timit",
        "--split",
        "speakers",
        "--epochs",
        "300",
        "--evaluate-every",
        "20",
    )
    return [
        PlannedRun("timit-sample", *network, (*words, "--target", target), target)
        for target in ("next", "previous")
        for network in _SPEECH
    ]


def _slow() -> list[PlannedRun]:
    """Networks whose step takes seconds."""
    short = (*PMNIST, "--iterations", "300", "--evaluate-every", "100")
    return [
        *(_copying("urnn", 470, 300), _copying("eurnn", 512, 300)),
        *(PlannedRun("pmnist", model, 512, short) for model in ("urnn", "eurnn")),
    ]


def _copying(
    model: str,
    size: int,
    iterations: int,
    *more: str,
    lag: int = 1000,
    note: str = "",
) -> PlannedRun:
    # solved, by our definition, is below 1 % of the baseline for 200 steps
    solved = ("--solved", "0.01", "--solved-for", "200", "--held-out", "500")
    words = (*copying_words(lag, iterations), *solved, "--checkpoint-every", "50")
    return PlannedRun(f"copying-{lag}", model, size, (*words, *more), note)


def _pixels(
    model: str,
    size: int,
    epochs: int,
    *more: str,
    permute: bool = True,
    note: str = "",
) -> PlannedRun:
    words = (*(PMNIST if permute else MNIST), "--epochs", f"{epochs}", *more)
    return PlannedRun("pmnist" if permute else "mnist", model, size, words, note)


def _remark(model: str, size: int, *more: str, note: str) -> PlannedRun:
    words = (*copying_words(200, 800), "--solved", "0", "--held-out", "500", *more)
    return PlannedRun("copying-200", model, size, words, note)
