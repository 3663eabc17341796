"""The page docs/reproduction.md, from records, the paper's tables, and `texts`."""

from collections.abc import Iterator, Mapping, Sequence

from isometry.lab.paper.tables import COUNTS_NOTE
from tools.reproduction import tables, texts
from tools.reproduction.chart import Chart
from tools.reproduction.charts import GOAL, angles
from tools.reproduction.claims import CLAIMS, REMARKS, Claim, verdicts
from tools.reproduction.runs import (
    PIXELS,
    STEPS_PER_EPOCH,
    Record,
    Records,
    epochs,
    last_ratio,
    long_runs,
    of,
)
from tools.reproduction.verdicts import Verdict

Judged = Sequence[tuple[Claim, Verdict]]


def page(records: Records, experiments: Records, charts: Sequence[Chart]) -> str:
    """The whole page.

    Args:
        records: the records of runs, by name.
        experiments: the records of small experiments, by name.
        charts: the figures, which are in assets/reproduction.

    Returns:
        Markdown.
    """
    by_name = {chart.name: chart for chart in charts}
    judged = verdicts(CLAIMS, records, experiments)
    parts = [texts.INTRODUCTION, f"Recorded on: {_machines(records)}."]
    parts += ["## What does not hold here, or stays open", _refuted(judged)]
    parts += ["## The claims", texts.RULES, tables.claims(judged)]
    parts += ["## Figure 1: copying memory"]
    for experiment in ("copying-1000", "copying-2000"):
        lag = experiment.partition("-")[2]
        parts += [f"### Lag {lag}", *_figure(by_name, experiment)]
        parts += [*_figure(by_name, f"{experiment}-start")]
        parts += [tables.copying(of(records, experiment))]
    parts += ["## Table 1 and figure 2: MNIST, pixel by pixel", texts.PIXELS]
    parts += [COUNTS_NOTE]
    for experiment, title in PIXELS.items():
        parts += [f"### {title[0].upper()}{title[1:]}"]
        for ending in ("", "-more", "-long"):
            parts += [*_figure(by_name, f"{experiment}{ending}")]
        parts += [tables.pixels(experiment, of(records, experiment))]
    speech = tables.speech(of(records, "timit-sample"))
    parts += ["## Table 2: speech", texts.SPEECH, speech]
    parts += ["## Cheapness", texts.CHEAPNESS, *_figure(by_name, "cheapness")]
    parts += ["## The paper's remarks", texts.CAYLEY]
    parts += [*_figure(by_name, "cayley-loss"), *_figure(by_name, "cayley-largest")]
    parts += [*_last_coordinates(by_name), texts.RETRACTIONS]
    parts += [*_figure(by_name, "retractions"), *_costs(experiments), texts.DOMAIN]
    parts += [*_figure(by_name, "domain"), tables.angles(angles(records))]
    parts += [texts.REMARKS, tables.remarks(verdicts(REMARKS, records, experiments))]
    parts += [*_figure(by_name, "remarks-exprnn"), *_figure(by_name, "remarks-rgd")]
    if remarks := of(records, "copying-200"):
        parts += [tables.copying(remarks)]
    parts += ["## Beyond the paper", texts.BEYOND, *_figure(by_name, "beyond")]
    parts += [*map(_reached, long_runs(records)), tables.search(of(records, "beyond"))]
    discrepancies = texts.DISCREPANCIES.format(**_evidence(records))
    parts += ["## Where paper, program and our runs disagree", discrepancies]
    parts += ["## Every run", texts.RUNS, tables.runs(records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _refuted(judged: Judged) -> str:
    """The claims that our runs do not confirm, with the evidence."""
    order = ("not confirmed", "open")
    rest = [pair for pair in judged if pair[1].word in order]
    rest.sort(key=lambda pair: order.index(pair[1].word))
    lines = [
        f"- *{claim.text[0].upper()}{claim.text[1:]}* ({claim.where}): "
        f"**{verdict.word}**. {verdict.evidence[0].upper()}{verdict.evidence[1:]}."
        for claim, verdict in rest
    ]
    return "\n".join(lines) or "Every claim that was tested is confirmed."


def _last_coordinates(by_name: Mapping[str, Chart]) -> Iterator[str]:
    """The size of the coordinates at the end of the experiment with eigenvalue -1."""
    if "cayley-largest" in by_name:
        lines = by_name["cayley-largest"].series
        last = ", ".join(f"{line.label} {line.y[-1]:.3g}" for line in lines)
        yield f"The largest coordinate after {lines[0].x[-1]:,} steps: {last}."


def _costs(experiments: Records) -> Iterator[str]:
    """The time of each retraction, as a multiple of Cayley's."""
    if "retractions" in experiments:
        record = experiments["retractions"]
        times = [f"{name} {time:.1f}" for name, time in record["time"].items()]
        yield (
            f"Time of a retraction as a multiple of Cayley's (n = {record['n']}, "
            f"float64, {record['machine']['processor']}): {', '.join(times)}."
        )


def _evidence(records: Records) -> dict[str, str]:
    """Numbers from records for the table of discrepancies."""
    rates = {"tenth": "reference", "equal": "ratio-1", "ten": "ratio-10"}
    runs = {k: records.get(f"copying-200-exprnn-190-{v}") for k, v in rates.items()}
    losses = {k: f"{last_ratio(r):.2g}" if r else "–" for k, r in runs.items()}
    lstm = records.get("pmnist-lstm-128")
    best = f"{lstm['summary']['best_by_test']['test']['accuracy']:.3f}" if lstm else "–"
    eurnn = records.get("timit-sample-eurnn-158-next")
    count = f"{eurnn['summary']['parameters']:,}" if eurnn else "–"
    return {**losses, "lstm": best, "eurnn": count}


def _machines(records: Records) -> str:
    return "; ".join(sorted({r["environment"]["cpu"] for r in records.values()}))


def _figure(by_name: Mapping[str, Chart], name: str) -> Iterator[str]:
    if name in by_name:
        caption = by_name[name].caption
        yield f"![{caption}](assets/reproduction/{name}.svg)"
        yield f"*{caption}*"


def _reached(r: Record) -> str:
    """How far a long run came, in a sentence."""
    best = r["summary"]["best"]
    accuracy = best["test"]["accuracy"]
    highest = r["summary"]["best_by_test"]["test"]["accuracy"]
    word = "reaches" if round(accuracy, 3) >= GOAL else "does not reach"
    return (
        f"The long run {word} the goal: at the epoch with the best validation accuracy "
        f"({best['step'] / STEPS_PER_EPOCH:.0f} of {epochs(r):.0f}, "
        f"{best['validation']['accuracy']:.4f}) its test accuracy is {accuracy:.4f}. "
        f"Chosen as in the papers, by looking at the test set, it is {highest:.4f}. "
        f"This is one run with one seed."
    )
