"""The tables of docs/reproduction.md, as Markdown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isometry.lab._report.looks import NETWORK_LOOKS
from isometry.lab.paper.tables import PAPER
from tools.reproduction.claims import Claim
from tools.reproduction.criteria import UNSTABLE, solved_at
from tools.reproduction.runs import (
    Record,
    Records,
    accuracies_after,
    epochs,
    experiment_of,
    first_below,
    groups,
    label,
    last_ratio,
    mean,
    model,
    note_of,
    seed,
    size,
)
from tools.reproduction.verdicts import Verdict

NONE_YET = "No run of this part is recorded yet."

# the order of the experiments on the page
EXPERIMENTS = (
    "copying-1000",
    "copying-2000",
    "pmnist",
    "mnist",
    "timit-sample",
    "copying-200",
    "beyond",
)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, or a note that it would be empty."""
    if not rows:
        return NONE_YET
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def claims(judged: Iterable[tuple[Claim, Verdict]]) -> str:
    """The verdict on each claim, with its evidence."""
    rows = [
        [claim.text, claim.where, f"**{verdict.word}**", verdict.evidence]
        for claim, verdict in judged
    ]
    return table(["the paper says", "where", "here", "evidence"], rows)


def remarks(judged: Iterable[tuple[Claim, Verdict]]) -> str:
    """The losses behind remarks that we do not judge."""
    rows = [
        [claim.text, claim.where, verdict.evidence or verdict.word]
        for claim, verdict in judged
    ]
    return table(["the paper says", "where", "last validation loss / baseline"], rows)


def copying(runs: Sequence[Record]) -> str:
    """Runs on the copying task: when they solved it, and how smoothly."""
    head = ["network", "parameters", "seed", "iterations", "below 10 % at"]
    head += ["solved at", "last validation loss / baseline"]
    head += ["spikes", "worst spike", "stable"]
    rows = []
    for r in runs:
        summary, jumps = r["summary"], r.get("spikes", {})
        count, worst = jumps.get("count"), jumps.get("worst")
        rows.append(
            [
                label(r),
                f"{summary['parameters']:,}",
                f"{seed(r)}",
                f"{summary['steps']:,}{_diverged(summary)}",
                or_dash(first_below(r, 0.1)),
                or_dash(solved_at(r["validation"], summary["baseline"])),
                f"{last_ratio(r):.2g}",
                or_dash(count),
                f"× {worst:,.0f}" if count else "–",
                _stable(r),
            ]
        )
    return table(head, rows)


def _stable(r: Record) -> str:
    # nothing can be said about the stability of a network that learned nothing
    if "spikes" not in r or last_ratio(r) > 0.9:
        return "–"
    return "no" if r["spikes"]["count"] >= UNSTABLE else "yes"


def pixels(experiment: str, runs: Sequence[Record]) -> str:
    """Runs on MNIST, a row for all seeds of a network."""
    head = ["network", "parameters", "seeds", "epochs", "test after 5 epochs"]
    head += ["after 10", "at best validation", "best test", "paper, 70 epochs"]
    rows = []
    for group in groups(runs):
        r = group[0]
        row = PAPER[experiment].row(model(r), size(r))
        rows.append(
            [
                label(r),
                f"{r['summary']['parameters']:,}",
                f"{len(group)}",
                ", ".join(_length(run) for run in group),
                *(_accuracies(accuracies_after(group, e)) for e in (5, 10)),
                _accuracy(r["summary"]["best"]),
                _accuracy(r["summary"]["best_by_test"]),
                or_dash(row and not note_of(r["name"]) and row.result),
            ]
        )
    return table(head, rows)


def _length(r: Record) -> str:
    """How long a run is: epochs, or batches if there is less than one epoch."""
    length = epochs(r)
    text = f"{length:.0f}" if length >= 1 else f"{r['summary']['steps']} batches"
    return f"{text}{_diverged(r['summary'])}"


def _accuracies(values: Sequence[float]) -> str:
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def _accuracy(place: Mapping[str, Any], split: str = "test") -> str:
    value = place[split]["accuracy"] if place else math.nan
    return "–" if math.isnan(value) else f"{value:.4f}"


def search(runs: Sequence[Record]) -> str:
    """The runs beyond the paper, the best on validation images first."""
    head = ["run", "optimizer", "rate", "ratio", "decay", "clipping"]
    head += ["base moves every", "epochs", "best validation", "test there"]
    head += ["best test"]
    rows = []
    for r in runs:
        config, summary = r["config"], r["summary"]
        moves = config["model_options"].get("rebase_every")
        rows.append(
            [
                note_of(r["name"]),
                *(f"{config[name]}" for name in ("optimizer", "lr", "lr_ratio")),
                *(or_dash(config[name]) for name in ("decay", "clip_norm")),
                {None: "never", 1: "step"}.get(moves, f"{moves} steps"),
                _length(r),
                _accuracy(summary["best"], "validation"),
                _accuracy(summary["best"]),
                _accuracy(summary["best_by_test"]),
            ]
        )
    # a dash, for a run without validation, comes last
    rows.sort(key=lambda row: row[8].replace("–", ""), reverse=True)
    return table(head, rows)


def speech(runs: Sequence[Record]) -> str:
    """Runs on speech, with both targets and both definitions of the error."""
    head = ["network", "target", "parameters", "steps", "training MSE at the end"]
    head += ["test MSE, valid frames", "test MSE, padded frames", "paper"]
    rows = []
    for r in runs:
        summary = r["summary"]
        test = summary["best"].get("test", {})
        row = PAPER["timit"].row(model(r), size(r))
        rows.append(
            [
                label(r),
                f"{r['config']['task_options']['target']} frame",
                f"{summary['parameters']:,}",
                f"{summary['steps']:,}{_diverged(summary)}",
                f"{r['train']['median'][-1]:.1f}",
                f"{test['mse']:.2f}" if test else "–",
                f"{test['padded_mse']:.2f}" if test else "–",
                or_dash(row and row.result),
            ]
        )
    return table(head, rows)


def angles(runs: Sequence[Record]) -> str:
    """The largest angles of ExpRNN at the start and during training."""
    head = ["experiment", "network", "seed", "largest angle at the first evaluation"]
    head += ["during training", "at the end"]
    rows = [
        [
            experiment_of(r["name"]),
            label(r),
            f"{seed(r)}",
            *(f"{angle:.3f}" for angle in (largest[0], max(largest), largest[-1])),
        ]
        for r in runs
        for largest in [r["validation"]["largest_angle"]]
    ]
    return table(head, rows)


def runs(records: Records) -> str:
    """Every run: how it was trained, where, how long, and with which command."""
    head = ["run", "seed", "minutes of the processor", "minutes of the clock"]
    head += ["processor", "commit", "trained with", "command"]
    networks = list(NETWORK_LOOKS)

    def place(r: Record) -> tuple[Any, ...]:
        at = EXPERIMENTS.index(experiment_of(r["name"]))
        return at, networks.index(model(r)), size(r), r["name"]

    rows = []
    for r in sorted(records.values(), key=place):
        cpu = r["summary"].get("cpu_seconds")
        rows.append(
            [
                r["name"],
                f"{seed(r)}",
                or_dash(cpu and f"{cpu / 60:.0f}"),
                f"{r['summary']['seconds'] / 60:.0f}",
                r["environment"]["cpu"],
                f"{r['environment'].get('revision')}",
                _training(r["config"]),
                f"`{r['command']}`",
            ]
        )
    return table(head, rows)


def _training(config: Mapping[str, Any]) -> str:
    """Map, base, initial values, optimizers and rates of a run, with all defaults.

    They are read from the record, not from the command, so a new default cannot change
    what is said about an old run.
    """
    recipe = config["recipe"]
    options = recipe["options"]
    parts = []
    # older runs call the map `orthogonal_map`
    used = options.get("retraction") or options.get("orthogonal_map")
    if used:
        every = options.get("rebase_every")
        base = "fixed base" if every is None else f"base moves every {every} steps"
        parts += [f"map {used}", base, f"init {options['init']}"]
    for row in recipe["optimizers"]:
        what = ", ".join(row["parameters"]) or "all else"
        rule = row["name"].removeprefix("Riemannian")
        given = row["options"]
        retraction = given.get("retraction")
        moved = f" with retraction {retraction}" if retraction else ""
        parts.append(f"{what}: {rule} {given['lr']:g}{moved}")
    parts += [f"decay {config['decay']}"] if config.get("decay") else []
    clip = config.get("clip_norm") or recipe.get("clip_norm")
    parts += [f"gradient clipped at {clip:g}"] if clip else []
    return "; ".join(parts)


def _diverged(summary: Mapping[str, Any]) -> str:
    return ", diverged" if summary["status"] == "diverged" else ""


def or_dash(value: object) -> str:
    """The value as text, or a dash for None and False."""
    return "–" if value is None or value is False else f"{value}"
