"""Plans of runs as data: the figures and tables of the paper, and our own runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isometry.lab._options import suggestion
from isometry.lab.paper.tables import PAPER, PaperRow

BATCH_SIZE = 128  # [LM19] appendix, all experiments
SEED = 5544  # [LM19] appendix

# The paper trains on all 60,000 images of MNIST and reports the best test accuracy. We
# hold out this many images for validation, and also report the test accuracy at the
# step with the best validation accuracy.
VALIDATION_IMAGES = 5000


# How long the paper trains on each task: a number of steps if the data is endless,
# otherwise a number of epochs. The adding problem is not in the paper; we train on
# 10,000 batches.
ITERATIONS = {"copying": 4000, "adding": 10000}
EPOCHS = {"mnist": 70, "pmnist": 70, "timit": 1200}


Sizes = tuple[int, ...]


def _by_task(
    *, copying: int, mnist: Sizes, timit: Sizes, adding: int
) -> dict[str, Sizes]:
    """Hidden sizes by task. MNIST and permuted MNIST have the same sizes."""
    pixels = dict.fromkeys(("mnist", "pmnist"), mnist)
    return {"copying": (copying,), **pixels, "timit": timit, "adding": (adding,)}


_REAL = _by_task(copying=190, mnist=(170, 360, 512), timit=(224, 322, 425), adding=170)
_GATED = _by_task(copying=68, mnist=(128, 256, 512), timit=(84, 120, 158), adding=128)

# Hidden sizes by network and task. If there are several, the first is the default.
# Where the paper gives no size, we chose one.
SIZES: dict[str, dict[str, Sizes]] = {
    **dict.fromkeys(("exprnn", "scornn", "householder", "spectral"), _REAL),
    **dict.fromkeys(("explstm", "expgru", "lstm", "gru"), _GATED),
    "scurnn": _by_task(
        copying=130, mnist=(116, 250), timit=(128, 192, 256), adding=116
    ),
    "urnn": _by_task(copying=470, mnist=(512, 2170), timit=(158, 256, 378), adding=512),
    "rgd": _by_task(copying=128, mnist=(116, 512), timit=(128, 192, 256), adding=128),
    "eurnn": _by_task(copying=512, mnist=(512,), timit=(158, 256, 378), adding=512),
    "lie": _by_task(copying=30, mnist=(30,), timit=(30,), adding=30),
}


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        experiment: a key of `PAPER`, or the name of one of our own experiments.
        model: name of the network in the registry.
        hidden_size: number of features of the hidden state.
        options: the task and other options of `isometry train`, keyed by name.
        note: a word that sets this run apart from others with the same network and
            size.
    """

    experiment: str
    model: str
    hidden_size: int
    options: Mapping[str, Any]
    note: str = ""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        parts = (self.experiment, self.model, f"{self.hidden_size}", self.note)
        return "-".join(filter(None, parts))

    def all_options(self) -> dict[str, Any]:
        """The task and all options of `isometry train` that the plan sets."""
        network = {"model": self.model, "hidden_size": self.hidden_size}
        # with one thread, results depend less on the machine
        usual = {"batch_size": BATCH_SIZE, "seed": SEED, "threads": 1}
        return network | usual | dict(self.options)


# the task of each figure or table of the paper, with its options, keyed by experiment
_COPYING: dict[str, Any] = {"task": "copying", "log_every": 1, "evaluate_every": 50}
_MNIST: dict[str, Any] = {"task": "mnist", "validation": VALIDATION_IMAGES}
_TASKS = {
    "copying-1000": _COPYING | {"lag": 1000},
    "copying-2000": _COPYING | {"lag": 2000},
    "mnist": _MNIST,
    "pmnist": _MNIST | {"permute": True},
    "timit": {"task": "timit"},
}


def _figure(experiment: str) -> list[PlannedRun]:
    """Runs for the left or right half of Figure 1: the copying task with one lag.

    All networks have about 22,000 parameters.
    """
    # do not stop when the task is solved, because the paper's curves continue
    length = {"iterations": ITERATIONS["copying"], "solved": 0.0}
    options = _TASKS[experiment] | length
    return [
        PlannedRun(experiment, model, SIZES[model]["copying"][0], options)
        for model in ("exprnn", "scornn", "lstm", "urnn", "rgd", "scurnn")
    ]


def _table(experiment: str) -> list[PlannedRun]:
    """The runs of a table of the paper: each network and size that has a result.

    The smallest network of each kind comes first, then the next larger ones. With this
    order, an interrupted plan has results for as many kinds as possible.
    """
    rows = [row for row in PAPER[experiment].rows if row.result is not None]
    options = _TASKS[experiment] | {"epochs": EPOCHS[experiment]}

    def rank(row: PaperRow) -> int:
        sizes = sorted(other.hidden_size for other in rows if other.model == row.model)
        return sizes.index(row.hidden_size)

    ranked = sorted(rows, key=rank)
    return [PlannedRun(experiment, r.model, r.hidden_size, options) for r in ranked]


# The learning rates and retractions of our own runs: first by network, then what is
# different on one task. A network that is not in the first table has `lr_ratio=0.1`.
# A run for which neither the tables nor its own options give an `lr` has `lr=1e-3`.
# These values repeat defaults of the recipes in `networks`, so that a new default there
# does not change what a plan means.
_OWN_RATES: dict[str, dict[str, Any]] = {
    "rgd": {"lr_ratio": 2.0, "retraction": "cayley"},
    # one optimizer updates all parameters of these networks, so they have no `lr_ratio`
    **{model: {} for model in ("lstm", "urnn", "eurnn")},
}
_OWN_RATES_ON = {
    ("exprnn", "copying"): {"lr": 2e-4},
    ("urnn", "mnist"): {"lr": 1e-4},
    ("eurnn", "mnist"): {"lr": 1e-4},
    ("rgd", "mnist"): {"lr_ratio": 2e-3},
}

# Options for the tasks of our own runs. The copying task counts as solved if the
# validation loss has been below 1 % of the baseline for 200 steps.
_SOLVED = {"solved": 0.01, "solved_for": 200, "held_out": 500, "checkpoint_every": 50}
_VARIANTS = {"lag": 200, "iterations": 800, "solved": 0.0, "held_out": 500}
# We use the free sample of TIMIT, whose training set is smaller than one of the paper's
# batches. In batches of 128, an epoch would be a single step, and after 300 such epochs
# no network was near convergence.
_SAMPLE = {"batch_size": 16, "epochs": 600, "evaluate_every": 60}
_OWN_TASKS = _TASKS | {
    "copying-1000": _TASKS["copying-1000"] | _SOLVED,
    "copying-2000": _TASKS["copying-2000"] | _SOLVED,
    "copying-200": _COPYING | _VARIANTS,
    # the recordings in any folder, split by speaker
    "timit-sample": {"task": "timit", "split": "speakers", **_SAMPLE},
}


def _own(
    experiment: str, model: str, size: int, note: str = "", **options: Any
) -> PlannedRun:
    """One of our own runs.

    Its `options` override the usual options of the task and the network, and the
    learning rates in the tables above.
    """
    options = _OWN_TASKS[experiment] | options
    task, more = options["task"], options.get("model_options", {})
    # state these options, so that new defaults cannot change a plan
    if model in ("exprnn", "explstm", "expgru"):
        more = {"retraction": "exp", "rebase_every": None} | more
    if model == "exprnn":
        more = {"init": "cayley" if task == "mnist" else "henaff"} | more
    usual = {"lr": 1e-3} | _OWN_RATES.get(model, {"lr_ratio": 0.1})
    stated = usual | _OWN_RATES_ON.get((model, task), {}) | options
    note = note or (f"seed{options['seed']}" if "seed" in options else "")
    return PlannedRun(experiment, model, size, stated | {"model_options": more}, note)


# Figure 1: copying memory with lags of 1000 and 2000
_FIGURE1 = [
    _own("copying-1000", "exprnn", 190, iterations=2000),
    _own("copying-1000", "lstm", 68, iterations=2000),
    _own("copying-1000", "scornn", 190, iterations=2000),
    _own("copying-2000", "exprnn", 190, iterations=4000),
    _own("copying-1000", "rgd", 128, iterations=2000),
    _own("copying-1000", "scurnn", 130, iterations=2000),
    _own("copying-1000", "exprnn", 190, iterations=2000, seed=5545),
    _own("copying-1000", "exprnn", 190, iterations=2000, seed=5546),
    _own("copying-2000", "scornn", 190, iterations=1500),
    _own("copying-2000", "lstm", 68, iterations=1500),
]

# Table 1: permuted MNIST and MNIST, pixel by pixel
_MOVING = {"model_options": {"rebase_every": 100}}
_TABLE1 = [
    _own("pmnist", "exprnn", 170, epochs=70),
    _own("pmnist", "scornn", 170, epochs=10),
    _own("pmnist", "lstm", 128, epochs=10),
    _own("pmnist", "rgd", 116, epochs=10),
    _own("pmnist", "exprnn", 170, "rebase100", epochs=10, **_MOVING),
    _own("mnist", "exprnn", 170, epochs=70, lr=7e-4),
    _own("mnist", "scornn", 170, epochs=10),
    _own("mnist", "lstm", 128, epochs=10),
    _own("mnist", "exprnn", 170, "rebase100", epochs=10, lr=7e-4, **_MOVING),
    _own("mnist", "rgd", 116, epochs=10),
    # the next two networks have about 16,500 parameters, like ExpRNN with n = 170
    _own("pmnist", "explstm", 87, epochs=5),
    _own("pmnist", "expgru", 100, epochs=5),
    _own("pmnist", "exprnn", 360, epochs=5, lr=7e-4),
    _own("pmnist", "exprnn", 512, epochs=5, lr=5e-4),
]

# Variants of ExpRNN and RGD on the copying task with lag 200, for remarks in the paper.
# The first run of each network is the reference for its variants.
_REMARKS = [
    _own("copying-200", "exprnn", 190, "reference"),
    _own("copying-200", "exprnn", 190, "init-cayley", model_options={"init": "cayley"}),
    _own("copying-200", "exprnn", 190, "unitary", model_options={"unitary": True}),
    _own("copying-200", "exprnn", 190, "ratio-1", lr_ratio=1.0),
    _own("copying-200", "exprnn", 190, "ratio-10", lr_ratio=10.0),
    _own("copying-200", "exprnn", 190, "trained-h0", model_options={"train_h0": True}),
    _own("copying-200", "rgd", 128, "cayley", retraction="cayley"),
    _own("copying-200", "rgd", 128, "exp", retraction="exp"),
    _own("copying-200", "rgd", 128, "pade-3", retraction="pade-3"),
]

# Table 2: speech, where the target is the next frame or the previous one
_TABLE2 = [
    _own("timit-sample", model, SIZES[model]["timit"][0], target, target=target)
    for target in ("next", "previous")
    for model in ("exprnn", "scornn", "lstm", "rgd", "eurnn")
]

# networks on permuted MNIST again, with other seeds
_SEEDS = [
    _own("pmnist", model, size, epochs=10, seed=seed)
    for seed in (5545, 5546)
    for model, size in (("exprnn", 170), ("scornn", 170), ("rgd", 116))
]

# short runs of networks whose training steps take seconds
_SLOW = [
    _own("copying-1000", "urnn", 470, iterations=300),
    _own("copying-1000", "eurnn", 512, iterations=300),
    _own("pmnist", "urnn", 512, iterations=300, evaluate_every=100),
    _own("pmnist", "eurnn", 512, iterations=300, evaluate_every=100),
]

# The plan "recorded": the most informative runs come first, and the slowest come last.
_RECORDED = [_FIGURE1[0], _TABLE1[0], *_FIGURE1[1:], *_TABLE1[1:]]
_RECORDED += [*_REMARKS, *_TABLE2, *_SEEDS, *_SLOW]

# The search for better training options than the paper's. `_USUAL` has the options of
# all its runs, and `_SEARCH` has the options that each run changes. No run has the
# paper's own options, since the plan "recorded" already trains with them, for 70
# epochs.
_USUAL = {"optimizer": "RMSprop", "lr": 2e-3, "decay": "cosine", "clip_norm": 1.0}
_SEARCH: dict[str, dict[str, Any]] = {
    "cosine": {"lr": 1e-3},
    "linear": {"lr": 1e-3, "decay": "linear"},
    "clip10": {"lr": 1e-3, "clip_norm": 10.0},
    "lr2": {},
    "lr4": {"lr": 4e-3},
    "ratio0.3": {"lr_ratio": 0.3},
    "rebase100": {"model_options": {"rebase_every": 100}},
    "rebase1": {"model_options": {"rebase_every": 1}},
    "adam": {"optimizer": "Adam"},
    "adam-rebase100": {"optimizer": "Adam", "model_options": {"rebase_every": 100}},
}

# The entry of `_SEARCH` that the long run uses: the one with the best validation
# accuracy in the recorded short runs. The test set did not influence the choice.
_CHOSEN = "adam"

# The plan "beyond": ten short runs, and then a long run with as many epochs as the
# paper's. All train ExpRNN with n = 170 on permuted MNIST. In each run, the learning
# rate falls to zero.
_BEYOND = [
    _own("pmnist", "exprnn", 170, f"search-{name}", epochs=5, **_USUAL | changes)
    for name, changes in _SEARCH.items()
]
_LONG = _USUAL | _SEARCH[_CHOSEN]
_BEYOND += [_own("pmnist", "exprnn", 170, f"long-{_CHOSEN}", epochs=70, **_LONG)]

_PAPER = {
    "figure1-left": _figure("copying-1000"),
    "figure1-right": _figure("copying-2000"),
    **{experiment: _table(experiment) for experiment in EPOCHS},
}

# the runs of each plan, in the order in which they are trained
PLANS = {
    **_PAPER,
    "all": [run for runs in _PAPER.values() for run in runs],
    "recorded": _RECORDED,
    "beyond": _BEYOND,
}


def plan(what: str, models: Sequence[str] | None = None) -> list[PlannedRun]:
    """The runs of a plan, in the order in which they are trained.

    Args:
        what: name of the plan. "figure1-left", "figure1-right", "mnist", "pmnist" and
            "timit" are figures and tables of the paper at full length, and "all" is all
            of them. "recorded" has the runs of docs/reproduction.md, most of which are
            shorter. "beyond" searches for better options to train ExpRNN with n = 170
            on permuted MNIST.
        models: names of the networks to train; None for all networks of the plan.

    Returns:
        The runs.

    Raises:
        ValueError: if there is no such plan, or a network is not in the plan.
    """
    if what not in PLANS:
        raise ValueError(f"`what` must be one of {', '.join(PLANS)}; got {what!r}.")
    runs = PLANS[what]
    names = {run.model for run in runs}
    if unknown := sorted(set(models or ()) - names):
        raise ValueError(
            f"`models` must be among {', '.join(sorted(names))} for {what}; got "
            f"{', '.join(unknown)}.{suggestion(unknown[0], names)} Train others with "
            f"`isometry train`, and report all with `isometry report`."
        )
    return [run for run in runs if run.model in (models or names)]
