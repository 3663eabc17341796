"""Definitions of success and failure, fixed before the first run had ended.

*Solved*: the validation loss is below 1 % of the baseline and stays there for 200
steps. A run may stop then. *Spike*: a training loss that is more than twice the median
of the 50 steps before it, and above 1 % of the baseline. A spike ends when the loss
is no longer above the limit that it exceeded at the start of the spike. *Unstable*:
three spikes or more, counted after step 100.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WINDOW = 50
FIRST = 100
FACTOR = 2.0
FLOOR = 0.01
UNSTABLE = 3
# a solved run stays below FLOOR times the baseline for this many steps
STAYS = 200


def solved_at(
    validation: Mapping[str, Sequence[float]], baseline: float
) -> float | None:
    """The step at which a run solved its task; None if it did not.

    Args:
        validation: the steps of all evaluations, and the losses there.
        baseline: baseline loss of the task.

    Returns:
        The first step such that the losses of its evaluation and of all evaluations in
        the next 200 steps are below the limit. A run that ends before these 200 steps
        has not solved the task.
    """
    first = None
    for step, loss in zip(validation["step"], validation["loss"], strict=True):
        if not loss < FLOOR * baseline:
            first = None
        elif first is None:
            first = step
        if first is not None and step >= first + STAYS:
            return first
    return None


@dataclass(frozen=True)
class Spikes:
    """How many spikes a training loss has, and how large they are.

    Attributes:
        count: number of spikes; a long spike counts once.
        steps: number of steps that are part of a spike.
        worst: largest ratio of a loss after step 100 to the median of the 50 steps
            before it.
    """

    count: int
    steps: int
    worst: float

    @property
    def unstable(self) -> bool:
        """Whether there are three spikes or more."""
        return self.count >= UNSTABLE


def spikes(losses: Sequence[float], baseline: float) -> Spikes:
    """The spikes of a training loss.

    Args:
        losses: the loss of every step, from the first.
        baseline: baseline loss of the task.

    Returns:
        Number and size of the spikes.
    """
    count, steps, worst, line = 0, 0, 0.0, None
    for t in range(FIRST, len(losses)):
        loss = losses[t]
        before = median(losses[t - WINDOW : t])
        worst = max(worst, loss / before)
        # inside a spike, compare with the limit that the loss exceeded at its start
        limit = max(FACTOR * before, FLOOR * baseline) if line is None else line
        if not loss > limit:
            line = None
            continue
        count += line is None
        steps += 1
        line = limit
    return Spikes(count, steps, worst)
