"""How our runs judge a claim. rules.md states the rules for readers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tools.reproduction.charts import COMPARED, angles
from tools.reproduction.criteria import UNSTABLE, solved_at
from tools.reproduction.runs import (
    Record,
    Records,
    accuracies_after,
    epochs,
    first_below,
    group,
    groups,
    label,
    last_ratio,
    mean,
    of,
    printed,
    seed,
    shared_epochs,
)

Word = Literal["confirmed", "not confirmed", "open", "not run yet", ""]


@dataclass(frozen=True)
class Verdict:
    """What our runs say about a claim.

    Attributes:
        word: the verdict; empty for a remark that we do not judge.
        evidence: the numbers behind it.
    """

    word: Word
    evidence: str = ""


NOT_RUN = Verdict("not run yet")


# A function from the runs and the small experiments to our verdict. The functions below
# are judges, or return one.
Judge = Callable[[Records, Records], Verdict]


def _judged(evidence: str, *, confirmed: bool) -> Verdict:
    return Verdict("confirmed" if confirmed else "not confirmed", evidence)


def _spikes(r: Record) -> str:
    count, worst = r["spikes"]["count"], r["spikes"]["worst"]
    if not count:
        return "no spike"
    plural = "s" if count > 1 else ""
    return f"{count} spike{plural}, the worst to {worst:,.0f} times the median"


def converges(experiment: str) -> Judge:
    """Judges whether ExpRNN solves a task with every seed and is never unstable."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        runs = sorted(group(records, experiment, "exprnn-190"), key=seed)
        if not runs:
            return NOT_RUN
        steps = [_solved_at(r) for r in runs]
        stable = all(r["spikes"]["count"] < UNSTABLE for r in runs)
        shown = "; ".join(
            f"seed {seed(r)} {_when(step)}, {_spikes(r)}"
            for r, step in zip(runs, steps, strict=True)
        )
        return _judged(shown, confirmed=stable and None not in steps)

    return verdict


def _solved_at(r: Record) -> float | None:
    return solved_at(r["validation"], r["summary"]["baseline"])


def _when(step: float | None) -> str:
    return "not solved" if step is None else f"solved at step {step:,}"


def unstable(experiment: str, network: str) -> Judge:
    """Judges whether all runs are unstable: `UNSTABLE` spikes or more."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        runs = group(records, experiment, network)
        if not runs:
            return NOT_RUN
        shown = "; ".join(f"{_spikes(r)}; {_when(_solved_at(r))}" for r in runs)
        return _judged(
            shown, confirmed=all(r["spikes"]["count"] >= UNSTABLE for r in runs)
        )

    return verdict


def stays(experiment: str) -> Judge:
    """Judges whether the LSTM stays above 90 % of the baseline, in every run."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        runs = group(records, experiment, "lstm-68")
        if not runs:
            return NOT_RUN
        ratios = [last_ratio(r) for r in runs]
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        return _judged(
            f"last validation loss {shown} of the baseline", confirmed=min(ratios) > 0.9
        )

    return verdict


# the networks that have solved the copying task with a lag of 1000, apart from ExpRNN
SOLVERS = ("rgd-128", "scurnn-130")


def alone(records: Records, _experiments: Records) -> Verdict:
    """Whether ExpRNN, and no other network, solves the task at lag 2000."""
    ours = group(records, "copying-2000", "exprnn-190")
    others = [r for r in of(records, "copying-2000") if r not in ours]
    if not ours or not others:
        return NOT_RUN
    shown = ", ".join(
        f"{label(r)} {_when(step)}"
        if (step := _solved_at(r)) is not None
        else f"{label(r)} at {last_ratio(r):.2f} of the baseline after "
        f"{r['summary']['steps']:,} steps"
        for r in (*ours, *others)
    )
    steps = [_solved_at(r) for r in ours]
    if None in steps or any(_solved_at(r) is not None for r in others):
        return Verdict("not confirmed", shown)
    # a network that was stopped before ExpRNN had solved the task might yet solve it
    longest = max(r["summary"]["steps"] for r in ours)
    missing = [name for name in SOLVERS if not group(records, "copying-2000", name)]
    if missing or any(r["summary"]["steps"] < longest for r in others):
        untried = "; RGD and scuRNN, which solve lag 1000, were not run" * bool(missing)
        return Verdict("open", shown + untried)
    return Verdict("confirmed", shown)


def soonest(records: Records, _experiments: Records) -> Verdict:
    """Whether ExpRNN solves lag 1000 before any other network."""
    ours = group(records, "copying-1000", "exprnn-190")
    names = ("scornn-190", *SOLVERS)
    others = [r for name in names for r in group(records, "copying-1000", name)]
    if not ours or not others:
        return NOT_RUN
    parts = []
    for runs in groups([*ours, *others]):
        solved, tenth = (
            " / ".join(
                f"{step:,}" if step else "–" for step in sorted(steps, key=_late)
            )
            for steps in (
                [_solved_at(r) for r in runs],
                [first_below(r, 0.1) for r in runs],
            )
        )
        parts.append(f"{label(runs[0])} {solved} (a tenth of the baseline: {tenth})")
    shown = f"steps until solved: {', '.join(parts)}"
    slowest = max(_late(_solved_at(r)) for r in ours)
    rivals = min(_late(_solved_at(r)) for r in others)
    return _judged(shown, confirmed=slowest < rivals)


def _late(step: float | None) -> float:
    """A step as a number; infinity for None."""
    return float("inf") if step is None else step


def faster(experiment: str, rival: str) -> Judge:
    """Judges whether ExpRNN 170 leads a rival after equally many epochs."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        ours = group(records, experiment, "exprnn-170")
        theirs = group(records, experiment, rival)
        compared = [e for e in _compared(ours, theirs) if e <= COMPARED]
        if not compared:
            return NOT_RUN
        means = [
            tuple(mean(accuracies_after(g, e)) for g in (ours, theirs))
            for e in compared
        ]
        ahead = sum(a > b for a, b in means)
        last = compared[-1]
        shown = (
            f"ahead after {ahead} of {len(compared)} epochs; accuracy after {last}: "
            f"{_with_range(ours, last)}, {_with_range(theirs, last)}"
        )
        if ahead == len(compared):
            return Verdict("confirmed", shown)
        return Verdict("not confirmed" if 2 * ahead <= len(compared) else "open", shown)

    return verdict


def _compared(ours: Sequence[Record], theirs: Sequence[Record]) -> list[int]:
    return list(shared_epochs([*ours, *theirs])) if ours and theirs else []


def _with_range(runs: Sequence[Record], epoch: int) -> str:
    """Mean and range of the accuracies of several seeds, or the accuracy of one."""
    values = accuracies_after(runs, epoch)
    if len(values) == 1:
        return f"{label(runs[0])} {values[0]:.3f} (one seed)"
    return (
        f"{label(runs[0])} {mean(values):.3f} ({min(values):.3f} to {max(values):.3f}, "
        f"{len(values)} seeds)"
    )


def gated(network: str) -> Judge:
    """Judges whether a gated cell is ahead of ExpRNN after 5 epochs."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        ours = group(records, "pmnist", "exprnn-170")
        theirs = group(records, "pmnist", network)
        if 5 not in _compared(ours, theirs):
            return NOT_RUN
        a, b = (mean(accuracies_after(g, 5)) for g in (theirs, ours))
        shown = ", ".join(_with_range(g, 5) for g in (theirs, ours))
        return _judged(f"after 5 epochs: {shown}", confirmed=a > b)

    return verdict


def accuracy(experiment: str) -> Judge:
    """Judges whether ExpRNN 170 reaches the accuracy in the paper's table."""

    def verdict(records: Records, _experiments: Records) -> Verdict:
        runs = group(records, experiment, "exprnn-170")
        if not runs:
            return NOT_RUN
        r = max(runs, key=epochs)
        best = r["summary"]["best_by_test"]["test"]["accuracy"]
        # standard deviation of the accuracy on 10,000 test images
        deviation = (best * (1 - best) / 10_000) ** 0.5
        shown = f"{best:.4f} ± {deviation:.4f}, the best of {epochs(r):.0f} epochs"
        short = printed(experiment) - best
        if round(best, 3) >= printed(experiment):
            return Verdict("confirmed", shown)
        return Verdict(
            "not confirmed" if epochs(r) >= 70 else "open",
            f"{shown}, short by {short:.4f}; one seed, 55,000 training images instead "
            f"of 60,000",
        )

    return verdict


def speech(records: Records, _experiments: Records) -> Verdict:
    """The test errors on the free sample, which is too small to judge the claim."""
    runs = [r for r in of(records, "timit-sample") if r["name"].endswith("-next")]
    if len(runs) < 2:
        return NOT_RUN
    errors = {label(r): r["summary"]["best"]["test"]["mse"] for r in runs}
    ranked = sorted(errors.items(), key=lambda item: item[1])
    shown = ", ".join(f"{name} {error:.1f}" for name, error in ranked)
    return Verdict("open", f"the free sample has two speakers to test on: {shown}")


# The paper says "negligible" and "no noticeable penalty". We put the limit at five
# percent of the step.
NEGLIGIBLE = 1.05


def cheap(times: int) -> Judge:
    """Judges whether the constraint adds little to a step of ExpRNN, n = 512."""

    def verdict(_records: Records, experiments: Records) -> Verdict:
        record = experiments.get("cheapness", {"ratio": {}})
        for name, quartiles in record["ratio"].items():
            if f"of {times} time steps" in name:
                low, middle, high = quartiles[record["n"].index(512)]
                shown = (
                    f"{_percent(middle)} more time per step at n = 512 (quartiles "
                    f"{_percent(low)} and {_percent(high)})"
                )
                return _judged(shown, confirmed=middle <= NEGLIGIBLE)
        return NOT_RUN

    return verdict


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.1f} %".replace("-", "−")


def stays_inside(records: Records, _experiments: Records) -> Verdict:
    """Whether no run with a fixed base has angles above pi."""
    runs = angles(records)
    if not runs:
        return NOT_RUN
    largest = {r["name"]: max(r["validation"]["largest_angle"]) for r in runs}
    outside = [name for name, angle in largest.items() if angle > 3.14160]
    shown = f"{len(outside)} of {len(runs)} runs left it; the largest angle of all is "
    return _judged(f"{shown}{max(largest.values()):.3f}", confirmed=not outside)


def precise(_records: Records, experiments: Records) -> Verdict:
    """Whether Padé is more precise than Cayley, and what it costs."""
    record = experiments.get("retractions")
    if record is None:
        return NOT_RUN
    at = record["angle"].index(0.1)
    cayley, pade = (
        record["error"][name][at] for name in ("Cayley", "Padé of degree 3")
    )
    time = record["time"]["Padé of degree 3"]
    shown = (
        f"at angles up to 0.1 the distance from exp A is {_power(pade)} instead of "
        f"{_power(cayley)}; a retraction takes {time:.1f} times as long as Cayley's"
    )
    return _judged(shown, confirmed=pade < cayley / 10)


def _power(value: float) -> str:
    digits, _, exponent = f"{value:.0e}".partition("e")
    return f"{digits} · 10<sup>{int(exponent)}</sup>".replace("-", "−")


def losses(**names: str) -> Judge:
    """A function that shows the last losses of variants, over the baseline.

    Args:
        **names: the names of the runs, keyed by what the page calls them, with
            underscores for spaces.
    """

    def verdict(records: Records, _experiments: Records) -> Verdict:
        runs = {k: records.get(f"copying-200-{name}") for k, name in names.items()}
        shown = ", ".join(f"{k} {last_ratio(r):.2g}" for k, r in runs.items() if r)
        return Verdict("", shown.replace("_", " ")) if shown else NOT_RUN

    return verdict
