"""What the paper's figures and tables need, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isometry.lab.report._paper import PAPER

BATCH_SIZE = 128  # [LM19] appendix, of all experiments
SEED = 5544  # [LM19] appendix


@dataclass(frozen=True)
class PlannedRun:
    """A run under the paper's protocol.

    Attributes:
        experiment: key of `PAPER`.
        model: name in the registry.
        hidden_size: features of the state.
        words: task and options of `isometry train`, besides those of the network.
    """

    experiment: str
    model: str
    hidden_size: int
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.experiment}-{self.model}-{self.hidden_size}"

    def command(self, folder: Path, *more: str) -> list[str]:
        """What `isometry` is called with to begin the run.

        Args:
            folder: of the run.
            *more: options that depend on the machine, such as where data is.

        Returns:
            The words after `isometry`.
        """
        network = ("--model", self.model, "--hidden-size", f"{self.hidden_size}")
        usual = ("--batch-size", f"{BATCH_SIZE}", "--seed", f"{SEED}")
        # the paper trains to the end, solved or not: the curves show what follows
        whole = ("--solved", "0")
        task, *options = self.words
        line = ("train", task, *network, *options, *usual, *whole, *more)
        return [*line, "--out", f"{folder}"]


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


_PIXELS = ("--epochs", "70", "--validation", "0")


@dataclass(frozen=True)
class _Protocol:
    """An experiment: its networks and the words after `isometry train`."""

    experiment: str
    networks: tuple[tuple[str, int], ...]
    words: tuple[str, ...]


# 4000 iterations, 70 and 1200 epochs: the authors' text and program. On MNIST they
# train on all images and report the best test accuracy.
PROTOCOLS = {
    "figure1-left": _Protocol(
        "copying-1000", _COPYING, ("copying", "--lag", "1000", "--iterations", "4000")
    ),
    "figure1-right": _Protocol(
        "copying-2000", _COPYING, ("copying", "--lag", "2000", "--iterations", "4000")
    ),
    "mnist": _Protocol("mnist", _sizes("mnist"), ("mnist", *_PIXELS)),
    "pmnist": _Protocol("pmnist", _sizes("pmnist"), ("mnist", "--permute", *_PIXELS)),
    "timit": _Protocol("timit", _sizes("timit"), ("timit", "--epochs", "1200")),
}


def plan(what: str, models: Sequence[str] | None = None) -> list[PlannedRun]:
    """The runs that a figure or table needs, in the order in which they are made.

    The smallest network of each kind comes first, so that a plan that is cut short has
    something to compare.

    Args:
        what: "figure1-left", "figure1-right", "mnist", "pmnist", "timit" or "all".
        models: names in the registry; all of the paper if None.

    Returns:
        The runs.

    Raises:
        ValueError: if there is no such figure, or it has no such network.
    """
    if what != "all" and what not in PROTOCOLS:
        raise ValueError(
            f"`what` must be one of {', '.join(PROTOCOLS)} or all; got {what!r}. "
            f"Choose one of them."
        )
    chosen = list(PROTOCOLS.values()) if what == "all" else [PROTOCOLS[what]]
    known = {model for protocol in chosen for model, _ in protocol.networks}
    if unknown := set(models or ()) - known:
        raise ValueError(
            f"`models` must be among {', '.join(sorted(known))} for {what}; got "
            f"{', '.join(sorted(unknown))}. Train others with `isometry train`, and "
            f"report all with `isometry report`."
        )
    return [run for protocol in chosen for run in _runs(protocol, models or known)]


def _runs(protocol: _Protocol, models: Sequence[str] | set[str]) -> list[PlannedRun]:
    networks = [pair for pair in protocol.networks if pair[0] in models]
    sizes = {m: sorted(n for name, n in networks if name == m) for m, _ in networks}
    networks.sort(key=lambda pair: sizes[pair[0]].index(pair[1]))
    return [PlannedRun(protocol.experiment, *pair, protocol.words) for pair in networks]
