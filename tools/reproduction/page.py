"""The page docs/reproduction.md, from records, the paper's tables, and `texts`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from isometry.lab.paper.tables import COUNTS_NOTE, PAPER
from tools.reproduction import texts
from tools.reproduction.charts import (
    GOAL,
    PIXELS,
    STEPS_PER_EPOCH,
    Chart,
    Records,
    accuracy_after,
    experiment_of,
    label,
    long_runs,
    model,
    note_of,
    of,
    size,
)
from tools.reproduction.claims import CLAIMS, REMARKS, Claim
from tools.reproduction.criteria import UNSTABLE, solved_at

Record = Mapping[str, Any]


def page(records: Records, charts: Sequence[Chart]) -> str:
    """The whole page.

    Args:
        records: the records, by name.
        charts: the figures, which are in assets/reproduction.

    Returns:
        Markdown.
    """
    by_name = {chart.name: chart for chart in charts}
    parts = [texts.INTRODUCTION, f"Recorded on: {_machines(records)}."]
    parts += ["## The claims", _claims(CLAIMS, records)]
    parts += ["## Figure 1: copying memory"]
    for experiment in ("copying-1000", "copying-2000"):
        lag = experiment.partition("-")[2]
        parts += [f"### Lag {lag}", *_figure(by_name, experiment)]
        parts += [_copying_table(of(records, experiment))]
    parts += ["## Table 1 and figure 2: MNIST, pixel by pixel"]
    for experiment, title in PIXELS.items():
        parts += [f"### {title[0].upper()}{title[1:]}", *_figure(by_name, experiment)]
        parts += [_pixel_table(experiment, of(records, experiment))]
    speech = _speech_table(of(records, "timit-sample"))
    parts += ["## Table 2: speech", texts.SPEECH, speech]
    parts += ["## Cheapness", texts.CHEAPNESS, *_figure(by_name, "cheapness")]
    parts += ["## The paper's remarks", texts.CAYLEY]
    parts += [*_figure(by_name, "cayley-loss"), *_figure(by_name, "cayley-largest")]
    parts += [*_last_coordinates(by_name), texts.DOMAIN]
    for kind in ("domain-copying", "domain-pixels"):
        parts += [*_figure(by_name, kind), *_domain(by_name, kind)]
    parts += [texts.REMARKS, _claims(REMARKS, records), *_figure(by_name, "remarks")]
    if remarks := of(records, "copying-200"):
        parts += [_copying_table(remarks)]
    parts += ["## Beyond the paper", texts.BEYOND, *_figure(by_name, "beyond")]
    parts += [*map(_reached, long_runs(records)), _search_table(of(records, "beyond"))]
    parts += ["## Where paper, program and our runs disagree", texts.DISCREPANCIES]
    parts += ["## Every run", _runs_table(records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _last_coordinates(by_name: Mapping[str, Chart]) -> Iterator[str]:
    """The size of the coordinates at the end of the experiment with eigenvalue -1."""
    if "cayley-largest" in by_name:
        runs = by_name["cayley-largest"].series
        last = ", ".join(f"{run.label} {run.y[-1]:.3g}" for run in runs)
        yield f"The largest coordinate after {runs[0].x[-1]:,} steps: {last}."


def _domain(by_name: Mapping[str, Chart], name: str) -> Iterator[str]:
    """Which runs left the domain where the exponential is one-to-one, and how far."""
    if name not in by_name:
        return
    left, runs = [], by_name[name].series
    for run in runs:
        outside = [(x, y) for x, y in zip(run.x, run.y, strict=True) if y > math.pi]
        if outside:
            most = max(y for _, y in outside) - math.pi
            left.append(f"{run.label} from step {outside[0][0]:,} on, by {most:.2g}")
    names = ": " + "; ".join(left) if left else ""
    yield f"The largest angle passed π in {len(left)} of {len(runs)} runs{names}."


def _machines(records: Records) -> str:
    return "; ".join(sorted({r["environment"]["cpu"] for r in records.values()}))


def _figure(by_name: Mapping[str, Chart], name: str) -> Iterator[str]:
    if name in by_name:
        yield f"![{name}](assets/reproduction/{name}.svg)"
        yield f"*{by_name[name].caption}*"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "No run of this part is recorded yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _claims(claims: Sequence[Claim], records: Records) -> str:
    rows = [[claim.text, claim.where, claim.verdict(records)] for claim in claims]
    return _table(["The paper says", "where", "here"], rows)


def _copying_table(runs: Sequence[Record]) -> str:
    head = ["network", "parameters", "seed", "iterations", "solved at"]
    head += ["last validation loss / baseline", "spikes", "stable", "minutes"]
    rows = []
    for r in runs:
        summary, spikes = r["summary"], r.get("spikes", {})
        ratio = summary["final"]["validation"]["loss"] / summary["baseline"]
        count = spikes.get("count")
        rows.append(
            [
                label(r),
                f"{summary['parameters']:,}",
                f"{r['config']['seed']}",
                f"{summary['steps']:,}{_diverged(summary)}",
                _or_dash(solved_at(r["validation"], summary["baseline"])),
                f"{ratio:.2g}",
                _or_dash(count),
                "" if count is None else ("no" if count >= UNSTABLE else "yes"),
                _minutes(summary),
            ]
        )
    return _table(head, rows)


def _pixel_table(experiment: str, runs: Sequence[Record]) -> str:
    head = ["network", "parameters", "epochs", "test after 5 epochs", "after 10"]
    head += ["at best validation", "best test", "paper, 70 epochs", "minutes"]
    rows = []
    for r in runs:
        summary = r["summary"]
        row = PAPER[experiment].row(model(r), size(r))
        rows.append(
            [
                label(r),
                f"{summary['parameters']:,}",
                f"{summary['steps'] / STEPS_PER_EPOCH:.3g}{_diverged(summary)}",
                *(_four_digits(accuracy_after(r, epochs)) for epochs in (5, 10)),
                _accuracy(summary["best"]),
                _accuracy(summary["best_by_test"]),
                _or_dash(row and not note_of(r["name"]) and row.result),
                _minutes(summary),
            ]
        )
    text = _table(head, rows)
    return f"{text}\n\n{COUNTS_NOTE}" if rows else text


def _accuracy(place: Mapping[str, Any], split: str = "test") -> str:
    return _four_digits(place[split]["accuracy"] if place else math.nan)


def _four_digits(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def _search_table(runs: Sequence[Record]) -> str:
    """The runs beyond the paper, the best on validation images first."""
    head = [
        "run",
        "optimizer",
        "rate",
        "ratio",
        "decay",
        "clipping",
        "base moves every",
    ]
    head += ["epochs", "best validation", "test there", "minutes"]
    rows = []
    for r in runs:
        config, summary = r["config"], r["summary"]
        moves = config["model_options"].get("rebase_every")
        rows.append(
            [
                note_of(r["name"]),
                *(f"{config[name]}" for name in ("optimizer", "lr", "lr_ratio")),
                *(_or_dash(config[name]) for name in ("decay", "clip_norm")),
                {None: "never", 1: "every step"}.get(moves, f"every {moves} steps"),
                f"{summary['steps'] / STEPS_PER_EPOCH:.3g}{_diverged(summary)}",
                _accuracy(summary["best"], "validation"),
                _accuracy(summary["best"]),
                _minutes(summary),
            ]
        )
    # a dash, for a run without validation, comes last
    rows.sort(key=lambda row: row[8].replace("–", ""), reverse=True)
    return _table(head, rows)


def _reached(r: Record) -> str:
    """How far a long run came, in a sentence."""
    best, epochs = r["summary"]["best"], r["summary"]["steps"] / STEPS_PER_EPOCH
    accuracy = best["test"]["accuracy"]
    word = "reaches" if round(accuracy, 3) >= GOAL else "does not reach"
    return (
        f"The long run {word} the goal: test accuracy {accuracy:.4f} at its best "
        f"validation, {best['validation']['accuracy']:.4f}, after "
        f"{best['step'] / STEPS_PER_EPOCH:.0f} of {epochs:.0f} epochs."
    )


def _speech_table(runs: Sequence[Record]) -> str:
    head = ["network", "target", "parameters", "steps", "training MSE at the end"]
    head += ["test MSE, valid frames", "test MSE, padded frames", "paper", "minutes"]
    rows = []
    for r in runs:
        summary = r["summary"]
        test = summary["best"].get("test", {})
        row = PAPER["timit"].row(model(r), size(r))
        rows.append(
            [
                label(r).partition(",")[0],
                note_of(r["name"]),
                f"{summary['parameters']:,}",
                f"{summary['steps']:,}{_diverged(summary)}",
                f"{r['train']['median'][-1]:.1f}",
                f"{test['mse']:.2f}" if test else "–",
                f"{test['padded_mse']:.2f}" if test else "–",
                _or_dash(row and row.result),
                _minutes(summary),
            ]
        )
    return _table(head, rows)


def _runs_table(records: Records) -> str:
    head = ["run", "seed", "minutes", "processor", "commit", "command"]
    rows = [
        [
            name,
            f"{r['config']['seed']}",
            _minutes(r["summary"]),
            r["environment"]["cpu"],
            f"{r['environment'].get('revision')}",
            f"`{r['command']}`",
        ]
        for name, r in sorted(
            records.items(), key=lambda item: (experiment_of(item[0]), item[0])
        )
    ]
    return _table(head, rows)


def _minutes(summary: Mapping[str, Any]) -> str:
    """Minutes of processor time, or of the clock (with an asterisk) if unknown."""
    if cpu := summary.get("cpu_seconds"):
        return f"{cpu / 60:.0f}"
    return f"{summary['seconds'] / 60:.0f}\\*"


def _diverged(summary: Mapping[str, Any]) -> str:
    return ", diverged" if summary["status"] == "diverged" else ""


def _or_dash(value: object) -> str:
    return "–" if value is None or value is False else f"{value}"
