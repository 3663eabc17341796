"""The claims of the paper, and how our runs judge them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.reproduction.charts import (
    PIXELS,
    STEPS_PER_EPOCH,
    Records,
    accuracy_after,
    label,
    of,
    printed,
)
from tools.reproduction.criteria import UNSTABLE

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how our runs judge it.

    Attributes:
        text: the claim in our words.
        where: its place in the paper.
        verdict: function from the records to our verdict.
    """

    text: str
    where: str
    verdict: Callable[[Records], str]


def _converges(experiment: str) -> Callable[[Records], str]:
    """Whether ExpRNN solves the task with every seed, and is never unstable."""

    def verdict(records: Records) -> str:
        start = f"{experiment}-exprnn-190"
        runs = [r for name, r in records.items() if name.startswith(start)]
        if not runs:
            return NOT_RUN
        solved = sum(r["summary"]["status"] == "solved" for r in runs)
        stable = sum(r["spikes"]["count"] < UNSTABLE for r in runs)
        word = _word(confirmed=solved == stable == len(runs))
        counts = ", ".join(str(r["spikes"]["count"]) for r in runs)
        return (
            f"{word}: {solved} of {len(runs)} runs solved, {stable} stable "
            f"(spikes: {counts})"
        )

    return verdict


def _unstable(name: str) -> Callable[[Records], str]:
    """Whether a run is unstable, that is, has `UNSTABLE` spikes or more."""

    def verdict(records: Records) -> str:
        r = records.get(name)
        if r is None:
            return NOT_RUN
        count, worst = r["spikes"]["count"], r["spikes"]["worst"]
        word = _word(confirmed=count >= UNSTABLE)
        return f"{word}: {count} spikes, the worst to {worst:.3g} times the median"

    return verdict


def _stays(experiment: str) -> Callable[[Records], str]:
    """Whether the last loss of the LSTM is above 90 % of the baseline."""

    def verdict(records: Records) -> str:
        r = records.get(f"{experiment}-lstm-68")
        if r is None:
            return NOT_RUN
        ratio = _ratio(r)
        word = _word(confirmed=ratio > 0.9)
        return f"{word}: {ratio:.2f} of the baseline at the end"

    return verdict


def _alone(records: Records) -> str:
    """Whether ExpRNN, and no other network, solves the task at lag 2000."""
    runs = of(records, "copying-2000")
    ours = [r for r in runs if label(r).startswith("ExpRNN")]
    others = [r for r in runs if r not in ours]
    if not ours or not others:
        return NOT_RUN
    is_alone = all(map(_is_solved, ours)) and not any(map(_is_solved, others))
    word = _word(confirmed=is_alone)
    # a network that was stopped before ExpRNN had solved the task might yet solve it
    longest = max(r["summary"]["solved_at"] or 0 for r in ours)
    if is_alone and any(r["summary"]["steps"] < longest for r in others):
        word = "open"
    return f"{word}: {', '.join(map(_outcome, (*ours, *others)))}"


def _is_solved(r: Mapping[str, Any]) -> bool:
    return r["summary"]["status"] == "solved"


def _outcome(r: Mapping[str, Any]) -> str:
    if _is_solved(r):
        return f"{label(r)} solved after {r['summary']['solved_at']} steps"
    return (
        f"{label(r)} at {_ratio(r):.2f} of the baseline after {r['summary']['steps']}"
    )


# epochs after which networks are compared; scoRNN was trained for only 10
EPOCHS = (1, 5, 10)


def _faster(experiment: str) -> Callable[[Records], str]:
    """Whether ExpRNN 170 leads other orthogonal networks after equally many epochs."""

    def verdict(records: Records) -> str:
        ours = records.get(f"{experiment}-exprnn-170")
        names = (f"{experiment}-scornn-170", f"{experiment}-rgd-116")
        others = [records[name] for name in names if name in records]
        if ours is None or not others:
            return NOT_RUN
        return _compared(ours, others, EPOCHS)

    return verdict


def _gated(records: Records) -> str:
    """Whether ExpLSTM and ExpGRU are ahead of ExpRNN after 5 epochs."""
    ours = records.get("pmnist-exprnn-170")
    gated = [r for r in of(records, "pmnist") if label(r).startswith(("ExpL", "ExpG"))]
    if ours is None or not gated:
        return NOT_RUN
    shown = [f"{label(r)} {accuracy_after(r, 5):.3f}" for r in (ours, *gated)]
    ahead = [accuracy_after(r, 5) > accuracy_after(ours, 5) for r in gated]
    return f"{_word(confirmed=all(ahead))} after 5 epochs: {', '.join(shown)}"


def _compared(
    ours: Mapping[str, Any], others: Sequence[Mapping[str, Any]], epochs: Sequence[int]
) -> str:
    """Our accuracy beside the others', after each of several epochs."""
    ahead, shown = True, []
    for epoch in epochs:
        values = [accuracy_after(r, epoch) for r in (ours, *others)]
        if any(map(math.isnan, values)):
            continue
        ahead &= values[0] == max(values)
        shown.append(f"{' / '.join(f'{v:.3f}' for v in values)} after {epoch}")
    if not shown:
        return NOT_RUN
    names = " / ".join(label(r) for r in (ours, *others))
    return f"{_word(confirmed=ahead)}: {names} have {', '.join(shown)} epochs"


def _accuracy(experiment: str) -> Callable[[Records], str]:
    """Whether ExpRNN 170 reaches the test accuracy in the paper's table."""

    def verdict(records: Records) -> str:
        r = records.get(f"{experiment}-exprnn-170")
        if r is None:
            return NOT_RUN
        best = r["summary"]["best_by_test"]["test"]["accuracy"]
        epochs = r["summary"]["steps"] / STEPS_PER_EPOCH
        reached = round(best, 3) >= printed(experiment)
        word = _word(confirmed=reached) if reached or epochs >= 70 else "open"
        return f"{word}: {best:.4f}, the best of {epochs:.0f} epochs"

    return verdict


def _speech(records: Records) -> str:
    """Whether ExpRNN predicts the next frame of the sample with the least error."""
    runs = [r for r in of(records, "timit-sample") if r["name"].endswith("-next")]
    if len(runs) < 2:
        return NOT_RUN
    errors = {
        label(r).partition(",")[0]: r["summary"]["best"]["test"]["mse"] for r in runs
    }
    best = min(errors, key=errors.__getitem__)
    shown = ", ".join(f"{name} {error:.1f}" for name, error in errors.items())
    word = _word(confirmed=best.startswith("ExpRNN"))
    return f"{word} on the free sample: {shown}"


def _losses(**names: str) -> Callable[[Records], str]:
    """The last validation losses of some variants, as fractions of the baseline.

    Args:
        **names: the names of the runs, keyed by what the page calls them, with
            underscores for spaces.
    """

    def verdict(records: Records) -> str:
        found = {k: records.get(f"copying-200-{name}") for k, name in names.items()}
        shown = ", ".join(f"{k} {_ratio(r):.2g}" for k, r in found.items() if r)
        return shown.replace("_", " ") or NOT_RUN

    return verdict


def _word(*, confirmed: bool) -> str:
    return "confirmed" if confirmed else "not confirmed"


def _ratio(r: Mapping[str, Any]) -> float:
    return r["summary"]["final"]["validation"]["loss"] / r["summary"]["baseline"]


CLAIMS = (
    *(
        claim
        for lag, side in ((1000, "left"), (2000, "right"))
        for claim in (
            Claim(
                f"ExpRNN converges smoothly and completely at lag {lag}",
                f"figure 1, {side}",
                _converges(f"copying-{lag}"),
            ),
            Claim(
                f"scoRNN is unstable at lag {lag}",
                f"figure 1, {side}",
                _unstable(f"copying-{lag}-scornn-190"),
            ),
            Claim(
                f"the LSTM stays at the baseline at lag {lag}",
                f"figure 1, {side}",
                _stays(f"copying-{lag}"),
            ),
        )
    ),
    Claim(
        "scuRNN is as unstable as scoRNN",
        "section 5.1",
        _unstable("copying-1000-scurnn-130"),
    ),
    Claim("at lag 2000, only ExpRNN converges", "section 5.1", _alone),
    *(
        Claim(
            f"ExpRNN 170 reaches {printed(name):.3f} on {title} in 70 epochs",
            "table 1",
            _accuracy(name),
        )
        for name, title in PIXELS.items()
    ),
    *(
        Claim(
            f"on {title}, ExpRNN learns faster than other parametrizations",
            "section 5.2",
            _faster(name),
        )
        for name, title in PIXELS.items()
    ),
    Claim(
        "gated cells with orthogonal weights would do better (a conjecture)",
        "section 5.2",
        _gated,
    ),
    Claim("ExpRNN predicts speech better than the others", "table 2", _speech),
)

REFERENCE = "exprnn-190-reference"

# The paper's remarks about variants of its method. They are not judged, since each
# variant was run once.
REMARKS = (
    Claim(
        "a Padé approximant improves on Cayley's map as the retraction of RGD",
        "section 4.2",
        _losses(Cayley="rgd-128-cayley", Padé="rgd-128-pade-3", exp="rgd-128-exp"),
    ),
    Claim(
        "Cayley's initialization is sometimes better than Henaff's",
        "section 4.4",
        _losses(Henaff=REFERENCE, Cayley="exprnn-190-init-cayley"),
    ),
    Claim(
        "complex weights bring no improvement",
        "section 4.1",
        _losses(real=REFERENCE, complex="exprnn-190-unitary"),
    ),
    Claim(
        "the orthogonal weight should have a rate 10 times larger (section 5) or "
        "smaller (appendix) than the rest",
        "both",
        _losses(
            a_tenth=REFERENCE,
            equal="exprnn-190-ratio-1",
            ten_times="exprnn-190-ratio-10",
        ),
    ),
    Claim(
        "an initial state other than zero brings no improvement",
        "section 4.4",
        _losses(zero=REFERENCE, trained="exprnn-190-trained-h0"),
    ),
)
