"""How networks are called and drawn, the same in every figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from isometry.lab.report._run import Run

# vermilion, blue, green, purple, brown, light blue, grey: found by a search for those
# that readers without red or green cones tell apart, and that stand out from the page
LIGHT = ("#d55e00", "#3f4fd8", "#2da76b", "#7d3a94", "#743714", "#5b94f5", "#6b7280")
DARK = ("#ff8a3d", "#8a5cff", "#7deea6", "#9657b1", "#8e5c3f", "#bac6ff", "#8a9e9e")

# label, colour and marker; those that share a colour differ in the marker
NETWORKS = {
    "exprnn": ("ExpRNN", 0, "o"),
    "scornn": ("scoRNN", 1, "s"),
    "lstm": ("LSTM", 6, "D"),
    "rgd": ("RGD", 2, "^"),
    "urnn": ("uRNN", 3, "v"),
    "eurnn": ("EURNN", 4, "P"),
    "scurnn": ("scuRNN", 5, "X"),
    "gru": ("GRU", 6, "h"),
    "householder": ("oRNN", 2, "<"),
    "spectral": ("Spectral", 3, ">"),
    "lie": ("Lie", 4, "d"),
    "explstm": ("ExpLSTM", 0, "*"),
    "expgru": ("ExpGRU", 0, "p"),
}

DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Look:
    """Label, colour, marker and dashes of a run."""

    label: str
    colour: int
    marker: str
    dashes: str


def network_label(model: str) -> str:
    """The name of a network as papers write it."""
    return NETWORKS[model][0] if model in NETWORKS else model


def looks(runs: Sequence[Run]) -> list[Look]:
    """How the runs of an experiment are drawn: colour by network, dashes by run.

    Args:
        runs: those of one figure.

    Returns:
        One look a run. Seeds, then folders, are named where labels would be equal.
    """
    labels = [_label(run) for run in runs]
    for more in (lambda run: f"seed {run.config.get('seed')}", lambda r: r.path.name):
        doubled = {label for label in labels if labels.count(label) > 1}
        labels = [
            f"{label}, {more(run)}" if label in doubled else label
            for label, run in zip(labels, runs, strict=True)
        ]
    seen: dict[str, int] = {}
    found = []
    for run, label in zip(runs, labels, strict=True):
        nth = seen[run.model] = seen.get(run.model, -1) + 1
        # a network of the user's own
        _, colour, marker = NETWORKS.get(run.model, ("", len(seen) % len(LIGHT), "H"))
        found.append(Look(label, colour, marker, DASHES[nth % len(DASHES)]))
    return found


def _label(run: Run) -> str:
    size = run.hidden_size
    return network_label(run.model) + (f" {size}" if size is not None else "")
