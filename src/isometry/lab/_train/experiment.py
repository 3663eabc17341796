"""Makes the task, the network and the optimizers that a config describes."""

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

import isometry.optim
from isometry.lab._errors import require_traceback
from isometry.lab._options import Registry, make, suggestion
from isometry.lab._train.config import Config, ResolvedTraining, Training
from isometry.lab.network import OptimizerRecipe, Recipe, Schedule, network_of
from isometry.lab.paper import networks
from isometry.lab.paper.networks import NETWORKS
from isometry.lab.task import AbstractTask
from isometry.lab.tasks import TASKS
from isometry.optim import RiemannianSGD

# whether any class that is not registered may be imported, or the names of the classes
# that may be imported
Trust = bool | Collection[str]
Own = TypeVar("Own", bound=type)


def register(cls: Own, name: str | None = None) -> Own:
    """Register your own task or network by name, for configs and the command line.

    The function can be used as a decorator. The runs of a registered class can be
    resumed and loaded without `trust`: you have imported the class yourself, so the
    files of a run do not decide which code is imported.

    Args:
        cls: a task, which derives from `AbstractTask`, or a network, which derives
            from `torch.nn.Module`.
        name: the name to register. If None, this is the attribute `name` of a task that
            has one, and otherwise the name of the class.

    Returns:
        The class itself.

    Raises:
        TypeError: if the class is neither a task nor a network, or lacks something that
            it must define, or defines it with the wrong type.
        ValueError: if isometry itself uses the name, if a field of the task has a type
            that no option can have, or if the network's constructor cannot be called
            with only an input size and a hidden size (and perhaps an output size).
    """
    kind: Any = cls
    registry: Registry[Any] = TASKS
    usual = getattr(kind, "name", "") or getattr(kind, "__name__", "")
    if isinstance(kind, type) and issubclass(kind, nn.Module):
        registry, usual = NETWORKS, kind.__name__
    registry.add(name or usual, kind)
    registry.add(f"{kind.__module__}:{kind.__qualname__}", kind)
    return cls


@dataclass(frozen=True)
class Experiment:
    """Everything that training needs, made from a config.

    Attributes:
        config: config of the run, which `train` writes to the run's folder.
        training: how the model is trained; the same object as `config.training`.
        task: the source of the batches.
        recipe: how the network is made and trained.
        model: the network with its output layer.
        optimizers: optimizers of the model; each updates some of the parameters.
    """

    config: Config
    training: ResolvedTraining
    task: AbstractTask
    recipe: Recipe
    model: nn.Module
    optimizers: Sequence[Optimizer]


def build(config: Config, device: torch.device, *, trust: Trust = True) -> Experiment:
    """Make the task, the network with its initial weights, and the optimizers.

    Args:
        config: config of the run.
        device: device of the model.
        trust: True to import any class that is not registered, or the names of the
            classes that may be imported.

    Returns:
        The experiment.

    Raises:
        TypeError: if a user's own class is unsuitable, or the task lacks an option that
            has no default.
        ValueError: if the task, the network, the optimizer or an option is unknown or
            unsuitable.
    """
    task, recipe, model = make_model(config, trust=trust)
    model = model.to(device)
    # call `_epoch` only after the checks in `make_model`, since the task may have to
    # read its data, which takes a long time
    epoch = _epoch(task, config.training.batch_size)
    training = config.resolved(recipe, epoch, torch.get_num_threads())
    record = _record(recipe, model, training.model)
    about = asdict(task.about())
    config = replace(config, training=training, recipe=record, about=about)
    optimizers = recipe.make_optimizers(model)
    return Experiment(config, training, task, recipe, model, optimizers)


def _epoch(task: AbstractTask, size: int) -> int | None:
    """Call `task.epoch`, and check that it returns a number of batches or None."""
    epoch: Any = task.epoch(size)
    if epoch is not None and (not isinstance(epoch, int) or epoch < 1):
        raise ValueError(
            f"`epoch` of {type(task).__name__} must return a whole number of batches, "
            f"at least 1, or None if its data is endless; got {epoch!r} for batches of "
            f"{size}. Round up, as `-(-examples // size)` does."
        )
    return epoch


def make_model(
    config: Config, *, trust: Trust
) -> tuple[AbstractTask, Recipe, nn.Module]:
    """Make the task of a run, and its network with initial weights.

    This sets torch's global seed to the seed of the run.

    Args:
        config: config of the run.
        trust: which classes may be imported, as in `build`.

    Returns:
        The task, the recipe of the network, and the network.

    Raises:
        TypeError: if a user's own class is unsuitable, or the task lacks an option that
            has no default.
        ValueError: if the task, the network, the optimizer or an option is unknown or
            unsuitable.
    """
    task, training = make_task(config, trust=trust), config.training
    check_model(training, trust=trust)
    # The recipe in the config of a resumed or loaded run has the network's options. Use
    # these options, because the defaults may have changed since the run was started.
    options: dict[str, Any] = config.recipe.get("options", {}) | training.model_options
    if training.model in NETWORKS.ours:
        options = {_RENAMED.get(name, name): value for name, value in options.items()}
    recipe = networks.recipe_for(training.model, task, training.hidden_size, **options)
    recipe = _with_training_options(recipe, training)
    model = _model(recipe, training, task)
    # only the class of a user's own network can have the attribute `schedule`
    if hasattr(type(network_of(model)), "schedule"):
        _check_parameters(recipe, model)
    return task, recipe, model


def _check_parameters(recipe: Recipe, model: nn.Module) -> None:
    """Raise if the schedule of a user's network names parameters that do not exist."""
    paths = [path for path, _ in model.named_parameters()]
    for optimizer in recipe.schedule.optimizers:
        for name in optimizer.parameters:
            one = replace(optimizer, parameters=(name,))
            if not any(map(one.names_parameter, paths)):
                raise ValueError(
                    f"`parameters` in the schedule of {recipe.name} must be parameters "
                    f"of the network; got {name!r}. It has {', '.join(paths)}."
                )


def check_model(training: Training, *, trust: Trust) -> None:
    """Raise an error if the network is unknown or an option of it is set elsewhere.

    The task and other options decide some options of a network, such as its sizes.

    Args:
        training: holds the name of the network and its options, `model_options`.
        trust: which classes may be imported, as in `build`.

    Raises:
        TypeError: if a user's own class is unsuitable.
        ValueError: if the network is unknown or unsuitable, or if `model_options` has
            an option that is set elsewhere.
    """
    NETWORKS.find(training.model, trust=trust)
    if names := sorted(training.model_options.keys() & _decided(training.model)):
        raise ValueError(
            f"`model_options` must not include what the task or another option "
            f"decides; got {', '.join(names)}. Leave it out; `hidden_size` and "
            f"`device` are options of their own."
        )


# Options of networks that were renamed: the new names, keyed by the old names. The
# configs of old runs still have the old names.
_RENAMED = {"orthogonal_map": "retraction"}
_SIZES = {"input_size", "output_size", "hidden_size"}
# further parameters of a network's constructor that are not options for the user
_OTHERS = {"self", "generator", "device", "dtype"}
# Options that change the layout or the size of inputs or outputs. A user cannot set
# them, because tasks put time first, and the output layer reads states of `hidden_size`
# features. torch's layers pass their `mode` to their base class themselves.
_LAYOUT = {"batch_first", "last_only", "bidirectional", "proj_size", "mode"}


def _decided(name: str) -> set[str]:
    """The parameters of a network's constructor that the user may not set."""
    # in a user's own network, names in `_OTHERS` and `_LAYOUT` may mean other things
    return _SIZES | (_OTHERS | _LAYOUT if name in NETWORKS.ours else set())


def _model(recipe: Recipe, training: Training, task: AbstractTask) -> nn.Module:
    """Make the network. An error about unknown options lists the valid options."""
    # Set the global seed, too: torch's layers and users' networks draw their initial
    # weights from the global generator.
    torch.manual_seed(training.seed)
    try:
        return recipe.make_model(generator=torch.Generator().manual_seed(training.seed))
    except (TypeError, ValueError, RuntimeError) as error:
        options = training.model_options
        if not options and training.model not in NETWORKS.ours:
            # the error is in the user's class, not in an option
            require_traceback(error, f"raised by the constructor of {training.model}")
        if not options or isinstance(error, ValueError):
            raise
        names = _options_of(training.model, task)
        unknown = [name for name in options if name not in {*names, *_RENAMED}]
        reason = suggestion(unknown[0], names) if unknown else f" {error}."
        raise ValueError(
            f"`model_options` must be options of {recipe.name}; got "
            f"{', '.join(unknown or options)}.{reason} It has "
            f"{', '.join(names) or 'no options'}."
        ) from error


# the kinds of the parameters *args and **kwargs
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _options_of(name: str, task: AbstractTask) -> list[str]:
    """Names of the options of a network that the user may set."""
    model = networks.recipe_for(name, task, 2).make_model(device="meta")
    network = type(network_of(model))
    names: list[str] = []
    for kind in network.__mro__:
        parameters = inspect.signature(kind.__init__).parameters.values()
        names += [p.name for p in parameters if p.kind not in _VARIABLE]
        # A class with **kwargs, such as a torch layer, passes further options on to its
        # base class. Any other class has no further options, so stop there.
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return [n for n in dict.fromkeys(names) if n not in _OTHERS | _decided(name)]


def make_task(config: Config, *, trust: Trust) -> AbstractTask:
    """Make the task that a config names.

    Args:
        config: config of the run.
        trust: which classes may be imported, as in `build`.

    Returns:
        The task.

    Raises:
        ValueError: if the task is unknown or may not be imported, or if one of its
            options is unknown or invalid.
        TypeError: if the class is not a task, or an option without a default is
            missing.
    """
    return make(TASKS.find(config.task, trust=trust), config.task_options)


def cosine(done: float) -> float:
    r"""The decay $(1 + \cos \pi x) / 2$ at $x$ = `done`: half a cosine from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


def linear(done: float) -> float:
    """The decay $1 - x$ at $x$ = `done`: a straight line from 1 to 0."""
    return 1 - done


# For each value of the option `decay`, the factor for all learning rates as a function
# of the fraction of the run that is done. The paper keeps the rates constant.
DECAYS: dict[str, Callable[[float], float]] = {"cosine": cosine, "linear": linear}


def _with_training_options(recipe: Recipe, training: Training) -> Recipe:
    """The recipe with the user's training options in place of the paper's."""
    usual = recipe.schedule
    rows = []
    for row in usual.optimizers:
        optimizer_class, options = row.optimizer_class, dict(row.options)
        # RiemannianSGD moves a weight along its manifold, with its own update rule, so
        # the option `optimizer` does not replace it.
        moves = issubclass(optimizer_class, RiemannianSGD)
        if training.optimizer is not None and not moves:
            optimizer_class, options = _optimizer_class(training.optimizer), {}
        if training.retraction is not None and "retraction" in options:
            options["retraction"] = training.retraction
        options["lr"] = _rate(row, usual, training)
        rows.append(replace(row, optimizer_class=optimizer_class, options=options))
    retracts = any("retraction" in row.options for row in rows)
    if training.retraction is not None and not retracts:
        raise ValueError(
            f"`retraction` must be left out for {training.model}, since none of its "
            f"optimizers uses a retraction; got {training.retraction!r}."
        )
    schedule = replace(
        usual,
        optimizers=tuple(rows),
        clip_norm=training.clip_norm or usual.clip_norm,
        decay=usual.decay if training.decay is None else DECAYS[training.decay],
    )
    return replace(recipe, schedule=schedule)


def _rate(row: OptimizerRecipe, usual: Schedule, training: Training) -> float:
    """The learning rate of an optimizer, with the user's `lr` and `lr_ratio`.

    A new `lr` changes all rates by the same factor, except rates that `lr_ratio` sets.
    """
    rest = next(row for row in usual.optimizers if not row.parameters)
    before = rest.options["lr"]
    lr = before if training.lr is None else training.lr
    if row is rest:
        return lr
    if lr == before and training.lr_ratio is None:
        # the formula at the end would round the rate, and divide by 0 if `before` is 0
        return row.options["lr"]
    if before == 0 and (training.lr is None or training.lr_ratio is None):
        only = "lr" if training.lr_ratio is None else "lr_ratio"
        raise ValueError(
            f"`lr` and `lr_ratio` must be passed together for {training.model}, since "
            f"its schedule has a rate of 0; got only `{only}`."
        )
    if training.lr_ratio is not None:
        return lr * training.lr_ratio
    return lr * (row.options["lr"] / before)


def _record(recipe: Recipe, model: nn.Module, name: str) -> dict[str, Any]:
    """The recipe as stored in `config.json`, with the network's current defaults."""
    network = network_of(model)
    parameters = inspect.signature(type(network).__init__).parameters.values()
    plain = int | float | str | None
    usual = {p.name: p.default for p in parameters if isinstance(p.default, plain)}
    options = usual | dict(recipe.options)
    omitted = _OTHERS | _decided(name)
    decay = recipe.schedule.decay
    return {
        "network": type(network).__name__,
        "options": {k: v for k, v in options.items() if k not in omitted},
        "optimizers": [
            {
                "name": row.optimizer_class.__name__,
                "options": dict(row.options),
                "parameters": list(row.parameters),
            }
            for row in recipe.schedule.optimizers
        ],
        "clip_norm": recipe.schedule.clip_norm,
        "decay": None if decay is None else getattr(decay, "__name__", repr(decay)),
        "source": recipe.schedule.source,
    }


# Optimizers that the training loop cannot use: LBFGS evaluates the loss several times
# in a step, and SparseAdam needs sparse gradients.
_UNSUITABLE = ("LBFGS", "SparseAdam")


def _optimizer_class(name: str) -> type[Optimizer]:
    """The optimizer class with this name, from torch or isometry."""
    kind: Any = getattr(torch.optim, name, None) or getattr(isometry.optim, name, None)
    is_optimizer = isinstance(kind, type) and issubclass(kind, Optimizer)
    if not is_optimizer:
        names = {n for n in (*dir(torch.optim), *dir(isometry.optim)) if n[0].isupper()}
        # do not suggest a class that is refused below or by `Recipe.make_optimizers`
        names -= {*_UNSUITABLE, "Muon", "Optimizer"}
        raise ValueError(
            f"`optimizer` must be a class of torch.optim or isometry.optim, such as "
            f"Adam; got {name!r}.{suggestion(name, sorted(names))}"
        )
    if name in _UNSUITABLE:
        raise ValueError(
            f"`optimizer` must make each step from one dense gradient; got "
            f"{name}. Choose another, such as Adam."
        )
    return kind
