"""What the paper's figures and tables need, as data."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from isometry.lab._spelling import suggestion
from isometry.lab.report._paper import PAPER
from isometry.lab.sweep._plan import Cell

BATCH_SIZE = 128  # [LM19] appendix, all experiments
SEED = 5544  # [LM19] appendix

# The paper trains on all 60,000 images and reports the best test accuracy. We keep
# 5,000 for validation, and report the test at the best validation besides.
VALIDATION = 5000


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        experiment: key of `PAPER`, or the name of a remark of ours.
        model: name in the registry.
        hidden_size: features of the state.
        words: task and options of `isometry train`, besides those of the network.
        note: what sets the run apart from another of the same network.
    """

    experiment: str
    model: str
    hidden_size: int
    words: tuple[str, ...]
    note: str = ""

    @property
    def name(self) -> str:
        """Name of its folder."""
        parts = (self.experiment, self.model, f"{self.hidden_size}", self.note)
        return "-".join(filter(None, parts))

    def command(self, *more: str) -> list[str]:
        """What `isometry` is called with to begin the run.

        Args:
            *more: options that depend on the machine, such as where data is.

        Returns:
            The words after `isometry`. An option that comes twice has its last value.
        """
        network = ("--model", self.model, "--hidden-size", f"{self.hidden_size}")
        # one thread, so that numbers do not depend on the machine more than they must
        usual = ("--batch-size", f"{BATCH_SIZE}", "--seed", f"{SEED}", "--threads", "1")
        task, *options = self.words
        return ["train", task, *network, *usual, *options, *more]

    def cell(self, *more: str) -> Cell:
        """The run for the engine of `isometry sweep`.

        Args:
            *more: options that depend on the machine.

        Returns:
            Its name and its config.
        """
        from isometry.lab.train._command import add_arguments, read

        parser = argparse.ArgumentParser()
        add_arguments(parser)
        given = vars(parser.parse_args(self.command(*more)[1:]))
        del given["resume"]
        return Cell(self.name, read(given)[0])


# networks and sizes of the copying task, all of about 22,000 parameters
_COPYING = (
    ("exprnn", 190),
    ("scornn", 190),
    ("lstm", 68),
    ("urnn", 470),
    ("rgd", 128),
    ("scurnn", 130),
)


def _sizes(experiment: str) -> tuple[tuple[str, int], ...]:
    """Networks and sizes of a table, where it has a number."""
    rows = PAPER[experiment].rows
    return tuple((r.model, r.hidden_size) for r in rows if r.result is not None)


def copying_words(lag: int, iterations: int) -> tuple[str, ...]:
    """The copying task, with every step in the record."""
    length = ("--lag", f"{lag}", "--iterations", f"{iterations}")
    return ("copying", *length, "--log-every", "1", "--evaluate-every", "50")


MNIST = ("mnist", "--validation", f"{VALIDATION}")
PMNIST = (*MNIST, "--permute")

# the paper trains to the end, solved or not: the curves show what follows
_WHOLE = ("--solved", "0")


@dataclass(frozen=True)
class _Protocol:
    """An experiment: its networks and the words after `isometry train`."""

    experiment: str
    networks: tuple[tuple[str, int], ...]
    words: tuple[str, ...]

    def runs(self) -> list[PlannedRun]:
        """The smallest network of each kind first: a plan may be cut short."""
        sizes: dict[str, list[int]] = {}
        for model, size in self.networks:
            sizes.setdefault(model, []).append(size)
        ranked = sorted(
            self.networks, key=lambda pair: sorted(sizes[pair[0]]).index(pair[1])
        )
        return [PlannedRun(self.experiment, *pair, self.words) for pair in ranked]


# 4000 iterations, 70 and 1200 epochs: the authors' text and program
_PROTOCOLS = {
    "figure1-left": _Protocol(
        "copying-1000", _COPYING, (*copying_words(1000, 4000), *_WHOLE)
    ),
    "figure1-right": _Protocol(
        "copying-2000", _COPYING, (*copying_words(2000, 4000), *_WHOLE)
    ),
    "mnist": _Protocol("mnist", _sizes("mnist"), (*MNIST, "--epochs", "70")),
    "pmnist": _Protocol("pmnist", _sizes("pmnist"), (*PMNIST, "--epochs", "70")),
    "timit": _Protocol("timit", _sizes("timit"), ("timit", "--epochs", "1200")),
}


PLANS = (*_PROTOCOLS, "all", "recorded")


def plan(what: str, models: Sequence[str] | None = None) -> list[PlannedRun]:
    """The runs that a figure or table needs, in the order in which they are made.

    Args:
        what: "figure1-left", "figure1-right", "mnist", "pmnist" or "timit", at the
            paper's full length; "all" of these; or "recorded", the shorter runs of
            which the page on reproduction is made.
        models: names in the registry; all of the plan if None.

    Returns:
        The runs.

    Raises:
        ValueError: if there is no such plan, or it has no such network.
    """
    if what not in PLANS:
        raise ValueError(
            f"`what` must be one of {', '.join(PLANS)}; got {what!r}. Choose one of "
            f"them."
        )
    if what == "recorded":
        # it is made of what is here
        from isometry.lab.reproduce._recorded import recorded

        runs = recorded()
    else:
        chosen = _PROTOCOLS.values() if what == "all" else [_PROTOCOLS[what]]
        runs = [run for protocol in chosen for run in protocol.runs()]
    known = {run.model for run in runs}
    if unknown := set(models or ()) - known:
        raise ValueError(
            f"`models` must be among {', '.join(sorted(known))} for {what}; got "
            f"{', '.join(sorted(unknown))}.{suggestion(min(unknown), known)} Train "
            f"others with `isometry train`, and report all with `isometry report`."
        )
    return [run for run in runs if run.model in (models or known)]
