"""The networks of the paper by name, as they were trained on each task."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from isometry.groups import AbstractManifold, manifold_of
from isometry.lab.paper.model import SequenceModel
from isometry.lab.paper.training import ENTRIES, TASKS, Entry, OptimizerRecipe, Task
from isometry.nn._draw import Draw
from isometry.nn._householder_rnn import HouseholderRNN


@dataclass(frozen=True)
class Recipe:
    """A network as it is trained on a task.

    Attributes:
        name: of the network.
        task: "copying", "mnist", "pmnist", "timit" or "adding".
        hidden_size: features of the state.
        sizes: inputs and outputs, and whether one answer is due at the end.
        options: of the network, besides its sizes.
        optimizers: each with the parameters that it moves.
        source: where the numbers come from.
        clip_norm: largest norm of the gradient of all parameters, if it is clipped.
    """

    name: str
    task: str
    hidden_size: int
    sizes: Task
    options: Mapping[str, Any]
    optimizers: tuple[OptimizerRecipe, ...]
    source: str
    clip_norm: float | None
    entry: Entry = field(repr=False)

    def model(
        self,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> SequenceModel:
        """The network with its output layer, as training begins.

        Args:
            device: of the parameters.
            dtype: of the parameters, real; complex ones have the complex of it.
            generator: source of their first values.

        Returns:
            The model.
        """
        task, draw = self.sizes, Draw(device, dtype, generator)
        network = self.entry.network(task, self.hidden_size, dict(self.options), draw)
        is_complex = any(p.is_complex() for p in network.parameters())
        both = is_complex and self.entry.parts == "both"
        features = self.hidden_size * (2 if both else 1)
        output = self.entry.output(self.task, task, features)
        return SequenceModel(
            network,
            output.layer(features, task.outputs, draw),
            parts=self.entry.parts,
            last_only=task.last_only,
        )

    def groups(
        self, model: nn.Module
    ) -> list[tuple[OptimizerRecipe, list[dict[str, Any]]]]:
        """For each optimizer its groups of parameters.

        Those that live on a manifold have a group of their own, which names it.

        Args:
            model: what `model` returned.

        Returns:
            Pairs of an optimizer and its groups, without those that move nothing.
        """
        special = {name for made in self.optimizers for name in made.parameters}
        found = []
        for made in self.optimizers:
            groups: list[dict[str, Any]] = []
            for path, p in model.named_parameters():
                names = special.intersection(path.split("."))
                mine = names & set(made.parameters) if names else not made.parameters
                if p.requires_grad and mine:
                    _add(groups, p, _manifold(model, path))
            if groups:
                found.append((made, groups))
        return found

    def after_step(self, model: SequenceModel) -> None:
        """What the authors do after each step: unit vectors of reflections.

        Args:
            model: what `model` returned.
        """
        if isinstance(model.network, HouseholderRNN):
            model.network.renormalize_()


def by_name(
    name: str,
    task: str,
    hidden_size: int | None = None,
    *,
    input_size: int | None = None,
    output_size: int | None = None,
    **options: Any,
) -> Recipe:
    """A network of the paper, as it was trained on a task.

    Args:
        name: "exprnn", "scornn", "scurnn", "urnn", "rgd", "eurnn", "householder",
            "spectral", "lie", "explstm", "expgru", "lstm" or "gru".
        task: "copying", "mnist", "pmnist", "timit" or "adding".
        hidden_size: features of the state; the first of the paper's tables if None.
        input_size: features or classes of an input; those of the task if None.
        output_size: features of an output; those of the task if None.
        **options: of the network, instead of those of the task.

    Returns:
        The recipe: `model()`, its optimizers and what follows a step.

    Raises:
        ValueError: if there is no such network or task, or a size is not positive.
    """
    _check_known("name", name, ENTRIES)
    _check_known("task", task, TASKS)
    entry = ENTRIES[name]
    size = entry.sizes[task][0] if hidden_size is None else hidden_size
    training = entry.training(task, size)
    sizes = _sized(TASKS[task], input_size, output_size)
    return Recipe(
        name=name,
        task=task,
        hidden_size=size,
        sizes=sizes,
        options={**entry.options(task, size), **options},
        optimizers=training.optimizers,
        source=training.source,
        clip_norm=training.clip_norm,
        entry=entry,
    )


def _sized(task: Task, inputs: int | None, outputs: int | None) -> Task:
    """A task with other sizes than the paper's, where they are given."""
    found = replace(
        task,
        inputs=task.inputs if inputs is None else inputs,
        outputs=task.outputs if outputs is None else outputs,
    )
    if min(found.inputs, found.outputs) < 1:
        raise ValueError(
            f"`input_size` and `output_size` must be at least 1; got {found.inputs} "
            f"and {found.outputs}. Leave them out for the paper's."
        )
    return found


def _manifold(model: nn.Module, path: str) -> AbstractManifold | None:
    owner, _, name = path.rpartition(".")
    return manifold_of(model.get_submodule(owner), name)


def _add(
    groups: list[dict[str, Any]], p: nn.Parameter, manifold: AbstractManifold | None
) -> None:
    """Put a parameter where those of its manifold are."""
    for group in groups:
        if group.get("manifold") == manifold:
            group["params"].append(p)
            return
    groups.append({"params": [p], **({"manifold": manifold} if manifold else {})})


def _check_known(what: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ValueError(
            f"`{what}` must be one of {', '.join(map(repr, known))}; got {name!r}. "
            f"Choose one of them."
        )
