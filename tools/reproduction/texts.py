"""The texts of the page (the .md files here), and how claims are judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.reproduction.charts import Records
from tools.reproduction.criteria import UNSTABLE


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.md").read_text().strip()


INTRODUCTION = _text("introduction")

SPEECH = _text("speech")

DISCREPANCIES = _text("discrepancies")

CHEAPNESS = _text("cheapness")

CAYLEY = _text("cayley")


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
    """Whether every seed of ExpRNN is solved without becoming unstable."""

    def verdict(records: Records) -> str:
        start = f"{experiment}-exprnn-190"
        runs = [r for name, r in records.items() if name.startswith(start)]
        if not runs:
            return "not run yet"
        solved = sum(r["summary"]["status"] == "solved" for r in runs)
        stable = sum(r["spikes"]["count"] < UNSTABLE for r in runs)
        word = "confirmed" if solved == stable == len(runs) else "not confirmed"
        counts = ", ".join(str(r["spikes"]["count"]) for r in runs)
        return (
            f"{word}: {solved} of {len(runs)} runs solved, {stable} stable "
            f"(spikes: {counts})"
        )

    return verdict


def _unstable(experiment: str) -> Callable[[Records], str]:
    def verdict(records: Records) -> str:
        r = records.get(f"{experiment}-scornn-190")
        if r is None:
            return "not run yet"
        count, worst = r["spikes"]["count"], r["spikes"]["worst"]
        word = "confirmed" if count >= UNSTABLE else "not confirmed"
        return f"{word}: {count} spikes, the worst to {worst:.3g} times the median"

    return verdict


def _stays(experiment: str) -> Callable[[Records], str]:
    def verdict(records: Records) -> str:
        r = records.get(f"{experiment}-lstm-68")
        if r is None:
            return "not run yet"
        ratio = _ratio(r)
        word = "confirmed" if ratio > 0.9 else "not confirmed"
        return f"{word}: {ratio:.2f} of the baseline at the end"

    return verdict


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
                _unstable(f"copying-{lag}"),
            ),
            Claim(
                f"the LSTM stays at the baseline at lag {lag}",
                f"figure 1, {side}",
                _stays(f"copying-{lag}"),
            ),
        )
    ),
)
