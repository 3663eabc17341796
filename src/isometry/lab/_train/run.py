"""Starts, resumes and loads runs."""

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import isometry
from isometry.lab import _files as files
from isometry.lab._errors import RunError, require_traceback
from isometry.lab._files import Status, Summary
from isometry.lab._process import Ranks, environment, joined, revision
from isometry.lab._train import recorder as records
from isometry.lab._train.config import Config, Training, read_config
from isometry.lab._train.experiment import Experiment, Trust, build, make_model
from isometry.lab._train.loop import Trainer
from isometry.lab._train.spectrum import angles, orthogonality_error


@dataclass(frozen=True)
class RunOutcome:
    """The folder of a run, and how the run ended.

    Attributes:
        folder: folder of the run; None in every process but the first.
        summary: the content of `summary.json`. Its entry `best` describes the
            evaluation with the best validation result, `best_by_test` the evaluation
            with the best test result, and `final` the last evaluation. Each of these
            three holds the step and, for each split, the loss and the metrics at that
            step. It is empty if there was no such evaluation.
    """

    folder: Path | None
    summary: Summary


def train(config: Config, out: Path | str | None = None) -> RunOutcome:
    """Start a run in a new folder, and train.

    Args:
        config: config of the run. Classes that it names as package.module:Class are
            imported.
        out: folder of the run, which must not exist; if None, a new folder under the
            user's data directory. An error other than a `RunError` removes the folder
            if no step has been recorded.

    Returns:
        The folder and the summary.

    Raises:
        RunError: if the folder exists or cannot be written to, a package that the run
            needs is missing, or an `OSError`, such as a full disk, stops the run.
        FileNotFoundError: if the data of the task is missing.
        TypeError: if the config is not a `Config` or names an unsuitable class, or if
            the task lacks an option that has no default.
        ValueError: if the config is invalid, or a file of the task's data is damaged.
    """
    if not isinstance(config, Config):
        raise TypeError(
            f"`config` must be a `Config`; got {type(config).__name__}. Write "
            f"`Config(task, task_options, Training(...))`."
        )
    with _setup(config, trust=True) as (experiment, ranks):
        folder = None
        if ranks.is_first:
            config = experiment.config
            folder = Path(out) if out else files.default_folder(config.short_name)
            contents = {
                files.CONFIG: config.to_json(),
                files.ENVIRONMENT: files.as_json(environment(ranks=ranks.count)),
            }
            files.create(folder, contents)
        try:
            return _run(experiment, folder, ranks)
        except RunError:
            # the message may tell the user to resume the run, so keep its folder
            raise
        except Exception:
            # Remove a folder without a recorded step. Then the user can correct the
            # mistake, and repeat the command.
            if folder is not None and not files.has_records(folder):
                shutil.rmtree(folder)
            raise


def resume(folder: Path | str, *, trust: Trust = False, **options: Any) -> RunOutcome:
    """Resume a run from its last checkpoint, as if it had never stopped.

    A finished run continues if `iterations` or `epochs` ask for more steps. A solved
    run continues if `solved` is changed. If a run has ended and no option changes, its
    summary is returned.

    Args:
        folder: folder of the run.
        trust: True to import any class that `config.json` names, or the names of the
            classes that may be imported. Registered classes are always allowed.
        **options: fields of `Training` that may change: `iterations`, `epochs`,
            `solved`, `solved_for`, `log_every`, `evaluate_every`, `checkpoint_every`,
            `threads`, `device` and `tensorboard`.

    Returns:
        The folder and the summary.

    Raises:
        RunError: if the folder does not hold a run; if the run is damaged, has
            diverged, or is being written by another process; if the run has ended, and
            the options change something but do not make the run continue; if the
            options ask for fewer steps than were taken, or change the number of steps
            while the learning rates decay; or if a package is missing.
        FileNotFoundError: if the data of the task is missing.
        TypeError: if a class that the config names is unsuitable.
        ValueError: if an option is invalid or may not change, or `trust` does not allow
            a class.
    """
    folder = Path(folder)
    before, summary = read_config(folder), files.read_summary(folder)
    config = before.changed(options)
    training = config.training
    if summary and _has_ended(folder, summary, before.training, training, options):
        return RunOutcome(folder, summary)
    with _setup(config, trust=trust) as (experiment, ranks):
        length = experiment.training.iterations
        planned = before.training.iterations
        if experiment.recipe.schedule.decay is not None and length != planned:
            raise RunError(
                f"{folder} must keep its {planned} steps, over which its learning "
                f"rates decay; got {length}. For another length, begin another run."
            )
        return _run(experiment, folder if ranks.is_first else None, ranks, options)


def _has_ended(
    folder: Path,
    summary: Summary,
    before: Training,
    training: Training,
    options: Collection[str],
) -> bool:
    """True if a run has ended, and no option changes.

    Args:
        folder: folder of the run.
        summary: the summary of the run.
        before: how the run was trained.
        training: how it would continue.
        options: names of the options with which the user wants to resume it.

    Returns:
        False if the run continues.

    Raises:
        RunError: if an option changes, but the run cannot continue; or if the run has
            diverged.
    """
    status, steps = summary["status"], summary["steps"]
    if status == "diverged":
        raise RunError(
            f"{folder} must be a run that can be resumed; "
            f"{files.divergence(folder, steps)}. It would diverge again. Begin another "
            f"run with a smaller `lr`."
        )
    # If a run was resumed for more steps, but killed before its old summary was
    # removed, its config already has the larger number of steps. Such a run continues,
    # although no option changes. If `epochs` is given, the number of steps is not known
    # yet; `_run` checks it later.
    more = training.epochs is not None or (training.iterations or 0) > steps
    if status not in files.ENDED or (status == "finished" and more):
        return False
    if training == before:
        return True
    if status == "finished":
        raise RunError(
            f"{folder} has finished after {steps} steps, and can only be resumed for "
            f"more steps; got {', '.join(f'`{name}`' for name in options)}. Give "
            f"`iterations` above {steps}, or `epochs`."
        )
    if "solved" not in options:
        raise RunError(
            f"{folder} solved its task after {steps} steps, and would stop again at "
            f"the next evaluation. Set `solved` to 0 to continue."
        )
    return False


def load_model(
    folder: Path | str, *, best: bool = False, trust: Trust = False
) -> nn.Module:
    """The model of a run with its trained weights, on the CPU, in evaluation mode.

    Args:
        folder: folder of the run, finished or not.
        best: whether to load the weights with the best validation result instead of the
            last weights.
        trust: True to import any class that `config.json` names, or the names of the
            classes that may be imported. Registered classes are always allowed.

    Returns:
        The network with its output layer. Its outputs usually have the shape
        (time, batch, output_size).

    Raises:
        RunError: if the folder does not hold a run, if the run does not have these
            weights, or if a file is damaged.
        TypeError: if a class that the config names is unsuitable.
        ValueError: if `trust` does not allow a class, or if the config names a class or
            an option that does not exist.
    """
    folder = Path(folder)
    config, data = read_config(folder), files.read_checkpoint(folder)
    if data is None:
        reason = "it has none yet"
        remedy = f"Resume the run: {files.resume_command(folder)}"
        summary = files.read_summary(folder)
        if summary and summary["status"] == "diverged":
            reason = files.divergence(folder, summary["steps"])
            remedy = "Begin another run with a smaller `lr`."
        raise RunError(f"{folder} must have a checkpoint; {reason}. {remedy}")
    # drawing the initial weights must not change the state of the global generator
    with torch.random.fork_rng(devices=()):
        _, _, model = make_model(config, trust=trust)
    with _checkpoint_errors(folder):
        records.unpack(records.read_best(folder, data) if best else data, model, ())
    return model.eval()


@contextlib.contextmanager
def _setup(config: Config, *, trust: Trust) -> Iterator[tuple[Experiment, Ranks]]:
    """Set up the process group, and build the experiment, for a `with` block.

    An invalid config and missing data or packages raise an error here, before any file
    is written. Inside the block, torch uses the number of threads in the config.
    """
    training, threads = config.training, torch.get_num_threads()
    torch.set_num_threads(training.threads or threads)
    try:
        with joined(training.device) as ranks:
            experiment = build(config, ranks.device, trust=trust)
            if training.tensorboard:
                records.event_writer()
            try:
                experiment.task.check()
            except ImportError as error:
                raise RunError(str(error)) from None
            yield experiment, ranks
    finally:
        torch.set_num_threads(threads)


def _run(
    experiment: Experiment,
    folder: Path | None,
    ranks: Ranks,
    options: Mapping[str, Any] | None = None,
) -> RunOutcome:
    """Lock the folder, load its checkpoint if any, train, and write the summary."""
    with files.locked(folder) if folder else contextlib.nullcontext():
        data = ranks.share(files.read_checkpoint(folder) if folder else None)
        with _checkpoint_errors(folder):
            model, optimizers = experiment.model, experiment.optimizers
            header = records.unpack(data, model, optimizers) if data else {}
            state = records.RunState(**header["state"] if data else {})
        config = experiment.config
        if (iterations := experiment.training.iterations) < state.step:
            raise RunError(
                f"`iterations` must be at least {state.step}, the number of steps so "
                f"far; got {iterations}."
            )
        if folder is not None:
            if options:
                # record the options with which the run is resumed
                entry = {"step": state.step, "options": dict(options)}
                if entry not in config.continued:
                    config = replace(config, continued=[*config.continued, entry])
                files.write_atomically(folder / files.CONFIG, config.to_json())
            # if the run had ended before, its summary is no longer true
            (folder / files.SUMMARY).unlink(missing_ok=True)
        recorder = records.Recorder(experiment, folder, header)
        with contextlib.closing(recorder):
            recorder.progress.say(_greeting(experiment, folder, state.step))
            return _train_to_end(Trainer(experiment, state, ranks, recorder))


def _train_to_end(trainer: Trainer) -> RunOutcome:
    folder = trainer.recorder.folder
    try:
        status = trainer.train()
    except OSError as error:
        # the usual cause is a full disk, so writing the summary may fail, too
        with contextlib.suppress(OSError):
            _sum_up(trainer, "interrupted", {})
        again = files.resume_command(folder) if folder else "start all processes again"
        raise RunError(
            f"the run stopped at step {trainer.state.step}: {error}. Solve this, "
            f"then resume the run: {again}"
        ) from error
    except (ValueError, TypeError) as error:
        # the options were checked before, so this error is not about them
        require_traceback(error, f"raised after {trainer.state.step} steps of the run")
        raise
    scores: Mapping[str, Any] = {}
    if status == "finished" and trainer.ranks.is_first:
        try:
            scores = trainer.on_splits(trainer.experiment.task.final_scores)
        except KeyboardInterrupt:
            status = "interrupted"
    return _sum_up(trainer, status, scores)


@contextlib.contextmanager
def _checkpoint_errors(folder: Path | None) -> Iterator[None]:
    """Turn any error from reading a checkpoint into a `RunError` that explains it."""
    try:
        yield
    except RunError:
        raise
    # Catch every error, because a file from somebody else can be wrong in any way.
    # Reading it does not execute any code.
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        message = files.damaged(Path(files.CHECKPOINT), first)
        raise RunError(message + _origin(folder)) from error


def _origin(folder: Path | None) -> str:
    """Advice for an error message about a run of another revision of isometry.

    The advice is empty if the run's revision is not known, or is the current one.
    """
    here = before = revision()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if folder is not None:
            before = files.read_json(folder / files.ENVIRONMENT).get("revision")
    if not before or before == here:
        return ""
    return (
        f" The run was started with revision {before} of isometry, but this is "
        f"{here or isometry.__version__}. Reports can read runs from any revision, but "
        f"other revisions may be unable to read the checkpoint. To resume, check out "
        f"{before}."
    )


def _sum_up(trainer: Trainer, status: Status, scores: Mapping[str, Any]) -> RunOutcome:
    """Write `summary.json`, and return the outcome of the run."""
    experiment, state = trainer.experiment, trainer.state
    model, folder = experiment.model, trainer.recorder.folder
    summary: Summary = {
        "status": status,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        "cpu_seconds": round(state.cpu_seconds, 3),
        "metric": experiment.task.metric,
        "best": state.best,
        "best_by_test": state.best_test,
        "solved_at": state.solved_at,
        "final": state.last,
        "parameters": isometry.count_parameters(model),
        "baseline": experiment.task.baseline,
        "angles": angles(model),
        "orthogonality": orthogonality_error(model),
        "source": experiment.recipe.schedule.source,
    }
    if any(scores.values()):
        summary["scores"] = dict(scores)
    if folder is not None:
        files.write_atomically(folder / files.SUMMARY, files.as_json(summary))
    return RunOutcome(folder, summary)


def _greeting(experiment: Experiment, folder: Path | None, step: int) -> str:
    config, baseline = experiment.config, experiment.task.baseline
    training, count = experiment.training, isometry.count_parameters(experiment.model)
    sizes = f"n = {training.hidden_size}, {count} parameters"
    parts = [f"{config.task}: {training.model}, {sizes}"]
    if baseline is not None:
        parts.append(f"baseline {baseline:.5g}")
    if step:
        parts.append(f"from step {step}")
    return f"{', '.join(parts)}; {folder}"
