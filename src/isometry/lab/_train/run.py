"""A run from its beginning or its checkpoint to its summary."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import isometry
from isometry import count_parameters
from isometry.lab._process import Ranks, environment, joined
from isometry.lab._train.config import Config
from isometry.lab._train.experiment import Experiment, angles, build, orthogonality
from isometry.lab._train.folder import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    SUMMARY,
    RunError,
    as_json,
    create,
    default_folder,
    last_good,
    locked,
    write_atomically,
)
from isometry.lab._train.loop import SPLITS, State, train
from isometry.lab._train.recorder import Progress, Recorder, event_writer, unpack


@dataclass(frozen=True)
class Outcome:
    """Where a run is, and how it ended.

    Attributes:
        folder: folder of the run; None in processes that are not the first.
        summary: `summary.json`.
    """

    folder: Path | None
    summary: dict[str, Any]


def start(config: Config, out: Path | None = None) -> Outcome:
    """Train from the beginning.

    Args:
        config: the run.
        out: its folder, which must not exist; if None, a new one under the user's data
            directory.

    Returns:
        The folder and the summary.

    Raises:
        RunError: if the folder exists or cannot be written to, or a package is missing
            that an option needs.
        ValueError: if the config makes no sense.
    """
    with _threads(config.training.threads), joined(config.training.device) as ranks:
        experiment = _ready(config, ranks)
        folder = None
        if ranks.is_first:
            resolved = experiment.config
            name = f"{config.task}-{config.training.model}"
            name += f"-{resolved.training.hidden_size}"
            folder = out or default_folder(name)
            surroundings = as_json(environment(ranks=ranks.count))
            create(folder, {CONFIG: resolved.to_json(), ENVIRONMENT: surroundings})
        return _go(experiment, folder, ranks)


def resume(folder: Path) -> Outcome:
    """Go on from the last checkpoint, to the same numbers as if nothing had happened.

    Args:
        folder: folder of the run.

    Returns:
        The folder and the summary.

    Raises:
        RunError: if it holds no run, a damaged one, or one that another process writes
            or that has diverged.
    """
    config = _read_config(folder)
    summary = _read_summary(folder)
    if summary.get("status") in ("finished", "solved"):
        return Outcome(folder, summary)
    if summary.get("status") == "diverged":
        raise RunError(
            f"{folder} has diverged at step {summary['steps']}, and would again. Train "
            f"anew with another rate, `--lr`. {last_good(folder)}."
        )
    with _threads(config.training.threads), joined(config.training.device) as ranks:
        experiment = _ready(config, ranks)
        return _go(experiment, folder if ranks.is_first else None, ranks)


def _ready(config: Config, ranks: Ranks) -> Experiment:
    """Build the experiment, and refuse what cannot run before anything is written."""
    experiment = build(config, ranks.device)
    if config.training.tensorboard:
        event_writer()
    try:
        experiment.task.check()
    except ImportError as error:
        raise RunError(str(error)) from None
    return experiment


def _go(experiment: Experiment, folder: Path | None, ranks: Ranks) -> Outcome:
    """Train, with the folder locked, and sum up."""
    with contextlib.ExitStack() as stack:
        data = None
        if folder is not None:
            stack.enter_context(locked(folder))
            data = _checkpoint(folder)
        data = ranks.share(data)
        state, size = State(), 0
        if data:
            state, size = _restored(data, experiment, folder)
        if folder is not None:
            # a summary of an earlier interruption, which no longer holds
            (folder / SUMMARY).unlink(missing_ok=True)
        training = experiment.config.training
        assert training.iterations is not None
        progress = Progress(training.iterations, state.step, quiet=folder is None)
        recorder = Recorder(
            folder, progress, size=size, tensorboard=training.tensorboard
        )
        stack.callback(recorder.close)
        progress.say(_greeting(experiment, folder, state))
        try:
            status = train(experiment, state, ranks, recorder)
        except OSError as error:
            # most often the disk is full, and has no room for a summary either
            with contextlib.suppress(OSError):
                _sum_up(experiment, state, "interrupted", folder)
            raise RunError(
                f"the run stopped at step {state.step}: {error}. Once that is solved, "
                f"go on: isometry train --resume {folder}"
            ) from error
        scores: dict[str, Any] = {}
        if status == "finished" and ranks.is_first:
            try:
                scores = _final_scores(experiment, ranks)
            except KeyboardInterrupt:
                status = "interrupted"
        return Outcome(folder, _sum_up(experiment, state, status, folder, scores))


def _checkpoint(folder: Path) -> bytes | None:
    path = folder / CHECKPOINT
    data = path.read_bytes() if path.exists() else None
    if data == b"":
        raise RunError(_damaged(path, "an empty file"))
    return data


def _restored(
    data: bytes, experiment: Experiment, folder: Path | None
) -> tuple[State, int]:
    """The state of a checkpoint, whose tensors are loaded, and bytes of metrics."""
    try:
        header = unpack(data, experiment.model, experiment.optimizers)
        return State(**header["state"]), int(header["metrics"])
    # a file that somebody else wrote can be wrong in any way; nothing of it is run
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        raise RunError(_damaged(Path(CHECKPOINT), first) + _origin(folder)) from error


def _origin(folder: Path | None) -> str:
    """Which revision wrote a run, if it is another than this one."""
    if folder is None:
        return ""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        revision = json.loads((folder / ENVIRONMENT).read_bytes()).get("revision")
        here = environment(ranks=1)["revision"]
        if revision and revision != here:
            return (
                f" The run was begun at revision {revision} of isometry, and this is "
                f"{here or isometry.__version__}. Reports read runs of every revision, "
                f"but a checkpoint is only promised to be read by the code that wrote "
                f"it: check out {revision} to go on."
            )
    return ""


def _damaged(path: Path, what: str) -> str:
    return (
        f"{path} must be what `isometry train` has written for this run; got {what}. "
        f"Restore it from a copy, or train anew."
    )


def _final_scores(experiment: Experiment, ranks: Ranks) -> dict[str, Any]:
    """What the task measures once, at the end; empty for most tasks."""
    model, size = experiment.model, experiment.config.training.batch_size
    scores: dict[str, dict[str, float]] = {}
    model.eval()
    for split in SPLITS:
        scores[split] = experiment.task.final_scores(
            lambda x: model(x.to(ranks.device)), split, size
        )
    model.train()
    return scores if any(scores.values()) else {}


def _sum_up(
    experiment: Experiment,
    state: State,
    status: str,
    folder: Path | None,
    scores: dict[str, Any] | None = None,
) -> dict[str, Any]:
    summary = summarize(experiment, state, status)
    if scores:
        summary["scores"] = scores
    if folder is not None:
        write_atomically(folder / SUMMARY, as_json(summary))
    return summary


def summarize(experiment: Experiment, state: State, status: str) -> dict[str, Any]:
    """What `summary.json` holds.

    Args:
        experiment: what was trained.
        state: where it ended.
        status: how.

    Returns:
        Names and values.
    """
    model = experiment.model
    return {
        "status": status,
        "steps": state.step,
        "seconds": round(state.seconds, 3),
        "metric": experiment.task.metric,
        "best": state.best,
        "best_by_test": state.best_test,
        "solved_at": state.solved_at,
        "final": state.last,
        "parameters": count_parameters(model),
        "baseline": experiment.task.baseline,
        "angles": angles(model),
        "orthogonality": orthogonality(model),
        "source": experiment.recipe.schedule.source,
    }


def _greeting(experiment: Experiment, folder: Path | None, state: State) -> str:
    config, model = experiment.config, experiment.model
    done = f", from step {state.step}" if state.step else ""
    baseline = experiment.task.baseline
    line = "" if baseline is None else f", baseline {baseline:.5g}"
    return (
        f"{config.task}: {config.training.model}, n = {config.training.hidden_size}, "
        f"{count_parameters(model)} parameters{line}{done}; {folder}"
    )


def _read_config(folder: Path) -> Config:
    try:
        return Config.from_json((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{folder} must be the folder of a run; it has no {CONFIG}. Give the path "
            f"that `isometry train` has printed."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(_damaged(folder / CONFIG, repr(error))) from error


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    if not path.exists():
        return {}
    try:
        summary = json.loads(path.read_bytes())
        if {"status", "steps", "seconds", "metric", "best"} <= summary.keys():
            return summary
    except (ValueError, AttributeError, RecursionError):
        pass
    raise RunError(_damaged(path, "no summary of a run"))


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use as many threads of torch as the run was begun with."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
