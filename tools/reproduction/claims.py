"""The claims and remarks of the paper, each with the function that judges it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.reproduction.runs import PIXELS, Records, printed
from tools.reproduction.verdicts import (
    Judge,
    Verdict,
    accuracy,
    alone,
    cheap,
    converges,
    faster,
    gated,
    losses,
    precise,
    soonest,
    speech,
    stays,
    stays_inside,
    unstable,
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and how our runs judge it.

    Attributes:
        text: the claim in our words.
        where: its place in the paper.
        verdict: function from the runs and the small experiments to our verdict.
    """

    text: str
    where: str
    verdict: Judge


RIVALS: Mapping[str, str] = {"scornn-170": "scoRNN", "rgd-116": "RGD"}

_FIGURE_1 = "figure 1, section 5.1"


def _copying(lag: int) -> tuple[Claim, ...]:
    experiment = f"copying-{lag}"
    return (
        Claim(
            f"ExpRNN converges smoothly and completely at lag {lag}",
            _FIGURE_1,
            converges(experiment),
        ),
        Claim(
            f"scoRNN is unstable at lag {lag}",
            _FIGURE_1,
            unstable(experiment, "scornn-190"),
        ),
        Claim(
            f"the LSTM stays at the baseline at lag {lag}",
            "figure 1",
            stays(experiment),
        ),
    )


def _pixels(experiment: str, title: str) -> tuple[Claim, ...]:
    reached = Claim(
        f"ExpRNN 170 reaches {printed(experiment):.3f} on {title} in 70 epochs",
        "table 1",
        accuracy(experiment),
    )
    led = (
        Claim(
            f"on {title}, ExpRNN learns faster than {name}",
            "section 5.2",
            faster(experiment, rival),
        )
        for rival, name in RIVALS.items()
    )
    return reached, *led


CLAIMS = (
    *_copying(1000),
    *_copying(2000),
    Claim(
        "scuRNN is as unstable as scoRNN",
        "section 5.1",
        unstable("copying-1000", "scurnn-130"),
    ),
    Claim("at lag 2000, only ExpRNN converges", "section 5.1", alone),
    Claim("ExpRNN converges faster: copying at lag 1000", "abstract", soonest),
    *(claim for item in PIXELS.items() for claim in _pixels(*item)),
    *(
        Claim(
            f"{name}, with gates and an orthogonal weight, is better (a conjecture)",
            "section 5.2",
            gated(network),
        )
        for network, name in (("explstm-87", "ExpLSTM"), ("expgru-100", "ExpGRU"))
    ),
    Claim("ExpRNN predicts speech better than the others", "table 2", speech),
    Claim(
        "the constraint costs nothing that one notices: pixels (784 time steps)",
        "section 4.3",
        cheap(784),
    ),
    Claim(
        "the constraint costs nothing that one notices: 100 time steps",
        "section 4.3",
        cheap(100),
    ),
    Claim(
        "the coordinates never leave the domain where the exponential is one-to-one",
        "section 3.3",
        stays_inside,
    ),
    Claim(
        "a Padé approximant is a much more precise retraction than Cayley's map",
        "section 4.2",
        precise,
    ),
)

REFERENCE = "exprnn-190-reference"

# The paper's remarks about variants of its method. They are not judged, since each
# variant was run once.
REMARKS = (
    Claim(
        "Cayley's initialization is sometimes better than Henaff's",
        "section 4.4",
        losses(Henaff=REFERENCE, Cayley="exprnn-190-init-cayley"),
    ),
    Claim(
        "complex weights bring no improvement (here: with twice as many parameters)",
        "section 4.1",
        losses(real=REFERENCE, complex="exprnn-190-unitary"),
    ),
    Claim(
        "a rate of the orthogonal weight 10 times larger than the rest works well "
        "(section 5), or 10 times smaller (appendix)",
        "both",
        losses(
            a_tenth=REFERENCE,
            equal="exprnn-190-ratio-1",
            ten_times="exprnn-190-ratio-10",
        ),
    ),
    Claim(
        "an initial state other than zero brings no improvement",
        "section 4.4",
        losses(zero=REFERENCE, trained="exprnn-190-trained-h0"),
    ),
    Claim(
        "a more precise retraction improves Riemannian gradient descent",
        "section 4.2",
        losses(Cayley="rgd-128-cayley", Padé="rgd-128-pade-3", exp="rgd-128-exp"),
    ),
)


def verdicts(
    claims: Sequence[Claim], records: Records, experiments: Records
) -> list[tuple[Claim, Verdict]]:
    """Each claim with the verdict on it."""
    return [(claim, claim.verdict(records, experiments)) for claim in claims]
