"""The training loop."""

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from isometry.lab._process import Ranks, Signals
from isometry.lab._train.experiment import Experiment, largest_angle, orthogonality
from isometry.lab._train.recorder import Recorder
from isometry.lab.task import Batch, Split, evaluate

# times the loss of the first step, or 1: nothing that learns is ever there
_DIVERGED = 1e3
SPLITS: tuple[Split, ...] = ("validation", "test")


@dataclass
class State:
    """What a checkpoint keeps besides tensors.

    Attributes:
        step: steps that were made.
        seconds: of training, without evaluations and checkpoints.
        first_loss: loss of the first batch.
        last: the latest means of each split.
        best: the same at the best validation, with its step.
        best_test: the same at the best test, as the paper reports.
        solved_at: first of the latest evaluations that all found the task solved.
    """

    step: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    best_test: dict[str, Any] = field(default_factory=dict)
    solved_at: int | None = None


def train(
    experiment: Experiment, state: State, ranks: Ranks, recorder: Recorder
) -> str:
    """Train until the last iteration, a solution, a divergence or a signal.

    Args:
        experiment: what is trained.
        state: where to begin; it is moved on.
        ranks: this process among those that share each batch.
        recorder: writes records and checkpoints.

    Returns:
        "finished", "solved", "diverged" or "interrupted".
    """
    config = experiment.config.training
    model = ranks.parallel(experiment.model)
    iterations, every = config.iterations, config.evaluate_every
    assert iterations is not None
    assert every is not None
    with Signals() as signals:
        while state.step < iterations:
            begin = time.perf_counter()
            step = Step(experiment, model, ranks, state.step)
            loss, stop = step.agree(interrupt=signals.came)
            if _diverged(loss, state):
                return "diverged"
            step.update()
            state.step += 1
            state.seconds += time.perf_counter() - begin
            recorder.progress.step(state.step, loss)

            last = state.step == iterations
            if last or state.step % config.log_every == 0:
                recorder.write(state, "train", {"loss": loss} | step.metrics())
            solved = False
            if last or state.step % every == 0:
                solved = _evaluate(experiment, state, ranks, recorder)
            if last or solved or stop or state.step % config.checkpoint_every == 0:
                # the last good checkpoint stays if this one is not
                if not _finite(experiment):
                    return "diverged"
                recorder.checkpoint(experiment, asdict(state))
            if solved or (stop and not last):
                return "solved" if solved else "interrupted"
    return "finished"


class Step:
    """One step of training, on this process's part of the batch.

    Args:
        experiment: what is trained.
        model: its model, or what makes it parallel.
        ranks: this process among others.
        index: the number of the step, from 0.
    """

    def __init__(
        self,
        experiment: Experiment,
        model: torch.nn.Module,
        ranks: Ranks,
        index: int,
    ) -> None:
        self.experiment, self.ranks = experiment, ranks
        config, task = experiment.config.training, experiment.task
        # dropout, too, depends on nothing but the step
        torch.manual_seed((config.seed << 32) + index * ranks.count + ranks.rank)
        batch = task.batch(
            index,
            size=config.batch_size,
            seed=config.seed,
            rank=ranks.rank,
            ranks=ranks.count,
        )
        self.batch = on(batch, ranks.device)
        self.weights = task.weights(batch)
        self.outputs = model(self.batch.x)
        self.loss = task.loss(self.outputs, self.batch)
        self.total = self.weights["loss"]

    def agree(self, *, interrupt: bool) -> tuple[float, bool]:
        """The loss of the whole batch, and whether any process was told to stop."""
        mine, weight = self.loss.item(), self.weights["loss"]
        if self.ranks.count == 1:
            return mine, interrupt
        loss, total, stop = self.ranks.sum(mine * weight, weight, interrupt)
        self.total = total
        return loss / total, stop > 0

    def update(self) -> None:
        """Gradients, and a step of every optimizer."""
        experiment, recipe = self.experiment, self.experiment.recipe
        for optimizer in experiment.optimizers:
            optimizer.zero_grad()
        # the mean over processes of these is the gradient of the whole batch
        share = self.ranks.count * self.weights["loss"] / self.total
        (self.loss if self.ranks.count == 1 else self.loss * share).backward()
        clip_norm = recipe.schedule.clip_norm
        if clip_norm is not None:
            clip_grad_norm_(experiment.model.parameters(), clip_norm)
        for optimizer in experiment.optimizers:
            optimizer.step()
        recipe.after_step(experiment.model)

    def metrics(self) -> dict[str, float]:
        """The metrics of the task, for the batch of all processes."""
        means = self.experiment.task.metrics(self.outputs.detach(), self.batch)
        if self.ranks.count == 1:
            return means
        weights = [self.weights[name] for name in means]
        sums = [w * v for w, v in zip(weights, means.values(), strict=True)]
        totals = self.ranks.sum(*sums, *weights)
        half = len(means)
        return {name: totals[i] / totals[half + i] for i, name in enumerate(means)}


def _evaluate(
    experiment: Experiment, state: State, ranks: Ranks, recorder: Recorder
) -> bool:
    """Record both splits and keep the best; returns whether the task is solved.

    All processes have the same weights and find the same numbers.
    """
    config, task, model = experiment.config.training, experiment.task, experiment.model
    state.last = {"step": state.step}
    error, angle = orthogonality(model), largest_angle(model)
    extra = {} if error is None else {"orthogonality": error}
    extra |= {} if angle is None else {"largest_angle": angle}
    model.eval()
    for split in SPLITS:
        means = evaluate(
            task, lambda x: model(x.to(ranks.device)), split, config.batch_size
        )
        state.last[split] = means
        if means:
            recorder.write(state, split, means | extra)
    model.train()
    for kept, split in ((state.best, "validation"), (state.best_test, "test")):
        new = state.last[split]
        if new and (not kept or _better(new, kept[split], task.metric)):
            kept.update(state.last)
    # data with an end is learned, not solved
    if task.baseline is None or task.epoch(config.batch_size) is not None:
        return False
    if state.last["validation"]["loss"] >= config.solved * task.baseline:
        state.solved_at = None
        return False
    if state.solved_at is None:
        state.solved_at = state.step
    return state.step >= state.solved_at + config.solved_for


def _better(new: dict[str, float], old: dict[str, float], metric: str) -> bool:
    if metric == "accuracy":
        return new[metric] > old[metric]
    return new[metric] < old[metric]


def _diverged(loss: float, state: State) -> bool:
    if state.first_loss is None:
        state.first_loss = loss
    return not math.isfinite(loss) or loss > _DIVERGED * max(state.first_loss, 1.0)


def _finite(experiment: Experiment) -> bool:
    sums = [p.detach().sum().isfinite() for p in experiment.model.parameters()]
    return bool(torch.stack(sums).all())


def on(batch: Batch, device: torch.device) -> Batch:
    """A batch on a device."""
    x, y, lengths = batch
    moved: Tensor | None = None if lengths is None else lengths.to(device)
    return Batch(x.to(device), y.to(device), moved)
