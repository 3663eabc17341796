"""How the networks of the paper were trained, as data.

The numbers are from the authors' texts and programs; `Schedule.source` says whose, or
that nobody has published them and they are ours. Implementations of RMSprop differ
in ways that show: `isometry.optim.RiemannianRMSprop` has them all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Adam, Optimizer, RMSprop

from isometry.groups import AbstractManifold, manifold_of
from isometry.optim import RiemannianRMSprop, RiemannianSGD


@dataclass(frozen=True)
class OptimizerRecipe:
    """An optimizer, its options and the parameters that it moves.

    Attributes:
        kind: the class, of `torch.optim` or of `isometry.optim`.
        options: the arguments of the class.
        parameters: names of the parameters that it moves. If there are none, it moves
            every parameter that no other optimizer moves.
    """

    kind: type[Optimizer]
    options: Mapping[str, Any]
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """Optimizers of a network on a task, and where their numbers come from.

    Attributes:
        optimizers: each with the parameters that it moves.
        source: whose numbers they are.
        clip_norm: largest norm of the gradient of all parameters, if it is clipped.
        decay: the factor by which all rates are multiplied, as a function of the part
            of the run that is done, from 0 to 1. None keeps the rates constant.
    """

    optimizers: tuple[OptimizerRecipe, ...]
    source: str
    clip_norm: float | None = None
    decay: Callable[[float], float] | None = None


@dataclass(frozen=True)
class Recipe:
    """A network as it is trained on a task: all that a run needs to know about it.

    Attributes:
        name: name of the network.
        hidden_size: features of the state.
        model: makes the network with its output layer, as training begins. It takes as
            keywords `device`, the `dtype` of the real parameters, and `generator`, the
            source of the first values; all may be left out.
        options: options of the network, besides its sizes, for the record.
        schedule: its optimizers.
        after_step: called with the network after each step of the optimizers.
        iterations: the usual number of steps; None if it is a number of epochs.
        epochs: the usual number of passes over the data, if data is finite.
    """

    name: str
    hidden_size: int
    model: Callable[..., Any]
    options: Mapping[str, Any]
    schedule: Schedule
    after_step: Callable[[nn.Module], None] = lambda _model: None
    iterations: int | None = None
    epochs: int | None = None

    @property
    def optimizers(self) -> tuple[OptimizerRecipe, ...]:
        """The optimizers, each with the parameters that it moves."""
        return self.schedule.optimizers

    def groups(
        self, model: nn.Module
    ) -> list[tuple[OptimizerRecipe, list[dict[str, Any]]]]:
        """Pair each optimizer with its groups of parameters.

        Parameters that live on a manifold have a group of their own, which names it;
        the group of the others says None.

        Args:
            model: what `model` returned.

        Returns:
            Pairs of an optimizer and its groups. Optimizers that would move nothing are
            left out.
        """
        special = {name for wanted in self.optimizers for name in wanted.parameters}
        pairs = []
        for wanted in self.optimizers:
            groups: list[dict[str, Any]] = []
            for path, p in model.named_parameters():
                names = special.intersection(path.split("."))
                mine = (
                    names & set(wanted.parameters) if names else not wanted.parameters
                )
                if p.requires_grad and mine:
                    _add(groups, p, _manifold(model, path))
            if groups:
                pairs.append((wanted, groups))
        return pairs


def _manifold(model: nn.Module, path: str) -> AbstractManifold | None:
    owner, _, name = path.rpartition(".")
    return manifold_of(model.get_submodule(owner), name)


def _add(
    groups: list[dict[str, Any]], p: nn.Parameter, manifold: AbstractManifold | None
) -> None:
    """Put a parameter into the group of its manifold."""
    for group in groups:
        if group["manifold"] == manifold:
            group["params"].append(p)
            return
    groups.append({"params": [p], "manifold": manifold})


def cosine(done: float) -> float:
    r"""Half a cosine from 1 to 0, $(1 + \cos \pi x) / 2$."""
    return (1 + math.cos(math.pi * done)) / 2


def linear(done: float) -> float:
    """A straight line from 1 to 0."""
    return 1 - done


# how rates decay, by the names of the option; the paper keeps them constant
DECAYS: dict[str, Callable[[float], float]] = {"cosine": cosine, "linear": linear}

OURS = "ours: none is published"

# how a network of the user's own is trained, unless its class has a `schedule`
USUAL = Schedule(
    (
        OptimizerRecipe(Adam, {"lr": 1e-3}),
        OptimizerRecipe(Adam, {"lr": 1e-4}, ("parametrizations",)),
    ),
    "ours: Adam, with a tenth of the rate for parametrized weights",
)

# how RMSprop was written elsewhere, as options of RiemannianRMSprop
TENSORFLOW = {
    "alpha": 0.9,
    "eps": 1e-10,
    "initial_accumulator": 1.0,
    "eps_inside": True,
}
THEANO = {"alpha": 0.9, "eps": 0.0, "initial_accumulator": 1e-3}
KERAS = {"alpha": 0.9, "eps": 1e-8}


def rmsprop(
    lr: float, *parameters: str, like: Mapping[str, Any] | None = None
) -> OptimizerRecipe:
    """torch's RMSprop, or one of the historical ones."""
    if like is None:
        return OptimizerRecipe(RMSprop, {"lr": lr}, parameters)
    return OptimizerRecipe(RiemannianRMSprop, {"lr": lr, **like}, parameters)


def adam(lr: float, *parameters: str) -> OptimizerRecipe:
    """torch's Adam."""
    return OptimizerRecipe(Adam, {"lr": lr}, parameters)


def descent(lr: float, *parameters: str) -> OptimizerRecipe:
    """Riemannian gradient descent with the retraction of its authors."""
    return OptimizerRecipe(
        RiemannianSGD, {"lr": lr, "retraction": "cayley"}, parameters
    )


def nearest(table: Mapping[int, float], size: int) -> float:
    """The entry of a table whose size is nearest."""
    return table[min(table, key=lambda entry: abs(entry - size))]


# rates of the paper's table, by size
EXPRNN = {
    "copying": {190: 2e-4},
    "mnist": {170: 7e-4, 360: 5e-4, 512: 3e-4},
    "pmnist": {170: 1e-3, 360: 7e-4, 512: 5e-4},
    "timit": {224: 1e-3, 322: 7e-4, 425: 7e-4},
    "adding": {170: 1e-3},
}


def train_exprnn(task: str, size: int) -> Schedule:
    """A tenth of the rate for the orthogonal weight."""
    lr = nearest(EXPRNN[task], size)
    rest = adam(lr) if task == "timit" else rmsprop(lr)
    source = OURS if task == "adding" else "[LM19] appendix, table of hyperparameters"
    return Schedule((rest, rmsprop(lr / 10, "weight_hh")), source)


def train_scornn(task: str, _size: int) -> Schedule:
    """TensorFlow's RMSprop, with a tenth of the rate for A."""
    A = rmsprop(1e-4, "X", like=TENSORFLOW)
    rest = adam(1e-3) if task == "adding" else rmsprop(1e-3, like=TENSORFLOW)
    return Schedule((rest, A), OURS if task == "timit" else "[HWY18], its code")


def train_scurnn(task: str, _size: int) -> Schedule:
    """Three optimizers: one for A, one for the angles of D, one for the rest."""
    inside = {"alpha": 0.9, "eps": 1e-8, "eps_inside": True}
    adagrad = {"eps": 0.0, "initial_accumulator": 0.1, "sum_squares": True}
    theta = rmsprop(1e-4 if task == "copying" else 1e-3, "theta", like=adagrad)
    source = OURS if task in ("timit", "pmnist") else "[MHY19], its code"
    return Schedule((adam(1e-3), rmsprop(1e-4, "X", like=inside), theta), source)


def train_urnn(task: str, _size: int) -> Schedule:
    """Keras's RMSprop on MNIST, Theano's elsewhere."""
    if task in ("mnist", "pmnist"):
        return Schedule((rmsprop(1e-4, like=KERAS),), "[WPH16], its code")
    return Schedule((rmsprop(1e-3, like=THEANO),), "[ASB16] and [WPH16], their code")


def train_rgd(task: str, size: int) -> Schedule:
    """Descent on the group for W.

    Its authors' $S = G W^H - W G^H$ is twice our gradient, so rates are doubled. On
    MNIST they divide G by its mean squares entry by entry; ours adapts in the Lie
    algebra.
    """
    if task not in ("mnist", "pmnist"):
        rest = rmsprop(1e-3, like=THEANO)
        source = OURS if task == "adding" else "[WPH16], its code"
        return Schedule((rest, descent(2e-3, "weight_hh")), source)
    rest = rmsprop(nearest({116: 1e-3, 512: 1e-4}, size), like=KERAS)
    like = {**KERAS, "retraction": "cayley"}
    W = rmsprop(2e-6, "weight_hh", like=like)
    return Schedule((rest, W), "[WPH16], its code; adapted in the Lie algebra")


def train_eurnn(task: str, _size: int) -> Schedule:
    """TensorFlow's RMSprop."""
    lr = 1e-4 if task in ("mnist", "pmnist") else 1e-3
    source = OURS if task in ("timit", "adding") else "[JSD17], its code"
    return Schedule((rmsprop(lr, like=TENSORFLOW),), source)


def train_lstm(task: str, _size: int) -> Schedule:
    """The optimizers with which unitary networks were compared."""
    if task in ("mnist", "pmnist"):
        return Schedule((rmsprop(1e-3, like=KERAS),), "[WPH16], its code", clip_norm=1)
    if task == "timit":
        return Schedule((adam(1e-3),), OURS)
    return Schedule((rmsprop(1e-3, like=TENSORFLOW),), OURS)


def train_gru(task: str, size: int) -> Schedule:
    """The optimizers of the LSTM."""
    lstm = train_lstm(task, size)
    return Schedule(lstm.optimizers, OURS, lstm.clip_norm)


def train_exp_gated(task: str, size: int) -> Schedule:
    """The optimizers of ExpRNN: a tenth of the rate for the orthogonal weights."""
    return Schedule(train_exprnn(task, size).optimizers, OURS)


def train_householder(_task: str, _size: int) -> Schedule:
    """Adam, and unit vectors after each step."""
    return Schedule((adam(1e-3),), "[MHRB17], its code")


def train_spectral(_task: str, _size: int) -> Schedule:
    """Descent on the group for the singular vectors."""
    return Schedule((rmsprop(1e-4), descent(1e-4, "U", "V")), OURS)


def train_lie(_task: str, _size: int) -> Schedule:
    """A tenth of the rate for the coefficients."""
    return Schedule((rmsprop(1e-3), rmsprop(1e-4, "X")), OURS)
