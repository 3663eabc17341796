"""The definition of a run: a task, a network, and how the network is trained."""

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from isometry.lab._errors import RunError
from isometry.lab._files import CONFIG, damaged
from isometry.lab._options import check_types, option_of, select, spell

if TYPE_CHECKING:
    from isometry.lab.network import Recipe

# Version of the format of `config.json` and the files next to it. Increase it when
# older code would read a new folder without an error but train differently. Folders
# without a version have format 1, which had no recipe. Format 2 had no `decay` and no
# `clip_norm`.
FORMAT = 3

_LENGTHS = ("iterations", "epochs")
_INTERVALS = ("log_every", "evaluate_every", "checkpoint_every")
_STOPPING = ("solved", "solved_for")
# options that may change when a run is resumed; all other options define the run
CHANGEABLE = (*_LENGTHS, *_STOPPING, *_INTERVALS, "threads", "device", "tensorboard")

# why a resumed run refuses these options, which are not fields of `Training`
_REASONS = {
    "task": "the run keeps its task",
    "out": "the run stays in its folder",
    "config": "give the options directly",
}

# The largest value of `lr`, `lr_ratio`, `solved` and `clip_norm`. With this limit, the
# learning rate of the orthogonal weight, `lr * lr_ratio`, is at most 1e30. Optimizers
# divide the rate by numbers such as 0.001, and torch raises an error if the quotient
# exceeds 3.4e38, the largest float32.
LARGEST = 1e15
# the smallest value of an option that must be positive
SMALLEST = math.nextafter(0.0, 1.0)

# The types of the entries of `config.json` that `Training` does not check. A wrong
# `task` is refused when the task is looked up.
_JSON_TYPES = {
    **dict.fromkeys(("task_options", "recipe", "about"), dict),
    "command": str,
    "continued": list,
}

_COUNTS = ("batch_size", "hidden_size", "threads", *_LENGTHS, *_INTERVALS)
_FROM_ZERO = ("lr", "lr_ratio", "solved")
# for each numeric option: the condition that error messages state, and the bounds
_BOUNDS: dict[str, tuple[str, float, float]] = {
    **dict.fromkeys(_COUNTS, ("at least 1", 1, math.inf)),
    **dict.fromkeys(_FROM_ZERO, (f"a number from 0 to {LARGEST:g}", 0, LARGEST)),
    "clip_norm": (f"a positive number up to {LARGEST:g}", SMALLEST, LARGEST),
    "solved_for": ("at least 0", 0, math.inf),
    "seed": ("in [0, 2^31)", 0, 2**31 - 1),
}


@dataclass(frozen=True)
class Training:
    """How a network is trained; options left out have the paper's values, if any.

    Attributes:
        model: name of the network: exprnn, scornn, scurnn, urnn, rgd, eurnn,
            householder, spectral, lie, explstm, expgru, lstm or gru; or a class of your
            own, package.module:Class
        model_options: options of the network other than its sizes
        hidden_size: number of features of the hidden state
        batch_size: number of sequences per step, in all processes together
        iterations: number of steps of the optimizer
        epochs: number of passes over the data, as an alternative to `iterations`
        optimizer: a class of torch.optim or isometry.optim; replaces the paper's
            optimizers, except Riemannian gradient descent
        lr: learning rate
        lr_ratio: learning rate of the orthogonal weight, divided by `lr`
        decay: lower all learning rates to zero in the course of the run, along a cosine
            or a straight line; a run with decay must keep its number of steps
        clip_norm: scale the gradient of all parameters down to this norm if its norm is
            larger
        retraction: map along which a Riemannian optimizer moves a weight; replaces the
            paper's map
        seed: seed of the initial weights and of the batches
        solved: if data is endless, stop when the validation loss is below this fraction
            of the baseline; 0 to never stop
        solved_for: number of steps for which the validation loss has to stay below the
            limit that `solved` sets, before the run stops
        log_every: number of steps between records of the training loss
        evaluate_every: number of steps between evaluations; by default an epoch, or 100
            if data is endless
        checkpoint_every: number of steps between checkpoints
        threads: number of torch threads; the last digits of results depend on this
            number
        device: device to train on, cpu or cuda
        tensorboard: write events for TensorBoard, too
    """

    model: str = "exprnn"
    model_options: dict[str, Any] = field(default_factory=dict)
    hidden_size: int | None = None
    batch_size: int = 128
    iterations: int | None = None
    epochs: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    lr_ratio: float | None = None
    decay: Literal["cosine", "linear"] | None = None
    clip_norm: float | None = None
    retraction: str | None = None
    seed: int = 5544
    solved: float = 0.01
    solved_for: int = 0
    log_every: int = 10
    evaluate_every: int | None = None
    checkpoint_every: int = 100
    threads: int | None = None
    device: str = "cpu"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        check_types(type(self), vars(self))
        for name, (condition, least, largest) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= largest:
                raise ValueError(f"`{name}` must be {condition}; got {value}.")
        if self.iterations is not None and self.epochs is not None:
            raise ValueError(
                f"`iterations` and `epochs` must not both be given; got "
                f"{self.iterations} and {self.epochs}. Leave one out."
            )


@dataclass(frozen=True, kw_only=True)
class ResolvedTraining(Training):
    """A `Training` in which `Config.resolved` has filled in the missing numbers.

    The attributes are those of `Training`. The four below cannot be None.
    """

    # `field()` removes the default None of `Training`
    hidden_size: int = field()
    iterations: int = field()
    evaluate_every: int = field()
    threads: int = field()


def check_changes(options: Iterable[str]) -> None:
    """Raise a `ValueError` if one of these options may not change in a resumed run."""
    if refused := [name for name in options if name not in CHANGEABLE]:
        reasons = {n: _REASONS.get(n, "it defines the run") for n in refused}
        raise ValueError(
            f"a resumed run must keep all options except "
            f"{', '.join(f'`{name}`' for name in CHANGEABLE)}; got "
            f"{', '.join(f'`{name}` ({why})' for name, why in reasons.items())}. "
            f"Leave these out, or begin another run."
        )


@dataclass(frozen=True)
class Config:
    """The description of a run, as stored in `config.json`.

    Attributes:
        task: name of the task, or its class as package.module:Class.
        task_options: the fields of the task.
        training: how the network is trained.
        command: the command line that repeats the run; empty for a run from Python.
        recipe: record of the recipe: the options of the network, including the defaults
            in the signature of its constructor, and the options that its optimizers
            were given. A resumed or loaded run uses these options of the network, even
            if the defaults have changed since. The defaults of the optimizers are not
            recorded here, because the checkpoint contains them.
        about: the fields of the task's `TaskDescription`, for reports.
        continued: each step at which the run was resumed with options, and the options.
    """

    task: str
    task_options: dict[str, Any]
    training: Training
    command: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    continued: Sequence[dict[str, Any]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.training, Training):
            raise TypeError(
                f"`training` must be a `Training`; got {type(self.training).__name__}. "
                f"Write `Training(model=..., lr=...)`."
            )

    @property
    def short_name(self) -> str:
        """Task, network and size, as in the name of a folder: copying-exprnn-190."""
        # shorten the name of a user's own class, package.module:Class, to Class
        names = [name.rpartition(":")[2] for name in (self.task, self.training.model)]
        return f"{'-'.join(names)}-{self.training.hidden_size}"

    def to_json(self) -> bytes:
        """The config as a flat JSON object; the fields of `training` are not nested."""
        flat = {"format": FORMAT, "task": self.task, "task_options": self.task_options}
        flat |= asdict(self.training)
        flat |= {"command": self.command, "recipe": self.recipe}
        # leave out `about` and `continued` if empty, as earlier versions did
        optional = {"about": self.about, "continued": self.continued}
        flat |= {name: value for name, value in optional.items() if value}
        return (json.dumps(flat, indent=2) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read a config from JSON, as `to_json` writes it."""
        flat = json.loads(text)
        if not flat.get("format", 1) <= FORMAT:
            raise ValueError(
                f"format {flat['format']} of a later version of isometry; this version "
                f"reads formats up to {FORMAT}"
            )
        # `to_json` always writes a command, so a file without one is damaged
        entries = select(cls, flat) | {"command": flat["command"]}
        for name, kind in _JSON_TYPES.items():
            if not isinstance(value := entries.get(name, kind()), kind):
                raise TypeError(f"{name} {value!r:.60}")
        continued = entries.get("continued", [])
        if not all(isinstance(entry, dict) for entry in continued):
            raise TypeError(f"continued {continued!r:.60}")
        entries["training"] = Training(**select(Training, flat))
        return cls(**entries)

    def changed(self, options: Mapping[str, Any]) -> Self:
        """The config with new values of options, for a run that is resumed.

        Args:
            options: new values of fields of `Training`, keyed by name.

        Returns:
            The new config. Its command repeats the whole run from the beginning.

        Raises:
            ValueError: if an option may not change, or its value is invalid.
        """
        if not options:
            return self
        check_changes(options)
        changes = dict(options)
        if options.keys() & _LENGTHS:
            # a new length, in iterations or in epochs, replaces the old length
            changes = dict.fromkeys(_LENGTHS) | changes
        training = replace(self.training, **changes)
        if not self.command:
            return replace(self, training=training)
        words = _without(changes, shlex.split(self.command))
        for name, value in options.items():
            words += spell(name, value)
        return replace(self, training=training, command=shlex.join(words))

    def resolved(
        self, recipe: "Recipe", epoch: int | None, threads: int
    ) -> ResolvedTraining:
        """How the network is trained, with numbers for options that were left out.

        Args:
            recipe: how the network is made, with its size and its default number of
                steps or epochs.
            epoch: number of batches in an epoch; None if the data is endless.
            threads: number of threads that torch uses.

        Returns:
            The training. Its `epochs` is None, because `iterations` has the number of
            steps in these epochs.

        Raises:
            ValueError: if the config has `epochs`, but the data is endless.
        """
        before = self.training
        if before.epochs is not None and epoch is None:
            raise ValueError(
                f"`epochs` must be left out if data is endless; got {before.epochs} "
                f"for {self.task}. Give `iterations` instead."
            )
        iterations = before.iterations or recipe.iterations or 1000
        if before.iterations is None and epoch is not None:
            iterations = epoch * (before.epochs or recipe.epochs or 1)
        numbers: dict[str, int] = {
            "iterations": iterations,
            "hidden_size": recipe.hidden_size,
            "threads": before.threads or threads,
            "evaluate_every": before.evaluate_every or epoch or 100,
        }
        values: dict[str, Any] = {**vars(before), "epochs": None, **numbers}
        return ResolvedTraining(**values)


def _without(names: Iterable[str], words: Iterable[str]) -> list[str]:
    """The words of a command line, without the named options and their values."""
    spellings = {word for n in names for word in (option_of(n), *spell(n, False))}
    rest, keep = list[str](), True
    for word in words:
        # the values of an option are the words up to the next option
        if word.startswith("--"):
            keep = word not in spellings
        if keep:
            rest.append(word)
    return rest


def read_config(folder: Path) -> Config:
    """Read the config of a run from its folder."""
    try:
        return Config.from_json((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        raise RunError(
            f"{folder} must be the folder of a run; it has no {CONFIG}. Give the path "
            f"that `isometry train` printed."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(damaged(folder / CONFIG, repr(error))) from error
