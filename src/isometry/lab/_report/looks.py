"""The colours, markers and labels of networks in figures and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

from isometry.lab._report.runs import MAY_DIFFER, SeedGroup

# The palettes for light and dark pages: vermilion, blue, green, purple, brown, light
# blue and grey. We searched for shades that all stand out from the page, and that
# readers without red or green cones can tell apart.
LIGHT = ("#d55e00", "#3f4fd8", "#2da76b", "#7d3a94", "#743714", "#5b94f5", "#6b7280")
DARK = ("#ff8a3d", "#8a5cff", "#7deea6", "#9657b1", "#8e5c3f", "#bac6ff", "#8a9e9e")


class NetworkLook(NamedTuple):
    """How a network is shown in figures and tables.

    Attributes:
        label: the name that papers use.
        colour: index into the palettes.
        marker: matplotlib marker. Networks that share a colour have different markers.
    """

    label: str
    colour: int
    marker: str


NETWORK_LOOKS = {
    "exprnn": NetworkLook("ExpRNN", 0, "o"),
    "scornn": NetworkLook("scoRNN", 1, "s"),
    "lstm": NetworkLook("LSTM", 6, "D"),
    "rgd": NetworkLook("RGD", 2, "^"),
    "urnn": NetworkLook("uRNN", 3, "v"),
    "eurnn": NetworkLook("EURNN", 4, "P"),
    "scurnn": NetworkLook("scuRNN", 5, "X"),
    "gru": NetworkLook("GRU", 6, "h"),
    "householder": NetworkLook("oRNN", 2, "<"),
    "spectral": NetworkLook("Spectral", 3, ">"),
    "lie": NetworkLook("Lie", 4, "d"),
    "explstm": NetworkLook("ExpLSTM", 0, "*"),
    "expgru": NetworkLook("ExpGRU", 0, "p"),
}

DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Look:
    """How a group of runs is drawn.

    Attributes:
        label: label in legends.
        note: the options that set this group apart from other groups with the same
            network and size.
        colour: index into the palette.
        marker: matplotlib marker.
        dashes: matplotlib line style.
    """

    label: str
    note: str
    colour: int
    marker: str
    dashes: str

    @property
    def line(self) -> dict[str, Any]:
        """The colour and the style of lines, as options of matplotlib."""
        return {"color": LIGHT[self.colour], "ls": self.dashes}


def network_label(model: str) -> str:
    """Label of a network: its name in papers, or else its registered or class name."""
    if model in NETWORK_LOOKS:
        return NETWORK_LOOKS[model].label
    return model.rpartition(":")[2]


def looks(groups: Sequence[SeedGroup]) -> list[Look]:
    """How to draw each group of a figure.

    Groups of the same network have the same colour and marker. Their line styles
    differ, but repeat after the fourth group. A network that is not in `NETWORK_LOOKS`,
    such as a user's own, gets a colour that no other network has, if any is left.

    Args:
        groups: the groups of one figure.

    Returns:
        A look for each group. Options are added to labels that would otherwise be
        equal. Seeds are added if labels are still equal, and then names of folders.
    """
    labels = [_label(group) for group in groups]
    options = partial(_options, groups)
    for detail in (options, _seed, lambda group: group.first.path.name):
        repeats = {label for label in labels if labels.count(label) > 1}
        for nth, group in enumerate(groups):
            if labels[nth] in repeats:
                labels[nth] = joined(labels[nth], detail(group))
    models = [group.first.model for group in groups]
    taken = {NETWORK_LOOKS[model].colour for model in models if model in NETWORK_LOOKS}
    every = range(len(LIGHT))
    free = cycle([colour for colour in every if colour not in taken] or every)
    network_looks = dict(NETWORK_LOOKS)
    for model in models:
        if model not in network_looks:
            network_looks[model] = NetworkLook(model, next(free), "H")
    result = []
    for nth, (group, model) in enumerate(zip(groups, models, strict=True)):
        look = network_looks[model]
        seeds = f"{len(group.runs)} seeds" if len(group.runs) > 1 else ""
        label = joined(labels[nth], seeds)
        dashes = DASHES[models[:nth].count(model) % len(DASHES)]
        result.append(Look(label, options(group), look.colour, look.marker, dashes))
    return result


def joined(*texts: str) -> str:
    """The texts with commas between them, without texts that are empty."""
    return ", ".join(filter(None, texts))


def _label(group: SeedGroup) -> str:
    size = group.first.hidden_size
    return network_label(group.first.model) + (f" {size}" if size is not None else "")


def _options(groups: Sequence[SeedGroup], group: SeedGroup) -> str:
    """The options in which a group differs from similar groups, as text.

    Groups are similar if they have the same network and size. Options that are None are
    not named. Threads and devices are named, since they may be the only difference
    between two groups with the same seeds.
    """
    unnamed = MAY_DIFFER - {"threads", "device"} | {"task", "model", "hidden_size"}
    others = [g.first.config for g in groups if _label(g) == _label(group)]
    texts = [
        _option(name, value)
        for name, value in group.first.config.items()
        if name not in unnamed and value is not None
        if any(other.get(name) != value for other in others)
    ]
    return joined(*texts)


def _option(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(_option(*item) for item in value.items())
    return f"{name.replace('_', ' ')} {value}"


def _seed(group: SeedGroup) -> str:
    return f"seed {group.first.config.get('seed')}" if len(group.runs) == 1 else ""
