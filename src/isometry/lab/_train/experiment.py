"""From a config to what is trained: task, network and optimizers."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import isometry.optim
from isometry.groups import Exp
from isometry.lab._options import make, suggestion
from isometry.lab._train.config import Config, Training
from isometry.lab.paper.networks import NETWORKS, recipe
from isometry.lab.paper.training import OptimizerRecipe, Recipe
from isometry.lab.task import AbstractTask
from isometry.lab.tasks import TASKS
from isometry.linalg import skew
from isometry.nn._recurrent import AbstractRecurrent
from isometry.optim import RiemannianSGD
from isometry.parametrizations._constrained import constrained


@dataclass(frozen=True)
class Experiment:
    """What a config stands for.

    Attributes:
        config: with every number that a default stood for.
        task: where batches come from.
        recipe: how the network is made and trained.
        model: the network with its output layer.
        optimizers: each moves some of its parameters.
    """

    config: Config
    task: AbstractTask
    recipe: Recipe
    model: nn.Module
    optimizers: Sequence[Optimizer]


def build(config: Config, device: torch.device) -> Experiment:
    """Make everything, as training begins.

    Args:
        config: the run.
        device: device of the model.

    Returns:
        The experiment.

    Raises:
        ValueError: if the task, the network, the optimizer or an option is unknown.
    """
    task, training = make_task(config), config.training
    check_model(training)
    options = {_RENAMED.get(k, k): v for k, v in training.model_options.items()}
    wanted = recipe(training.model, task, training.hidden_size, **options)
    wanted = _adjusted(wanted, training)
    # torch's own layers draw from the global generator
    torch.manual_seed(training.seed)
    generator = torch.Generator().manual_seed(training.seed)
    model = _model(wanted, training, task, generator).to(device)
    resolved = config.resolved(
        # the sizes of the data come last: reading them may take a while
        epoch=task.epoch(training.batch_size),
        hidden_size=wanted.hidden_size,
        threads=torch.get_num_threads(),
        usual_iterations=wanted.iterations,
        usual_epochs=wanted.epochs,
    )
    resolved = replace(resolved, recipe=described(wanted, model))
    return Experiment(resolved, task, wanted, model, make_optimizers(wanted, model))


def check_model(training: Training) -> None:
    """Raise unless there is a network of that name, whose options are not its sizes.

    Args:
        training: names the network.

    Raises:
        ValueError: if it does not exist, or a size is among its options.
    """
    if training.model not in NETWORKS:
        raise ValueError(
            f"`model` must be one of {', '.join(NETWORKS)}; got {training.model!r}."
            f"{suggestion(training.model, NETWORKS)}"
        )
    if sizes := sorted(training.model_options.keys() & _SIZES):
        raise ValueError(
            f"`model_options` must leave the sizes alone; got {', '.join(sizes)}. The "
            f"task has those of inputs and outputs; that of the state is `hidden_size`."
        )


# options of networks by the names that recorded runs and their commands have for them
_RENAMED = {"orthogonal_map": "retraction"}
_SIZES = {"input_size", "output_size", "hidden_size"}
# what a network is given besides its options
_OTHERS = _SIZES | {"self", "mode", "generator", "device", "dtype"}


def _model(
    wanted: Recipe,
    training: Training,
    task: AbstractTask,
    generator: torch.Generator,
) -> nn.Module:
    """The network; an unknown option is named, with those that the network has."""
    try:
        return wanted.model(generator=generator)
    except TypeError as error:
        options = training.model_options
        if not options:
            raise
        names = _options_of(training.model, task)
        unknown = [name for name in options if name not in {*names, *_RENAMED}]
        reason = suggestion(unknown[0], names) if unknown else f" {error}."
        raise ValueError(
            f"`model_options` must be options of {wanted.name}; got "
            f"{', '.join(unknown or options)}.{reason} It has {', '.join(names)}."
        ) from error


def _options_of(name: str, task: AbstractTask) -> list[str]:
    """Names of the options of a network, besides its sizes."""
    network = type(recipe(name, task, 2).model(device="meta").network)
    names: list[str] = []
    for kind in network.__mro__:
        signature = inspect.signature(kind.__init__).parameters.values()
        variable = [p.name for p in signature if p.kind is p.VAR_KEYWORD]
        names += [p.name for p in signature if p.kind is not p.VAR_POSITIONAL]
        # torch's own layers pass their keywords on to the class before
        if not variable:
            break
        names.remove(variable[0])
    return [name for name in names if name not in _OTHERS]


def make_task(config: Config) -> AbstractTask:
    """The task of a config.

    Args:
        config: the run.

    Returns:
        The task.

    Raises:
        ValueError: if there is none of that name, or an option is not one of its own.
    """
    if config.task not in TASKS:
        raise ValueError(
            f"`task` must be one of {', '.join(TASKS)}; got {config.task!r}."
            f"{suggestion(str(config.task), TASKS)}"
        )
    return make(TASKS[config.task], config.task_options)


def make_optimizers(recipe: Recipe, model: nn.Module) -> list[Optimizer]:
    """Make the optimizers of a recipe.

    Args:
        recipe: which optimizers, with which options.
        model: the network whose parameters they move.

    Returns:
        An optimizer for each part of the recipe that has something to move.

    Raises:
        ValueError: if a plain optimizer would move a weight off its manifold, or one
            does not take the parameters.
    """
    optimizers = []
    for wanted, groups in recipe.groups(model):
        name, kind = wanted.kind.__name__, wanted.kind
        on_manifold = any(group["manifold"] is not None for group in groups)
        if on_manifold and not hasattr(isometry.optim, name):
            raise ValueError(
                f"`optimizer` must be one that moves on a manifold, as {recipe.name} "
                f"has a weight there; got {name}. Leave it out."
            )
        try:
            optimizers.append(kind(groups, **wanted.options))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`optimizer` must be one that takes these parameters; got "
                f"{name}: {error}. Choose another, such as Adam."
            ) from error
    return optimizers


def _adjusted(recipe: Recipe, training: Training) -> Recipe:
    """The recipe, with the optimizer, rates and retraction that the user wants."""
    rest = next(wanted for wanted in recipe.optimizers if not wanted.parameters)
    lr = rest.options["lr"] if training.lr is None else training.lr
    optimizers = []
    for wanted in recipe.optimizers:
        ratio = wanted.options["lr"] / rest.options["lr"]
        if wanted.parameters and training.lr_ratio is not None:
            ratio = training.lr_ratio
        # descent on a manifold has a rule of its own, which a name does not replace
        keep = training.optimizer is None or wanted.kind is RiemannianSGD
        options = dict(wanted.options) if keep else {}
        kind = wanted.kind if keep else _optimizer_class(training.optimizer or "")
        usual = wanted.options["lr"]
        rate = usual if ratio * lr == usual else lr * ratio
        optimizers.append(replace(wanted, kind=kind, options=options | {"lr": rate}))
    if training.retraction is not None:
        optimizers = _retracted(optimizers, training)
    schedule = replace(recipe.schedule, optimizers=tuple(optimizers))
    return replace(recipe, schedule=schedule)


def _retracted(
    recipes: Sequence[OptimizerRecipe], training: Training
) -> list[OptimizerRecipe]:
    """Optimizers whose steps on a manifold go by the retraction of the user."""
    if not any("retraction" in wanted.options for wanted in recipes):
        raise ValueError(
            f"`retraction` must be left out for {training.model}, which moves no "
            f"weight on a manifold; got {training.retraction!r}. Only rgd and spectral "
            f"take it."
        )
    return [
        replace(wanted, options={**wanted.options, "retraction": training.retraction})
        if "retraction" in wanted.options
        else wanted
        for wanted in recipes
    ]


def described(recipe: Recipe, model: Any) -> dict[str, Any]:
    """A recipe in full, for the record: defaults may change from version to version.

    Args:
        recipe: the recipe of a run.
        model: the network that it makes.

    Returns:
        Values that JSON can hold.
    """
    network = getattr(model, "network", model)
    signature = inspect.signature(type(network).__init__)
    usual = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.default, bool | int | float | str | None)
    }
    options = usual | dict(recipe.options)
    places = ("device", "dtype", "generator")
    return {
        "network": type(network).__name__,
        "options": {k: v for k, v in options.items() if k not in places},
        "optimizers": [
            {
                "name": wanted.kind.__name__,
                "options": dict(wanted.options),
                "parameters": list(wanted.parameters),
            }
            for wanted in recipe.optimizers
        ],
        "clip_norm": recipe.schedule.clip_norm,
        "source": recipe.schedule.source,
    }


# LBFGS evaluates the loss several times a step; SparseAdam wants sparse gradients
_UNSUITABLE = ("LBFGS", "SparseAdam")


def _optimizer_class(name: str) -> type[Optimizer]:
    """The class of a name that was typed: strings end here."""
    kind: Any = getattr(torch.optim, name, None)
    kind = kind or getattr(isometry.optim, name, None)
    is_optimizer = isinstance(kind, type) and issubclass(kind, Optimizer)
    if not is_optimizer:
        names = [n for n in (*dir(torch.optim), *dir(isometry.optim)) if n[0].isupper()]
        raise ValueError(
            f"`optimizer` must be a class of torch.optim or isometry.optim, such as "
            f"Adam; got {name!r}.{suggestion(name, names)}"
        )
    if name in _UNSUITABLE:
        raise ValueError(
            f"`optimizer` must need no more than dense gradients, one evaluation a "
            f"step; got {name}. Choose another, such as Adam."
        )
    return kind


@torch.no_grad()
def recurrent_map(model: nn.Module) -> Tensor | None:
    """The matrix that the first layer applies to its state.

    Args:
        model: a network with its output layer.

    Returns:
        The matrix (n, n), or the first of several if the cell has gates; None for
        torch's layers.
    """
    network = getattr(model, "network", model)
    if not isinstance(network, AbstractRecurrent):
        return None
    return network.typed_cells()[0].recurrent_matrix().detach()


@torch.no_grad()
def orthogonality(model: nn.Module) -> float | None:
    r"""$\lVert W^H W - I \rVert_F / \sqrt n$ of the first recurrent map.

    Args:
        model: a network with its output layer.

    Returns:
        The error; None for torch's layers, or if the map is not finite.
    """
    W = recurrent_map(model)
    if W is None or not bool(W.isfinite().all()):
        return None
    gram = W.mH @ W - torch.eye(len(W), dtype=W.dtype, device=W.device)
    return float(torch.linalg.matrix_norm(gram)) / len(W) ** 0.5


@torch.no_grad()
def largest_angle(model: nn.Module) -> float | None:
    r"""Largest angle of the coordinates $A$ of the first constrained weight.

    The exponential is one to one while it is below $\pi$: the domain $V$ of the paper.

    Args:
        model: a network with its output layer.

    Returns:
        The angle; None if no weight is made by an exponential, or it is not finite.
    """
    for entry in constrained(model):
        A = entry.coordinates.detach()
        square = A.shape[-1] == A.shape[-2]
        is_exp = square and entry.constraint.retraction == Exp()
        if not is_exp or not bool(A.isfinite().all()):
            return None
        return float(torch.linalg.eigvalsh(-1j * skew(A)).abs().max())
    return None


@torch.no_grad()
def angles(model: nn.Module) -> list[float]:
    """Angles of the eigenvalues of the first recurrent map, ascending.

    Args:
        model: a network with its output layer.

    Returns:
        The angles; none for torch's layers, or if the map is not finite.
    """
    W = recurrent_map(model)
    if W is None or not bool(W.isfinite().all()):
        return []
    return torch.linalg.eigvals(W.cpu()).angle().sort().values.tolist()
