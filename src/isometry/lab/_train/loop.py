"""The training loop."""

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from isometry.lab._evaluation import evaluate, metrics_of
from isometry.lab._files import Status
from isometry.lab._process import Ranks, Signals
from isometry.lab._train.experiment import Experiment
from isometry.lab._train.recorder import Recorder, RunState
from isometry.lab._train.spectrum import largest_angle, orthogonality_error
from isometry.lab.task import Batch, Split

# A run has diverged if its loss exceeds this factor times the loss of its first step,
# or the factor itself if the loss of the first step is below 1. It has also diverged if
# its loss or its weights are not finite.
_DIVERGED = 1e3
SPLITS: tuple[Split, ...] = ("validation", "test")

# a function of a model, a split and the number of sequences in a batch
Measure = Callable[[Callable[[Tensor], Tensor], Split, int], dict[str, float]]


@dataclass
class Step:
    """One training step, on this process's part of the batch; see `begin_step`.

    Attributes:
        experiment: the task, the model and its optimizers.
        ranks: the rank of this process among the processes that share each batch.
        index: index of the step, counting from 0.
        batch: this process's part of the batch.
        weights: weights of this part in the means of the loss and the metrics, keyed
            by name, from `task.weights`.
        outputs: outputs of the model for the batch.
        loss: mean loss of the outputs.
        share: the factor by which `update` multiplies the loss of this process. `agree`
            chooses the factor such that the average of the gradients over all processes
            is the gradient of the mean loss of the whole batch.
    """

    experiment: Experiment
    ranks: Ranks
    index: int
    batch: Batch
    weights: Mapping[str, int]
    outputs: Tensor
    loss: Tensor
    share: float = 1.0

    def agree(self, *, interrupt: bool) -> tuple[float, bool]:
        """The loss of the whole batch, and whether any process was told to stop.

        With several processes, this also sets `share`.

        Args:
            interrupt: whether this process was told to stop.
        """
        loss, weight = self.loss.item(), self.weights["loss"]
        if self.ranks.count == 1:
            return loss, interrupt
        loss, total, stop = self.ranks.sum(loss * weight, weight, interrupt)
        self.share = self.ranks.count * weight / total
        return loss / total, stop > 0

    def update(self) -> None:
        """Compute the gradients, and take a step with every optimizer."""
        experiment, recipe = self.experiment, self.experiment.recipe
        for optimizer in experiment.optimizers:
            optimizer.zero_grad()
        (self.loss if self.ranks.count == 1 else self.loss * self.share).backward()
        if (clip_norm := recipe.schedule.clip_norm) is not None:
            clip_grad_norm_(experiment.model.parameters(), clip_norm)
        if (decay := recipe.schedule.decay) is not None:
            # Compute the rates from the index of this step, so that a resumed run has
            # the same rates to the last bit. Most of torch's schedulers compute each
            # rate from the previous rate, so a checkpoint would have to store the state
            # of the scheduler as well.
            factor = decay(self.index / experiment.training.iterations)
            for group in (g for o in experiment.optimizers for g in o.param_groups):
                group["lr"] = group["initial_lr"] * factor
        for optimizer in experiment.optimizers:
            optimizer.step()
        recipe.after_step(experiment.model)

    def metrics(self) -> dict[str, float]:
        """The metrics of the task on the whole batch, over all processes."""
        means = metrics_of(self.experiment.task, self.outputs.detach(), self.batch)
        if self.ranks.count == 1 or not means:
            return means
        weights = [self.weights.get(name, self.weights["loss"]) for name in means]
        products = [w * mean for w, mean in zip(weights, means.values(), strict=True)]
        # add up all numbers in one message: first the products, then the weights
        totals = self.ranks.sum(*products, *weights)
        sums, counts = totals[: len(means)], totals[len(means) :]
        return {n: s / c for n, s, c in zip(means, sums, counts, strict=True)}


def begin_step(
    experiment: Experiment, model: nn.Module, ranks: Ranks, index: int
) -> Step:
    """Set the global seed, draw a batch, and compute the loss.

    Args:
        experiment: the task, the model and its optimizers.
        model: the model of the experiment; with several processes, wrapped so that its
            gradients are averaged over all processes.
        ranks: the rank of this process among the processes that share each batch.
        index: index of the step, counting from 0.

    Returns:
        The step, whose gradients are not computed yet.
    """
    task, training = experiment.task, experiment.training
    # set the seed at each step, so that dropout is the same in a resumed run
    torch.manual_seed((training.seed << 32) + index * ranks.count + ranks.rank)
    part = {"rank": ranks.rank, "ranks": ranks.count}
    on_cpu = task.batch(index, size=training.batch_size, seed=training.seed, **part)
    weights = task.weights(on_cpu)
    x, y, lengths = on_cpu
    lengths = None if lengths is None else lengths.to(ranks.device)
    batch = Batch(x.to(ranks.device), y.to(ranks.device), lengths)
    outputs = model(batch.x)
    loss = task.loss(outputs, batch)
    return Step(experiment, ranks, index, batch, weights, outputs, loss)


@dataclass
class Trainer:
    """Trains the model of an experiment, in one of the processes of a run.

    Attributes:
        experiment: the task, the model and its optimizers.
        state: the progress so far.
        ranks: the rank of this process among the processes that share each batch.
        recorder: writes records and checkpoints.
    """

    experiment: Experiment
    state: RunState
    ranks: Ranks
    recorder: Recorder

    def train(self) -> Status:
        """Train until the last step, or until the task is solved or the run must stop.

        A run must stop if it diverges or receives a signal.

        Returns:
            How the run ended.
        """
        experiment, state, recorder = self.experiment, self.state, self.recorder
        training, model = experiment.training, self.ranks.parallel(experiment.model)
        with Signals() as signals:
            while state.step < training.iterations:
                begin, cpu = time.perf_counter(), time.process_time()
                step = begin_step(experiment, model, self.ranks, state.step)
                loss, stop = step.agree(interrupt=signals.received)
                if state.first_loss is None:
                    state.first_loss = loss
                largest = _DIVERGED * max(state.first_loss, 1.0)
                if not math.isfinite(loss) or loss > largest:
                    return "diverged"
                step.update()
                state.step += 1
                state.seconds += time.perf_counter() - begin
                state.cpu_seconds += time.process_time() - cpu
                recorder.progress.step(state.step, loss)

                last = state.step == training.iterations
                if last or state.step % training.log_every == 0:
                    recorder.write(state, "train", {"loss": loss} | step.metrics())
                solved = False
                if last or state.step % training.evaluate_every == 0:
                    solved = self._evaluate()
                is_best = state.best.get("step") == state.step
                due = last or solved or stop or is_best
                if due or state.step % training.checkpoint_every == 0:
                    # do not replace a good checkpoint with weights that are not finite
                    if not _finite(experiment):
                        return "diverged"
                    recorder.checkpoint(state, is_best=is_best)
                if solved or (stop and not last):
                    return "solved" if solved else "interrupted"
        return "finished"

    def _evaluate(self) -> bool:
        """Evaluate both splits. True if the run should stop because the task is solved.

        Every process evaluates all sequences. All processes get the same results, since
        they have the same weights.
        """
        state, task, model = self.state, self.experiment.task, self.experiment.model
        extra: dict[str, float] = {}
        if (error := orthogonality_error(model)) is not None:
            extra["orthogonality"] = error
        if (angle := largest_angle(model)) is not None:
            extra["largest_angle"] = angle
        means = self.on_splits(functools.partial(evaluate, task))
        for split in SPLITS:
            if means[split]:
                self.recorder.write(state, split, means[split] | extra)
        state.last = {"step": state.step, **means}
        self.recorder.progress.evaluation(means, extra)
        for best, split in ((state.best, "validation"), (state.best_test, "test")):
            new, metric = means[split], task.metric
            old = best[split][metric] if best else math.nan
            if new and (math.isnan(old) or task.is_better(new[metric], old)):
                best.update(state.last)
        training, validation = self.experiment.training, means["validation"]
        # a task counts as solved only if its data is endless and its baseline is known
        endless = task.epoch(training.batch_size) is None
        if task.baseline is None or not validation or not endless:
            return False
        # with `not ... <` instead of `>=`, a loss of NaN does not count as solved
        if not validation["loss"] < training.solved * task.baseline:
            state.solved_at = None
            return False
        if state.solved_at is None:
            state.solved_at = state.step
        return state.step >= state.solved_at + training.solved_for

    def on_splits(self, measure: Measure) -> dict[str, dict[str, float]]:
        """Measure the model on the validation and the test sequences.

        Args:
            measure: called for each split with the model, the split and the batch size.
                This model returns its outputs on the CPU, where the answers are.

        Returns:
            The results of `measure`, keyed by split.
        """
        model, size = self.experiment.model, self.experiment.training.batch_size

        def on_cpu(x: Tensor) -> Tensor:
            return model(x.to(self.ranks.device)).cpu()

        model.eval()
        values = {split: measure(on_cpu, split, size) for split in SPLITS}
        model.train()
        return values


def _finite(experiment: Experiment) -> bool:
    sums = [p.detach().sum().isfinite() for p in experiment.model.parameters()]
    return bool(torch.stack(sums).all())
