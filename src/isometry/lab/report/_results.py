"""What a run reached, in the few numbers that a table shows."""

from dataclasses import dataclass
from statistics import median

from isometry.lab.report._experiment import LARGER_IS_BETTER
from isometry.lab.report._run import Run, as_number

# records of the end of training that are taken together: one batch is noisy
LAST = 5


@dataclass(frozen=True)
class Result:
    r"""What a run reached; None for what it has not measured.

    Attributes:
        chosen: the metric on the test set at the best validation.
        best: the best metric on the test set, chosen on the test set itself.
        loss: median of the last losses of training.
        orthogonality: the largest $\lVert Q^H Q - I \rVert$ of all records.
        parameters: how many the network learns.
    """

    chosen: float | None
    best: float | None
    loss: float | None
    orthogonality: float | None
    parameters: int | None


def result_of(run: Run, metric: str) -> Result:
    """The numbers of a run.

    Args:
        run: finished or not.
        metric: "accuracy", "mse" or "loss".

    Returns:
        Its numbers.
    """
    better = max if metric in LARGER_IS_BETTER else min
    _, test = run.curve(metric, "test")
    _, loss = run.curve("loss", "train")
    measured = (run.summary, *run.records)
    drift = [as_number(found.get("orthogonality")) for found in measured]
    return Result(
        chosen=at_best(run, metric, metric),
        best=better(test, default=None),
        loss=median(loss[-LAST:]) if loss else None,
        orthogonality=max((d for d in drift if d is not None), default=None),
        parameters=run.summary.get("parameters"),
    )


def at_best(run: Run, metric: str, what: str) -> float | None:
    """A number of the test set at the step of the best validation.

    Args:
        run: finished or not.
        metric: what chooses the step: "accuracy", "mse" or "loss".
        what: the number, which may be another.

    Returns:
        Its value; None if it was not measured there.
    """
    better = max if metric in LARGER_IS_BETTER else min
    steps, validation = run.curve(metric, "validation")
    if not validation:
        return None
    at = steps[validation.index(better(validation))]
    return dict(zip(*run.curve(what, "test"), strict=True)).get(at)
