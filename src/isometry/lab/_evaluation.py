"""Computes the loss and the metrics of a task, on a batch or on a whole split."""

from collections.abc import Callable

import torch
from torch import Tensor

from isometry.lab._options import suggestion
from isometry.lab.task import AbstractTask, Batch, Split


def evaluate(
    task: AbstractTask, model: Callable[[Tensor], Tensor], split: Split, size: int
) -> dict[str, float]:
    r"""Means of the loss and of the metrics over a whole split.

    $$ \bar m = \sum_b w_b m_b \Big/ \sum_b w_b $$

    where $m_b$ is the mean of the loss or of a metric over batch $b$, and $w_b$ is the
    weight of the batch, from `task.weights`. Thus the result does not depend on the
    batch size, except for rounding.

    Args:
        task: the task.
        model: maps inputs to outputs.
        split: "validation" or "test".
        size: number of sequences in a batch.

    Returns:
        The means, keyed by "loss" and by the names of the metrics. Empty if the split
        has no sequences.
    """
    sums: dict[str, float] = {}
    totals: dict[str, int] = {}
    with torch.inference_mode():
        for batch in task.evaluation(split, size):
            outputs = model(batch.x)
            means = {"loss": task.loss(outputs, batch).item()}
            means |= metrics_of(task, outputs, batch)
            weights = task.weights(batch)
            for name, value in means.items():
                weight = weights.get(name, weights["loss"])
                sums[name] = sums.get(name, 0.0) + weight * value
                totals[name] = totals.get(name, 0) + weight
    return {name: sums[name] / totals[name] for name in sums}


def metrics_of(task: AbstractTask, outputs: Tensor, batch: Batch) -> dict[str, float]:
    """Call `task.metrics`, check the result, and convert its tensors to numbers.

    Args:
        task: the task.
        outputs: outputs of the model for the batch.
        batch: the sequences and their answers.

    Returns:
        The mean of each metric, keyed by name.

    Raises:
        TypeError: if a metric is not a number.
        ValueError: if the main metric is missing.
    """
    name, metrics = type(task).__name__, dict(task.metrics(outputs, batch))
    for key, value in metrics.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            metrics[key] = value.item()
        elif not isinstance(value, int | float):
            raise TypeError(
                f"`metrics` of {name} must return numbers; got {type(value).__name__} "
                f"for {key!r}. Return a mean, such as `value.mean().item()`."
            )
    if task.metric not in (known := ("loss", *metrics)):
        raise ValueError(
            f"`metric` of {name} must be one of {', '.join(known)}, as returned by "
            f"`metrics`; got {task.metric!r}.{suggestion(task.metric, known)}"
        )
    return metrics
