"""The built-in networks, with the settings of their authors where these are known.

Most numbers are from the papers and programs of the authors. `Schedule.source` names
the paper, or says that the numbers are ours because none are published. The authors
used different libraries, and RMSprop differs between these libraries, enough to change
results. `isometry.optim.RiemannianRMSprop` has options that imitate each of them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, RMSprop

from isometry import nn as layers
from isometry.lab._options import Registry
from isometry.lab.network import (
    Network,
    OptimizerRecipe,
    Output,
    Recipe,
    Schedule,
    accept,
    network_of,
    torch_output,
)
from isometry.lab.paper.protocol import EPOCHS, ITERATIONS, SIZES
from isometry.lab.task import AbstractTask
from isometry.nn.comparators.cell import Draw, glorot
from isometry.optim import RiemannianRMSprop, RiemannianSGD

# the tasks that read an image pixel by pixel
PIXELS = ("mnist", "pmnist")


def layer(
    kind: type[nn.Module],
    task: AbstractTask,
    size: int,
    options: dict[str, Any],
    draw: Draw,
) -> nn.Module:
    """Make a network of the given class, which takes an input size and a hidden size.

    The config of an old run may contain a wrong `last_only`, which is then in
    `options`. The task's value overrides it.
    """
    usual: dict[str, Any] = {"device": draw.device, "dtype": draw.dtype}
    # torch's recurrent layers have neither `generator` nor `last_only`
    if kind not in (nn.LSTM, nn.GRU):
        usual |= {"generator": draw.generator, "last_only": task.last_only}
    return kind(task.input_size, size, **(options | usual))


def torch_lstm(
    task: AbstractTask, size: int, options: dict[str, Any], draw: Draw
) -> nn.Module:
    """An LSTM with TensorFlow's initial values and a single bias vector.

    The weights are initialized by Glorot's rule, and the bias of the forget gate is 1.
    """
    network = layer(nn.LSTM, task, size, options, draw)
    bound = glorot(task.input_size + size, 4 * size)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.startswith("weight"):
                p.copy_(draw.uniform(*p.shape, bound=bound))
            else:
                p.zero_()
            if name.startswith("bias_ih"):
                p[size : 2 * size] = 1
            # torch's LSTM uses the sum of two bias vectors; fix the second one at zero
            if name.startswith("bias_hh"):
                p.requires_grad_(False)
    return network


def output_exprnn(task: AbstractTask, features: int) -> Output:
    """Initial values of ExpRNN's output layer: He's for copying, torch's otherwise."""
    if task.settings_of == "copying":
        return Output(std=math.sqrt(2 / features))
    return torch_output(task, features)


def output_scornn(task: AbstractTask, features: int) -> Output:
    """Initial values of scoRNN's output layer: its weights are drawn by Glorot's rule.

    For copying, so are the biases, which are zero for other tasks.
    """
    outputs = task.output_size
    bias = glorot(outputs, outputs) if task.settings_of == "copying" else 0.0
    return Output(bound=glorot(features, outputs), bias_bound=bias)


def output_eurnn(task: AbstractTask, _features: int) -> Output:
    """Initial values of EURNN's output layer, as its authors chose them.

    As in the code of [JSD17], Glorot's bound is computed from the network's input size
    instead of the number of features that enter the output layer.
    """
    return Output(bound=glorot(task.input_size, task.output_size), bias=0.01)


def options_exprnn(task: str, _size: int) -> dict[str, Any]:
    """Options of ExpRNN: the initial distribution of the recurrent weight."""
    return {"init": "cayley" if task in PIXELS else "henaff"}


def options_scornn(task: str, size: int) -> dict[str, Any]:
    """Options of scoRNN: how many diagonal entries of its matrix D are -1.

    On MNIST without a permutation, a tenth of the entries are -1; on other tasks, half.
    """
    return {"negatives": size // 10 if task == "mnist" else size // 2}


def options_structured(task: str, _size: int) -> dict[str, Any]:
    """Options of uRNN and RGD: the bound on the absolute values of initial biases.

    On MNIST, permuted or not, the biases start at zero.
    """
    return {"bias_bound": 0.0 if task in PIXELS else 0.01}


def options_eurnn(task: str, _size: int) -> dict[str, Any]:
    """Options of EURNN: the number of layers of rotations."""
    return {"capacity": {"copying": 12, "mnist": 4, "pmnist": 4}.get(task, 2)}


UNPUBLISHED = "ours: none is published"

# options with which RiemannianRMSprop behaves like RMSprop in other libraries
KERAS = {"alpha": 0.9, "eps": 1e-8}
THEANO = {"alpha": 0.9, "eps": 0.0, "initial_accumulator": 1e-3}
TENSORFLOW = KERAS | {"eps": 1e-10, "initial_accumulator": 1.0, "eps_inside": True}


def rmsprop(lr: float, *parameters: str, **like: Any) -> OptimizerRecipe:
    """RMSprop as in torch, or as in another library if `like` gives its options."""
    kind = RiemannianRMSprop if like else RMSprop
    return OptimizerRecipe(kind, {"lr": lr, **like}, parameters)


def adam(lr: float, *parameters: str) -> OptimizerRecipe:
    """Adam as in torch."""
    return OptimizerRecipe(Adam, {"lr": lr}, parameters)


def descent(lr: float, *parameters: str) -> OptimizerRecipe:
    """Riemannian gradient descent with the Cayley retraction, as in [WPH16]."""
    options = {"lr": lr, "retraction": "cayley"}
    return OptimizerRecipe(RiemannianSGD, options, parameters)


def at_nearest_size(table: Mapping[int, float], size: int) -> float:
    """The value in `table` for the size that is nearest to `size`."""
    return table[min(table, key=lambda entry: abs(entry - size))]


# Learning rates of ExpRNN by task and size, from the paper's table of hyperparameters.
# The rate for the adding problem is ours.
EXPRNN = {
    "copying": {190: 2e-4},
    "mnist": {170: 7e-4, 360: 5e-4, 512: 3e-4},
    "pmnist": {170: 1e-3, 360: 7e-4, 512: 5e-4},
    "timit": {224: 1e-3, 322: 7e-4, 425: 7e-4},
    "adding": {170: 1e-3},
}


def schedule_exprnn(task: str, size: int) -> Schedule:
    """Schedule of ExpRNN: RMSprop, with a tenth of the rate for the orthogonal weight.

    On TIMIT, Adam updates all parameters except the orthogonal weight.
    """
    lr = at_nearest_size(EXPRNN[task], size)
    rest = adam(lr) if task == "timit" else rmsprop(lr)
    table = "[LM19] appendix, table of hyperparameters"
    source = UNPUBLISHED if task == "adding" else table
    return Schedule((rest, rmsprop(lr / 10, "weight_hh")), source)


def schedule_scornn(task: str, _size: int) -> Schedule:
    """Schedule of scoRNN: RMSprop, with a tenth of the rate for the skew matrix A.

    The options of RMSprop are TensorFlow's. On the adding problem, Adam updates all
    parameters except A.
    """
    A = rmsprop(1e-4, "X", **TENSORFLOW)
    rest = adam(1e-3) if task == "adding" else rmsprop(1e-3, **TENSORFLOW)
    return Schedule((rest, A), UNPUBLISHED if task == "timit" else "[HWY18], its code")


def schedule_scurnn(task: str, _size: int) -> Schedule:
    """Schedule of scuRNN: RMSprop for the skew matrix, and two more optimizers.

    Adagrad updates the angles of the diagonal matrix D, and Adam all other parameters.
    """
    inside = {"alpha": 0.9, "eps": 1e-8, "eps_inside": True}
    # RMSprop becomes Adagrad if it sums the squared gradients instead of averaging them
    adagrad = {"eps": 0.0, "initial_accumulator": 0.1, "sum_squares": True}
    theta = rmsprop(1e-4 if task == "copying" else 1e-3, "theta", **adagrad)
    source = UNPUBLISHED if task in ("timit", "pmnist") else "[MHY19], its code"
    return Schedule((adam(1e-3), rmsprop(1e-4, "X", **inside), theta), source)


def schedule_urnn(task: str, _size: int) -> Schedule:
    """Schedule of uRNN: Keras's RMSprop on MNIST, permuted or not; else Theano's."""
    if task in PIXELS:
        return Schedule((rmsprop(1e-4, **KERAS),), "[WPH16], its code")
    return Schedule((rmsprop(1e-3, **THEANO),), "[ASB16] and [WPH16], their code")


def schedule_rgd(task: str, size: int) -> Schedule:
    """Schedule of RGD: Cayley retractions keep its weight W on the unitary group.

    The optimizer of $W$ is Riemannian RMSprop on MNIST, permuted or not, and Riemannian
    gradient descent on other tasks. From the gradient $G$ at $W$, the authors compute
    $S = G W^H - W G^H$; then $S W$ is twice our Riemannian gradient. So we double their
    learning rates for $W$, which makes the steps of gradient descent equal. On MNIST we
    double the rate, too, but the steps are not equal: the authors apply RMSprop to the
    entries of $G$, and we apply it in the Lie algebra.
    """
    if task not in PIXELS:
        rest = rmsprop(1e-3, **THEANO)
        source = UNPUBLISHED if task == "adding" else "[WPH16], its code"
        return Schedule((rest, descent(2e-3, "weight_hh")), source)
    rest = rmsprop(at_nearest_size({116: 1e-3, 512: 1e-4}, size), **KERAS)
    W = rmsprop(2e-6, "weight_hh", **KERAS, retraction="cayley")
    return Schedule((rest, W), "[WPH16], its code; adapted in the Lie algebra")


def schedule_eurnn(task: str, _size: int) -> Schedule:
    """Schedule of EURNN: TensorFlow's RMSprop."""
    lr = 1e-4 if task in PIXELS else 1e-3
    source = UNPUBLISHED if task in ("timit", "adding") else "[JSD17], its code"
    return Schedule((rmsprop(lr, **TENSORFLOW),), source)


def schedule_lstm(task: str, _size: int) -> Schedule:
    """Schedule of the LSTM: from [WPH16] on MNIST, permuted or not, otherwise ours."""
    if task in PIXELS:
        return Schedule((rmsprop(1e-3, **KERAS),), "[WPH16], its code", clip_norm=1)
    if task == "timit":
        return Schedule((adam(1e-3),), UNPUBLISHED)
    return Schedule((rmsprop(1e-3, **TENSORFLOW),), UNPUBLISHED)


def schedule_householder(_task: str, _size: int) -> Schedule:
    """Schedule of HouseholderRNN: Adam.

    After each step, `Network.after_step` normalizes the vectors of the reflections.
    """
    return Schedule((adam(1e-3),), "[MHRB17], its code")


def schedule_spectral(_task: str, _size: int) -> Schedule:
    """Schedule of SpectralRNN: Riemannian descent for U and V, RMSprop for the rest."""
    return Schedule((rmsprop(1e-4), descent(1e-4, "U", "V")), UNPUBLISHED)


def schedule_lie(_task: str, _size: int) -> Schedule:
    """Schedule of LieRNN: RMSprop, with a tenth of the rate for its coefficients."""
    return Schedule((rmsprop(1e-3), rmsprop(1e-4, "X")), UNPUBLISHED)


def schedule_gated(task: str, size: int) -> Schedule:
    """Schedule of ExpLSTM and ExpGRU: ExpRNN's schedule, since none is published."""
    return replace(schedule_exprnn(task, size), source=UNPUBLISHED)


def schedule_gru(task: str, size: int) -> Schedule:
    """Schedule of the GRU: the LSTM's schedule, since none is published."""
    return replace(schedule_lstm(task, size), source=UNPUBLISHED)


_BUILT_IN = {
    "exprnn": Network(
        partial(layer, layers.ExpRNN), schedule_exprnn, output_exprnn, options_exprnn
    ),
    "scornn": Network(
        partial(layer, layers.ScoRNN), schedule_scornn, output_scornn, options_scornn
    ),
    "scurnn": Network(partial(layer, layers.ScuRNN), schedule_scurnn),
    "urnn": Network(
        partial(layer, layers.URNN), schedule_urnn, options=options_structured
    ),
    "rgd": Network(
        partial(layer, layers.FullCapacityURNN),
        schedule_rgd,
        options=options_structured,
    ),
    "eurnn": Network(
        partial(layer, layers.EURNN),
        schedule_eurnn,
        output_eurnn,
        options_eurnn,
        parts="real",
    ),
    "householder": Network(
        partial(layer, layers.HouseholderRNN),
        schedule_householder,
        after_step=layers.HouseholderRNN.renormalize_,
    ),
    "spectral": Network(partial(layer, layers.SpectralRNN), schedule_spectral),
    "lie": Network(partial(layer, layers.LieRNN), schedule_lie),
    "explstm": Network(partial(layer, layers.ExpLSTM), schedule_gated),
    "expgru": Network(partial(layer, layers.ExpGRU), schedule_gated),
    "lstm": Network(torch_lstm, schedule_lstm),
    # the GRU keeps torch's initial parameters
    "gru": Network(partial(layer, nn.GRU), schedule_gru),
}

NETWORKS: Registry[Network] = Registry("model", "isometry.networks", _BUILT_IN, accept)

# the default hidden size of a network that is not in `SIZES`
USUAL_SIZE = 128


def recipe_for(
    model: str, task: AbstractTask, hidden_size: int | None = None, **options: Any
) -> Recipe:
    """How to build a network and train it on a task.

    The recipe of a built-in network has its authors' settings, where these are known.

    Args:
        model: a name in `NETWORKS`, such as "exprnn", "scornn" or "lstm".
        task: the task. Its `settings_of` selects learning rates, sizes and options. Its
            `input_size` and `output_size` are also the network's.
        hidden_size: number of features of the hidden state. If None, the first size in
            `SIZES`, or 128 for your own network.
        **options: options of the network, which override its default options.

    Returns:
        The recipe. Its function `make_model` builds the network.

    Raises:
        ValueError: if there is no such network, `task.settings_of` is not known, or the
            task has no inputs or no outputs.
    """
    network = NETWORKS.find(model)
    if task.settings_of not in EPOCHS | ITERATIONS:
        raise ValueError(
            f"`task.settings_of` must be one of {', '.join(EPOCHS | ITERATIONS)}; got "
            f"{task.settings_of!r}."
        )
    if min(task.input_size, task.output_size) < 1:
        raise ValueError(
            f"`input_size` and `output_size` must be at least 1; got "
            f"{task.input_size} and {task.output_size}."
        )
    sizes = SIZES.get(model, {}).get(task.settings_of, (USUAL_SIZE,))
    size = sizes[0] if hidden_size is None else hidden_size
    options = {**network.options(task.settings_of, size), **options}

    def make_model(**keywords: Any) -> nn.Module:
        return network.make_model(task, size, options, Draw(**keywords))

    return Recipe(
        name=model,
        hidden_size=size,
        make_model=make_model,
        options=options,
        schedule=network.schedule(task.settings_of, size),
        after_step=lambda model: network.after_step(network_of(model)),
        iterations=ITERATIONS.get(task.settings_of),
        epochs=EPOCHS.get(task.settings_of),
    )
