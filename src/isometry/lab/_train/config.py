"""What a run is: a task, a network, and how it is trained."""

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from isometry.lab._options import make

# format of `config.json` and the files beside it; it grows when something in them
# changes its meaning. Folders without a number are of format 1, which had no recipe.
FORMAT = 2

# The largest rate, and the largest ratio of two rates. Optimizers divide the product of
# both by numbers such as 0.001, and torch raises where the result is no float32, from
# 3.4e38 on.
LARGEST = 1e15


@dataclass(frozen=True)
class Training:
    """How a network is trained; options that are left out have the paper's values.

    Attributes:
        model: name of the network: exprnn, scornn, scurnn, urnn, rgd, eurnn,
            householder, spectral, lie, explstm, expgru, lstm or gru
        model_options: options of the network, besides its sizes
        hidden_size: features of the state
        batch_size: sequences a step, of all processes together
        iterations: steps of the optimizer
        epochs: passes over the data, instead of iterations
        optimizer: a class of torch.optim, instead of the paper's
        lr: learning rate
        lr_ratio: rate of the orthogonal weight as a part of lr
        retraction: map of the steps of a Riemannian optimizer, instead of the paper's
        seed: seed of the first weights and of the batches
        solved: stop when the validation loss is below this part of the baseline, if
            data is endless; 0 never stops
        solved_for: steps that the loss has to stay below before the run stops
        log_every: steps between records of the training loss
        evaluate_every: steps between evaluations; an epoch for finite data
        checkpoint_every: steps between checkpoints
        threads: of torch; numbers depend on it in their last bits
        device: cpu or cuda
        tensorboard: whether to write events for TensorBoard too
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
        counts = ("batch_size", "log_every", "checkpoint_every", "hidden_size")
        optional = ("iterations", "epochs", "evaluate_every", "threads")
        for name in (*counts, *optional):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(
                    f"`{name}` must be at least 1; got {value}. Leave it out for the "
                    f"usual one."
                )
        for name in ("lr", "lr_ratio", "solved"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= LARGEST:
                raise ValueError(
                    f"`{name}` must be a number from 0 to {LARGEST:g}; got {value}. "
                    f"Leave it out for the usual one."
                )
        if self.solved_for < 0:
            raise ValueError(
                f"`solved_for` must be a number of steps; got {self.solved_for}. Use 0 "
                f"to stop at once."
            )
        if not 0 <= self.seed < 2**31:
            raise ValueError(
                f"`seed` must be in [0, 2^31); got {self.seed}. Choose another."
            )
        if self.iterations is not None and self.epochs is not None:
            raise ValueError(
                f"`iterations` and `epochs` must not both be given; got "
                f"{self.iterations} and {self.epochs}. Leave one out."
            )


@dataclass(frozen=True)
class Config:
    """A run, as `config.json` has it.

    Attributes:
        task: its name.
        task_options: the fields of the task.
        training: how its network is trained.
        command: what makes the same run again.
        recipe: what the names in `training` stand for: every option of the network and
            of its optimizers, whatever later versions take for granted.
    """

    task: str
    task_options: dict[str, Any]
    training: Training
    command: str = ""
    recipe: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """One flat object: the task, then the fields of the training."""
        flat = {"format": FORMAT, "task": self.task, "task_options": self.task_options}
        flat |= asdict(self.training) | {"command": self.command}
        flat |= {"recipe": self.recipe}
        return (json.dumps(flat, indent=2) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` has written."""
        flat = json.loads(text)
        if not flat.get("format", 1) <= FORMAT:
            raise ValueError(
                f"format {flat['format']}, of a later version of isometry than this, "
                f"which reads {FORMAT}"
            )
        if not isinstance(flat["task_options"], dict):
            raise TypeError(f"task_options {flat['task_options']!r:.60}")
        names = {f.name for f in fields(Training)}
        training = make(Training, {k: v for k, v in flat.items() if k in names})
        task, options, command = flat["task"], flat["task_options"], flat["command"]
        return cls(task, options, training, command, flat.get("recipe", {}))

    def resolved(
        self,
        *,
        epoch: int | None,
        hidden_size: int,
        threads: int,
        usual_iterations: int | None,
        usual_epochs: int | None,
    ) -> Self:
        """This run, with every number that a default stood for.

        Args:
            epoch: batches in an epoch, if data is finite.
            hidden_size: features of the state of the network.
            threads: threads of torch.
            usual_iterations: steps of the recipe, for endless data.
            usual_epochs: epochs of the recipe, for finite data.

        Returns:
            The run whose `config.json` says all.

        Raises:
            ValueError: if epochs are asked for and data is endless.
        """
        before = self.training
        epochs = before.epochs
        if epochs is not None and epoch is None:
            raise ValueError(
                f"`epochs` must be left out where data is endless; got {epochs} for "
                f"{self.task}. Say `iterations`."
            )
        if before.iterations is None and epochs is None and epoch is not None:
            epochs = usual_epochs or 1
        iterations = before.iterations or (
            epochs * epoch if epochs and epoch else usual_iterations or 1000
        )
        training = replace(
            before,
            iterations=iterations,
            epochs=None,
            hidden_size=hidden_size,
            threads=before.threads or threads,
            evaluate_every=before.evaluate_every or epoch or 100,
        )
        return replace(self, training=training)
