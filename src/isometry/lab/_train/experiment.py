"""From a config to what is trained: task, network and optimizers."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import isometry.optim
from isometry.lab._options import make, suggestion
from isometry.lab._train.config import Config, Training
from isometry.lab.paper.model import SequenceModel
from isometry.lab.paper.networks import Recipe, by_name
from isometry.lab.paper.training import ENTRIES, OptimizerRecipe
from isometry.lab.task import Task
from isometry.lab.tasks import TASKS
from isometry.linalg import skew
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
    task: Task
    recipe: Recipe
    model: SequenceModel
    optimizers: Sequence[Optimizer]


def build(config: Config, device: torch.device) -> Experiment:
    """Make everything, as training begins.

    Args:
        config: the run.
        device: of the model.

    Returns:
        The experiment.

    Raises:
        ValueError: if the task, the network, the optimizer or an option is unknown.
    """
    task, training = make_task(config), config.training
    check_model(training)
    # the sizes of the data come last: reading them may take a while
    recipe = by_name(
        training.model,
        task.recipe,
        training.hidden_size,
        input_size=task.input_size,
        output_size=task.output_size,
        **training.model_options,
    )
    recipe = replace(recipe, optimizers=tuple(_optimizers(recipe, training)))
    # torch's own layers draw from the global generator
    torch.manual_seed(training.seed)
    generator = torch.Generator().manual_seed(training.seed)
    model = _model(recipe, training, generator).to(device)
    resolved = config.resolved(
        epoch=task.epoch(training.batch_size),
        hidden_size=recipe.hidden_size,
        threads=torch.get_num_threads(),
    )
    resolved = replace(resolved, recipe=described(recipe, model))
    return Experiment(resolved, task, recipe, model, make_optimizers(recipe, model))


def check_model(training: Training) -> None:
    """Raise unless there is a network of that name, whose options are not its sizes.

    Args:
        training: names the network.

    Raises:
        ValueError: if it does not exist, or a size is among its options.
    """
    if training.model not in ENTRIES:
        raise ValueError(
            f"`model` must be one of {', '.join(ENTRIES)}; got {training.model!r}."
            f"{suggestion(training.model, ENTRIES)}"
        )
    if sizes := sorted(training.model_options.keys() & _SIZES):
        raise ValueError(
            f"`model_options` must leave the sizes alone; got {', '.join(sizes)}. The "
            f"task has those of inputs and outputs; that of the state is `hidden_size`."
        )


_SIZES = {"input_size", "output_size", "hidden_size"}
# what a network is given besides its options
_OTHERS = _SIZES | {"self", "mode", "generator", "device", "dtype"}


def _model(
    recipe: Recipe, training: Training, generator: torch.Generator
) -> SequenceModel:
    """The network; an option that it has not is named."""
    try:
        return recipe.model(generator=generator)
    except TypeError as error:
        options = training.model_options
        if not options:
            raise
        known = _options_of(training.model, recipe.task)
        unknown = [name for name in options if name not in known]
        reason = suggestion(unknown[0], known) if unknown else f" {error}."
        raise ValueError(
            f"`model_options` must be options of {recipe.name}; got "
            f"{', '.join(unknown or options)}.{reason} It has {', '.join(known)}."
        ) from error


def _options_of(name: str, task: str) -> list[str]:
    """What a network can be told, besides its sizes."""
    network = type(by_name(name, task, 2).model(device="meta").network)
    names: list[str] = []
    for kind in network.__mro__:
        signature = inspect.signature(kind.__init__).parameters.values()
        variable = [p.name for p in signature if p.kind is p.VAR_KEYWORD]
        names += [p.name for p in signature if p.kind is not p.VAR_POSITIONAL]
        # torch's own layers pass on what they are given to the class before
        if not variable:
            break
        names.remove(variable[0])
    return [name for name in names if name not in _OTHERS]


def make_task(config: Config) -> Task:
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


def make_optimizers(recipe: Recipe, model: SequenceModel) -> list[Optimizer]:
    """The optimizers of a recipe.

    Args:
        recipe: which ones, with which options.
        model: whose parameters they move.

    Returns:
        One for each that has something to move.

    Raises:
        ValueError: if a plain optimizer would move a weight off its manifold, or one
            does not take the parameters.
    """
    made = []
    for wanted, groups in recipe.groups(model):
        ours = getattr(isometry.optim, wanted.name, None)
        if ours is None and any("manifold" in group for group in groups):
            raise ValueError(
                f"`optimizer` must be one that moves on a manifold, as {recipe.name} "
                f"has a weight there; got {wanted.name}. Leave it out."
            )
        kind: Any = ours or getattr(torch.optim, wanted.name)
        try:
            made.append(kind(groups, **wanted.options))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"`optimizer` must be one that takes these parameters; got "
                f"{wanted.name}: {error}. Choose another, such as Adam."
            ) from error
    return made


def _optimizers(recipe: Recipe, training: Training) -> list[OptimizerRecipe]:
    """Those of the recipe, with what the user wants otherwise."""
    rest = next(made for made in recipe.optimizers if not made.parameters)
    lr = rest.options["lr"] if training.lr is None else training.lr
    found = []
    for made in recipe.optimizers:
        ratio = made.options["lr"] / rest.options["lr"]
        if made.parameters and training.lr_ratio is not None:
            ratio = training.lr_ratio
        # descent on a manifold has a rule of its own, which a name does not replace
        keep = training.optimizer is None or made.name == "RiemannianSGD"
        options = dict(made.options) if keep else {}
        name = made.name if keep else _known(training.optimizer or "")
        rate = made.options["lr"] if ratio * lr == made.options["lr"] else lr * ratio
        found.append(replace(made, name=name, options=options | {"lr": rate}))
    return found if training.retraction is None else _retracted(found, training)


def _retracted(
    recipes: Sequence[OptimizerRecipe], training: Training
) -> list[OptimizerRecipe]:
    """Optimizers whose steps on a manifold go by the retraction that was asked for."""
    if not any("retraction" in made.options for made in recipes):
        raise ValueError(
            f"`retraction` must be left out for {training.model}, which moves no "
            f"weight on a manifold; got {training.retraction!r}. Only rgd and spectral "
            f"take it."
        )
    return [
        replace(made, options={**made.options, "retraction": training.retraction})
        if "retraction" in made.options
        else made
        for made in recipes
    ]


def described(recipe: Recipe, model: SequenceModel) -> dict[str, Any]:
    """A recipe in full, for the record: defaults may change from version to version.

    Args:
        recipe: of a run.
        model: the network that it makes.

    Returns:
        Values that JSON can hold.
    """
    signature = inspect.signature(type(model.network).__init__)
    usual = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if isinstance(parameter.default, bool | int | float | str | None)
    }
    options = usual | dict(recipe.options)
    places = ("device", "dtype", "generator")
    return {
        "network": type(model.network).__name__,
        "options": {k: v for k, v in options.items() if k not in places},
        "optimizers": [
            {
                "name": made.name,
                "options": dict(made.options),
                "parameters": list(made.parameters),
            }
            for made in recipe.optimizers
        ],
        "clip_norm": recipe.clip_norm,
        "source": recipe.source,
    }


# it evaluates the loss several times a step; it wants sparse gradients
_OTHER = ("LBFGS", "SparseAdam")


def _known(name: str) -> str:
    found = getattr(torch.optim, name, None) or getattr(isometry.optim, name, None)
    known = isinstance(found, type) and issubclass(found, Optimizer)
    if known and name in _OTHER:
        raise ValueError(
            f"`optimizer` must need no more than gradients that are dense; got {name}. "
            f"Choose another, such as Adam."
        )
    if not known:
        names = [n for n in (*dir(torch.optim), *dir(isometry.optim)) if n[0].isupper()]
        raise ValueError(
            f"`optimizer` must be a class of torch.optim or isometry.optim, such as "
            f"Adam; got {name!r}.{suggestion(name, names)} Mind the capitals."
        )
    return name


@torch.no_grad()
def recurrent_map(model: SequenceModel) -> Tensor | None:
    """The matrix that the first layer applies to its state.

    Args:
        model: a network with its output layer.

    Returns:
        The matrix (n, n), that of the first gate if there are several; None for
        torch's layers.
    """
    cells = getattr(model.network, "cells", None)
    if cells is None:
        return None
    cell: Any = cells[0]
    if not hasattr(cell, "state_map"):
        W = cell.weight_hh.detach()
        return W if W.ndim == 2 else W[0]
    state = cell.first_state(1)
    eye = torch.eye(state.shape[-1], dtype=state.dtype, device=state.device)
    return cell.state_map()(eye).mT


@torch.no_grad()
def orthogonality(model: SequenceModel) -> float | None:
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
def largest_angle(model: SequenceModel) -> float | None:
    r"""Largest angle of the coordinates $A$ of the first constrained weight.

    The exponential is one to one while it is below $\pi$: the domain $V$ of the paper.

    Args:
        model: a network with its output layer.

    Returns:
        The angle; None if no weight is made by an exponential, or it is not finite.
    """
    for found in constrained(model):
        A = found.coordinates.detach()
        square = A.shape[-1] == A.shape[-2]
        is_exp = square and found.constraint.map_name == "exp"
        if not is_exp or not bool(A.isfinite().all()):
            return None
        return float(torch.linalg.eigvalsh(-1j * skew(A)).abs().max())
    return None


@torch.no_grad()
def angles(model: SequenceModel) -> list[float]:
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
