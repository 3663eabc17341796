"""From a config to what is trained: task, network and optimizers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import isometry.optim
from isometry.lab._task import Task
from isometry.lab.tasks import TASKS
from isometry.lab.train._config import Config, Training
from isometry.lab.train._options import make
from isometry.nn import by_name
from isometry.nn._recipes import OptimizerRecipe
from isometry.nn._registry import Recipe
from isometry.nn._sequence_model import SequenceModel


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
    _check_options(training)
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
    model = _model(recipe, generator).to(device)
    resolved = config.resolved(
        epoch=task.epoch(training.batch_size),
        hidden_size=recipe.hidden_size,
        threads=torch.get_num_threads(),
    )
    return Experiment(resolved, task, recipe, model, make_optimizers(recipe, model))


def _check_options(training: Training) -> None:
    sizes = training.model_options.keys() & {"input_size", "output_size", "hidden_size"}
    if sizes:
        raise ValueError(
            f"`model_options` must leave the sizes alone; got {', '.join(sizes)}. The "
            f"task has those of inputs and outputs; that of the state is `hidden_size`."
        )


def _model(recipe: Recipe, generator: torch.Generator) -> SequenceModel:
    """The network; an option that it has not is named."""
    try:
        return recipe.model(generator=generator)
    except TypeError as error:
        raise ValueError(
            f"`model_options` must be options of {recipe.name}; got "
            f"{', '.join(recipe.options)}: {error}. The documentation of `isometry.nn` "
            f"lists them."
        ) from error


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
            f"`task` must be one of {', '.join(TASKS)}; got {config.task!r}. Choose "
            f"one of them."
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
    return found


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
        raise ValueError(
            f"`optimizer` must be a class of torch.optim or isometry.optim, such as "
            f"Adam; got {name!r}. Mind the capitals."
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
