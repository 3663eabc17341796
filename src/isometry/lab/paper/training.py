"""How the networks of the paper were made and trained, as data.

The numbers are those of the authors' texts and programs; `Training.source` says whose,
or that nobody has published them and they are ours. Implementations of RMSprop differ
in ways that show: `isometry.optim.RiemannianRMSprop` has them all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from isometry.lab.paper.model import Output, Parts
from isometry.nn._draw import Draw, glorot
from isometry.nn._eurnn import EURNN
from isometry.nn._exp_gru import ExpGRU
from isometry.nn._exp_lstm import ExpLSTM
from isometry.nn._exp_rnn import ExpRNN
from isometry.nn._full_capacity import FullCapacityURNN
from isometry.nn._householder_rnn import HouseholderRNN
from isometry.nn._lie import LieRNN
from isometry.nn._scornn import ScoRNN
from isometry.nn._scurnn import ScuRNN
from isometry.nn._spectral import SpectralRNN
from isometry.nn._urnn import URNN


@dataclass(frozen=True)
class Task:
    """Sizes of a task, and whether the answer is due at the last step alone."""

    inputs: int
    outputs: int
    last_only: bool


TASKS = {
    "copying": Task(10, 9, last_only=False),
    "mnist": Task(1, 10, last_only=True),
    "pmnist": Task(1, 10, last_only=True),
    "timit": Task(129, 129, last_only=False),
    "adding": Task(2, 1, last_only=True),
}


@dataclass(frozen=True)
class OptimizerRecipe:
    """An optimizer as data.

    Attributes:
        name: a class of `torch.optim` or of `isometry.optim`.
        options: its arguments.
        parameters: names of those it moves; if empty, all that no other moves.
    """

    name: str
    options: Mapping[str, Any]
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Training:
    """Optimizers of a network on a task, and where they come from."""

    optimizers: tuple[OptimizerRecipe, ...]
    source: str
    clip_norm: float | None = None


@dataclass(frozen=True)
class Entry:
    """A network by name.

    Attributes:
        network: makes it, for a task, a size, options and a source of first values.
        sizes: those of the paper's tables for each task, the usual one first.
        training: how it is trained on a task, at a size.
        output: the first values of its output layer, for a task, its sizes and the
            features that the layer reads.
        options: of the network, for a task and a size.
        parts: what the output layer reads of complex states.
    """

    network: Callable[[Task, int, dict[str, Any], Draw], nn.Module]
    sizes: Mapping[str, tuple[int, ...]]
    training: Callable[[str, int], Training]
    output: Callable[[str, Task, int], Output]
    options: Callable[[str, int], dict[str, Any]] = lambda _task, _size: {}
    parts: Parts = "both"


OURS = "ours: none is published"

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
        return OptimizerRecipe("RMSprop", {"lr": lr}, parameters)
    return OptimizerRecipe("RiemannianRMSprop", {"lr": lr, **like}, parameters)


def adam(lr: float, *parameters: str) -> OptimizerRecipe:
    """torch's Adam."""
    return OptimizerRecipe("Adam", {"lr": lr}, parameters)


def descent(lr: float, *parameters: str) -> OptimizerRecipe:
    """Riemannian gradient descent with the retraction of its authors."""
    options = {"lr": lr, "retraction": "cayley"}
    return OptimizerRecipe("RiemannianSGD", options, parameters)


def made_by(network: type[nn.Module]) -> Callable[..., nn.Module]:
    """An `Entry.network` of a class of ours."""

    def make(task: Task, size: int, options: dict[str, Any], draw: Draw) -> nn.Module:
        place = {"device": draw.device, "dtype": draw.dtype}
        usual = {**place, "generator": draw.generator, "last_only": task.last_only}
        return network(task.inputs, size, **(usual | options))

    return make


def gated_by(network: type[nn.Module]) -> Callable[..., nn.Module]:
    """The same for gated cells, which give all outputs."""

    def make(task: Task, size: int, options: dict[str, Any], draw: Draw) -> nn.Module:
        place = {"device": draw.device, "dtype": draw.dtype}
        usual = {**place, "generator": draw.generator}
        return network(task.inputs, size, **(usual | options))

    return make


def torch_lstm(task: Task, size: int, options: dict[str, Any], draw: Draw) -> nn.Module:
    """TensorFlow's: Glorot, one bias vector, and a forget gate that starts open."""
    place: dict[str, Any] = {"device": draw.device, "dtype": draw.dtype}
    network = nn.LSTM(task.inputs, size, **place, **options)
    bound = glorot(task.inputs + size, 4 * size)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.startswith("weight"):
                p.copy_(draw.uniform(*p.shape, bound=bound))
            else:
                p.zero_()
            if name.startswith("bias_ih"):
                p[size : 2 * size] = 1
            # torch's second bias vector adds to the first
            if name.startswith("bias_hh"):
                p.requires_grad_(False)
    return network


def torch_gru(task: Task, size: int, options: dict[str, Any], draw: Draw) -> nn.Module:
    """That of torch, as it comes."""
    place: dict[str, Any] = {"device": draw.device, "dtype": draw.dtype}
    return nn.GRU(task.inputs, size, **place, **options)


def nearest(table: Mapping[int, float], size: int) -> float:
    """The entry of the nearest size."""
    return table[min(table, key=lambda known: abs(known - size))]


# rates of the paper's table, by size
EXPRNN = {
    "copying": {190: 2e-4},
    "mnist": {170: 7e-4, 360: 5e-4, 512: 3e-4},
    "pmnist": {170: 1e-3, 360: 7e-4, 512: 5e-4},
    "timit": {224: 1e-3, 322: 7e-4, 425: 7e-4},
    "adding": {170: 1e-3},
}


def train_exprnn(task: str, size: int) -> Training:
    """A tenth of the rate for the orthogonal weight."""
    lr = nearest(EXPRNN[task], size)
    rest = adam(lr) if task == "timit" else rmsprop(lr)
    source = OURS if task == "adding" else "[LM19] appendix, table of hyperparameters"
    return Training((rest, rmsprop(lr / 10, "weight_hh")), source)


def train_scornn(task: str, _size: int) -> Training:
    """TensorFlow's RMSprop, with a tenth of the rate for A."""
    A = rmsprop(1e-4, "X", like=TENSORFLOW)
    rest = adam(1e-3) if task == "adding" else rmsprop(1e-3, like=TENSORFLOW)
    return Training((rest, A), OURS if task == "timit" else "[HWY18], its code")


def train_scurnn(task: str, _size: int) -> Training:
    """Three optimizers: of A, of the angles of D, and of the rest."""
    inside = {"alpha": 0.9, "eps": 1e-8, "eps_inside": True}
    adagrad = {"eps": 0.0, "initial_accumulator": 0.1, "sum_squares": True}
    theta = rmsprop(1e-4 if task == "copying" else 1e-3, "theta", like=adagrad)
    source = OURS if task in ("timit", "pmnist") else "[MHY19], its code"
    return Training((adam(1e-3), rmsprop(1e-4, "X", like=inside), theta), source)


def train_urnn(task: str, _size: int) -> Training:
    """Keras on MNIST, Theano elsewhere."""
    if task in ("mnist", "pmnist"):
        return Training((rmsprop(1e-4, like=KERAS),), "[WPH16], its code")
    return Training((rmsprop(1e-3, like=THEANO),), "[ASB16] and [WPH16], their code")


def train_rgd(task: str, size: int) -> Training:
    """Descent on the group for W.

    Its authors' $S = G W^H - W G^H$ is twice our gradient, so rates are doubled. On
    MNIST they divide G by its mean squares entry by entry; ours adapts in the Lie
    algebra.
    """
    if task not in ("mnist", "pmnist"):
        rest = rmsprop(1e-3, like=THEANO)
        source = OURS if task == "adding" else "[WPH16], its code"
        return Training((rest, descent(2e-3, "weight_hh")), source)
    rest = rmsprop(nearest({116: 1e-3, 512: 1e-4}, size), like=KERAS)
    like = {**KERAS, "retraction": "cayley"}
    W = rmsprop(2e-6, "weight_hh", like=like)
    return Training((rest, W), "[WPH16], its code; adapted in the Lie algebra")


def train_eurnn(task: str, _size: int) -> Training:
    """TensorFlow's RMSprop."""
    lr = 1e-4 if task in ("mnist", "pmnist") else 1e-3
    source = OURS if task in ("timit", "adding") else "[JSD17], its code"
    return Training((rmsprop(lr, like=TENSORFLOW),), source)


def train_lstm(task: str, _size: int) -> Training:
    """As in the comparisons of unitary networks."""
    if task in ("mnist", "pmnist"):
        return Training((rmsprop(1e-3, like=KERAS),), "[WPH16], its code", clip_norm=1)
    if task == "timit":
        return Training((adam(1e-3),), OURS)
    return Training((rmsprop(1e-3, like=TENSORFLOW),), OURS)


def train_gru(task: str, size: int) -> Training:
    """As the LSTM."""
    lstm = train_lstm(task, size)
    return Training(lstm.optimizers, OURS, lstm.clip_norm)


def train_exp_gated(task: str, size: int) -> Training:
    """As ExpRNN: a tenth of the rate for the orthogonal weights."""
    return Training(train_exprnn(task, size).optimizers, OURS)


def train_householder(_task: str, _size: int) -> Training:
    """Adam, and unit vectors after each step."""
    return Training((adam(1e-3),), "[MHRB17], its code")


def train_spectral(_task: str, _size: int) -> Training:
    """Descent on the group for the singular vectors."""
    return Training((rmsprop(1e-4), descent(1e-4, "U", "V")), OURS)


def train_lie(_task: str, _size: int) -> Training:
    """A tenth of the rate for the coefficients."""
    return Training((rmsprop(1e-3), rmsprop(1e-4, "X")), OURS)


def glorot_output(_task: str, sizes: Task, features: int) -> Output:
    """Glorot's weights, no bias."""
    return Output(bound=glorot(features, sizes.outputs))


def output_exprnn(task: str, _sizes: Task, features: int) -> Output:
    """He's for copying, torch's usual ones elsewhere."""
    if task == "copying":
        return Output(std=math.sqrt(2 / features))
    usual = 1 / math.sqrt(features)
    return Output(bound=usual, bias_bound=usual)


def output_scornn(task: str, sizes: Task, features: int) -> Output:
    """Glorot's; in the copying task for the biases too."""
    outputs = sizes.outputs
    bias = glorot(outputs, outputs) if task == "copying" else 0.0
    return Output(bound=glorot(features, outputs), bias_bound=bias)


def output_eurnn(_task: str, sizes: Task, _features: int) -> Output:
    """The authors' bound has the inputs where Glorot's has the features."""
    return Output(bound=glorot(sizes.inputs, sizes.outputs), bias=0.01)


def options_exprnn(task: str, _size: int) -> dict[str, Any]:
    """The first recurrent weight."""
    return {"init": "cayley" if task in ("mnist", "pmnist") else "henaff"}


def options_scornn(task: str, size: int) -> dict[str, Any]:
    """A tenth of negative signs on MNIST, half of them elsewhere."""
    return {"negatives": size // 10 if task == "mnist" else size // 2}


def options_structured(task: str, _size: int) -> dict[str, Any]:
    """On MNIST the biases start at zero."""
    return {"bias_bound": 0.0 if task in ("mnist", "pmnist") else 0.01}


def options_eurnn(task: str, _size: int) -> dict[str, Any]:
    """The capacity."""
    return {"capacity": {"copying": 12, "mnist": 4, "pmnist": 4}.get(task, 2)}


def sizes(
    copying: int, mnist: tuple[int, ...], timit: tuple[int, ...], adding: int
) -> dict[str, tuple[int, ...]]:
    """Sizes by task."""
    return {
        "copying": (copying,),
        "mnist": mnist,
        "pmnist": mnist,
        "timit": timit,
        "adding": (adding,),
    }


_REAL = sizes(190, (170, 360, 512), (224, 322, 425), 170)
_GATED = sizes(68, (128, 256, 512), (84, 120, 158), 128)

ENTRIES = {
    "exprnn": Entry(
        made_by(ExpRNN), _REAL, train_exprnn, output_exprnn, options_exprnn
    ),
    "scornn": Entry(
        made_by(ScoRNN), _REAL, train_scornn, output_scornn, options_scornn
    ),
    "scurnn": Entry(
        made_by(ScuRNN),
        sizes(130, (116, 250), (128, 192, 256), 116),
        *(train_scurnn, glorot_output),
    ),
    "urnn": Entry(
        made_by(URNN),
        sizes(470, (512, 2170), (158, 256, 378), 512),
        *(train_urnn, glorot_output, options_structured),
    ),
    "rgd": Entry(
        made_by(FullCapacityURNN),
        sizes(128, (116, 512), (128, 192, 256), 128),
        *(train_rgd, glorot_output, options_structured),
    ),
    "eurnn": Entry(
        made_by(EURNN),
        sizes(512, (512,), (158, 256, 378), 512),
        *(train_eurnn, output_eurnn, options_eurnn),
        parts="real",
    ),
    "householder": Entry(
        made_by(HouseholderRNN), _REAL, train_householder, glorot_output
    ),
    "spectral": Entry(made_by(SpectralRNN), _REAL, train_spectral, glorot_output),
    "lie": Entry(
        made_by(LieRNN), sizes(30, (30,), (30,), 30), train_lie, glorot_output
    ),
    "explstm": Entry(gated_by(ExpLSTM), _GATED, train_exp_gated, glorot_output),
    "expgru": Entry(gated_by(ExpGRU), _GATED, train_exp_gated, glorot_output),
    "lstm": Entry(torch_lstm, _GATED, train_lstm, glorot_output),
    "gru": Entry(torch_gru, _GATED, train_gru, glorot_output),
}
