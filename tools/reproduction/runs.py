"""The recorded runs: their names and groups, and the results that are read from them.

The name of a run consists of its experiment, its network, its size and, for some, a
note, as in "pmnist-exprnn-170-rebase100". Runs whose names differ only in a seed, as in
"pmnist-exprnn-170-seed5545", form a group.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isometry.lab._report.looks import NETWORK_LOOKS
from isometry.lab.paper.tables import PAPER

Record = Mapping[str, Any]
Records = Mapping[str, Record]

# number of batches of 128 in 55,000 images
STEPS_PER_EPOCH = 430

# titles of the experiments with pixels, by name
PIXELS = {"pmnist": "permuted MNIST", "mnist": "pixel-by-pixel MNIST"}

# what the page calls the notes in the names of runs
_NOTES = {
    "rebase100": "base moves every 100 steps",
    "reference": "as in the paper",
    "init-cayley": "Cayley's initialization",
    "ratio-1": "equal rates",
    "ratio-10": "ten times the rate for the weight",
    "trained-h0": "trained initial state",
    "unitary": "complex",
    "cayley": "Cayley",
    "exp": "exponential",
    "pade-3": "Padé",
    "next": "",
    "previous": "",
}

_SEED = re.compile(r"seed\d+")


def _network_in(name: str) -> tuple[list[str], int]:
    """The words of the name of a run, and the index of its network among them."""
    words = name.split("-")
    return words, next(i for i, word in enumerate(words) if word in NETWORK_LOOKS)


def note_of(name: str) -> str:
    """The part of a run's name that follows the network and the size, without a seed.

    It is empty for most runs.
    """
    words, at = _network_in(name)
    return "-".join(word for word in words[at + 2 :] if not _SEED.fullmatch(word))


def experiment_of(name: str) -> str:
    """The experiment of a run: the part of its name before the network.

    The runs that try to do better than the paper belong to the experiment "beyond".
    """
    words, at = _network_in(name)
    if note_of(name).startswith(("search-", "long-")):
        return "beyond"
    return "-".join(words[:at])


def of(records: Records, experiment: str) -> list[Record]:
    """The records of an experiment, in the order of their networks."""
    order = list(NETWORK_LOOKS)
    runs = [r for name, r in records.items() if experiment_of(name) == experiment]
    return sorted(runs, key=lambda r: (order.index(model(r)), size(r), r["name"]))


def groups(runs: Sequence[Record]) -> list[list[Record]]:
    """The runs in groups that differ only in the seed, the longest run first."""
    by_key: dict[tuple[Any, ...], list[Record]] = {}
    for r in runs:
        key = (experiment_of(r["name"]), model(r), size(r), note_of(r["name"]))
        by_key.setdefault(key, []).append(r)
    return [
        sorted(group, key=lambda r: -r["summary"]["steps"]) for group in by_key.values()
    ]


def group(records: Records, experiment: str, network: str) -> list[Record]:
    """The runs of a network, such as "exprnn-170", without a note; perhaps none."""
    words = network.split("-")
    for runs in groups(of(records, experiment)):
        r = runs[0]
        if [model(r), str(size(r))] == words and not note_of(r["name"]):
            return runs
    return []


def model(record: Record) -> str:
    """Name of the network."""
    return record["config"]["model"]


def size(record: Record) -> int:
    """Number of features of the state."""
    return record["config"]["hidden_size"]


def seed(record: Record) -> int:
    """Seed of the run."""
    return record["config"]["seed"]


def label(record: Record) -> str:
    """Network, size and note of a run, for tables and legends."""
    note = note_of(record["name"])
    note = _NOTES.get(note, note)
    return f"{NETWORK_LOOKS[model(record)].label} {size(record)}" + (
        f", {note}" if note else ""
    )


def epochs(record: Record) -> float:
    """How many epochs a run on MNIST has."""
    return record["summary"]["steps"] / STEPS_PER_EPOCH


def accuracy_after(record: Record, epoch: int) -> float:
    """Test accuracy after a number of epochs; NaN if it was not measured."""
    test = record["test"]
    measured = dict(zip(test["step"], test["accuracy"], strict=True))
    return measured.get(epoch * STEPS_PER_EPOCH, math.nan)


def accuracies_after(runs: Sequence[Record], epoch: int) -> list[float]:
    """Test accuracies after a number of epochs, of the runs that were measured then."""
    values = [accuracy_after(r, epoch) for r in runs]
    return [value for value in values if not math.isnan(value)]


def shared_epochs(runs: Sequence[Record]) -> Iterator[int]:
    """The epochs after which every run was measured."""
    for epoch in range(1, int(min(map(epochs, runs))) + 1):
        if len(accuracies_after(runs, epoch)) == len(runs):
            yield epoch


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def printed(experiment: str) -> float:
    """The accuracy of ExpRNN 170 in the paper's Table 1."""
    row = PAPER[experiment].row("exprnn", 170)
    assert row is not None
    assert row.result is not None
    return float(row.result)


def first_below(record: Record, fraction: float) -> int | None:
    """The step of the first evaluation with a loss below a fraction of the baseline.

    None if there is no such evaluation.
    """
    validation, limit = record["validation"], fraction * record["summary"]["baseline"]
    pairs = zip(validation["step"], validation["loss"], strict=True)
    return next((step for step, loss in pairs if loss < limit), None)


def last_ratio(record: Record) -> float:
    """The last validation loss as a fraction of the baseline."""
    summary = record["summary"]
    return summary["final"]["validation"]["loss"] / summary["baseline"]


def long_runs(records: Records) -> list[Record]:
    """The long runs beyond the paper."""
    return [r for r in of(records, "beyond") if note_of(r["name"]).startswith("long-")]
