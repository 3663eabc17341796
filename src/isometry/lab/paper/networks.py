"""The networks of the paper with their authors' settings, and your own, by name."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import PackedSequence

from isometry import nn as layers
from isometry.lab._options import Registry
from isometry.lab.paper import training
from isometry.lab.paper.protocol import EPOCHS, ITERATIONS, SIZES
from isometry.lab.paper.training import Recipe, Schedule
from isometry.lab.task import AbstractTask
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn.comparators.cell import Draw, glorot

# the parts of a complex hidden state that an output layer reads
Parts = Literal["both", "real"]


@dataclass(frozen=True)
class Output:
    """How to draw the initial values of an output layer.

    Attributes:
        bound: bound on the absolute values of the weights, if they are uniform.
        std: standard deviation of the weights, if they are normal; None if they are
            uniform.
        bias_bound: bound on the absolute values of the biases, which are uniform.
        bias: constant that is added to all biases.
    """

    bound: float = 0.0
    std: float | None = None
    bias_bound: float = 0.0
    bias: float = 0.0

    def layer(self, features: int, outputs: int, draw: Draw) -> nn.Linear:
        """Make a linear layer with these initial values."""
        linear = nn.Linear(features, outputs, device="meta")
        if self.std is None:
            linear.weight = draw.uniform(outputs, features, bound=self.bound)
        else:
            linear.weight = draw.normal(outputs, features, std=self.std)
        bias = draw.uniform(outputs, bound=self.bias_bound)
        linear.bias = nn.Parameter(bias.detach() + self.bias)
        return linear


class SequenceModel(nn.Module):
    r"""A recurrent network and a linear output layer, $y_t = V h_t + c$.

    If the hidden states $h_t$ are complex, the output layer reads their real parts
    followed by their imaginary parts, or the real parts alone.

    Args:
        network: `ExpRNN`, a comparator, or a layer with the interface of torch's `RNN`.
        output: the output layer.
        parts: the parts of complex states that the output layer reads.
        last_only: whether to return only the output of the last time step.
    """

    def __init__(
        self,
        network: nn.Module,
        output: nn.Linear,
        *,
        parts: Parts = "both",
        last_only: bool = False,
    ) -> None:
        super().__init__()
        self.network, self.output = network, output
        self.parts: Parts = parts
        self.last_only = last_only

    def forward(self, x: Any) -> Any:
        """The outputs for a batch of sequences.

        Args:
            x: input of the network.

        Returns:
            The outputs (time, batch, outputs), with a single time step if `last_only`.

        Raises:
            TypeError: if the network does not return all its states and its last state.
        """
        answer = self.network(x)
        # check the type, because a tensor of two time steps would also unpack into two
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(
                f"`{type(self.network).__name__}` must return a tuple of its states "
                f"and its last state; got {type(answer).__name__}. If the network has "
                f"its own output layer, it must take `output_size`."
            )
        H = answer[0]
        if isinstance(H, PackedSequence):
            return PackedSequence(self._outputs(H.data), *H[1:])
        return self._outputs(H[-1:] if self.last_only else H)

    def _outputs(self, H: Tensor) -> Tensor:
        if H.is_complex():
            both = self.parts == "both"
            H = torch.cat((H.real, H.imag), -1) if both else H.real
        return self.output(H)


def unit_vectors(classes: int, network: nn.Module, inputs: tuple) -> tuple:
    """The inputs of a network, with class indices replaced by unit vectors."""
    x, *rest = inputs
    if not isinstance(x, Tensor) or x.is_floating_point() or x.is_complex():
        return inputs
    real = (p.dtype for p in network.parameters() if p.is_floating_point())
    return one_hot(x.long(), classes).to(next(real, torch.get_default_dtype())), *rest


def maker(
    network: type[nn.Module], *, without: Collection[str] = ()
) -> Callable[..., nn.Module]:
    """A function that makes networks of a class.

    Args:
        network: the class, which takes an input size and a hidden size.
        without: the options among `generator` and `last_only` that the class lacks.
    """

    def make(
        task: AbstractTask, size: int, options: dict[str, Any], draw: Draw
    ) -> nn.Module:
        usual: dict[str, Any] = {"device": draw.device, "dtype": draw.dtype}
        usual |= {"generator": draw.generator, "last_only": task.last_only}
        usual = {k: v for k, v in usual.items() if k not in without}
        return network(task.input_size, size, **(usual | options))

    return make


# options of our recurrent layers that torch's recurrent layers do not have
TORCH_LACKS = ("generator", "last_only")


def torch_lstm(
    task: AbstractTask, size: int, options: dict[str, Any], draw: Draw
) -> nn.Module:
    """An LSTM with the initial values of TensorFlow and a single bias vector.

    The weights follow Glorot's rule, and the forget gate starts with a bias of 1.
    """
    network = maker(nn.LSTM, without=TORCH_LACKS)(task, size, options, draw)
    bound = glorot(task.input_size + size, 4 * size)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if name.startswith("weight"):
                p.copy_(draw.uniform(*p.shape, bound=bound))
            else:
                p.zero_()
            if name.startswith("bias_ih"):
                p[size : 2 * size] = 1
            # torch has a second bias vector, which it adds to the first: fix it at zero
            if name.startswith("bias_hh"):
                p.requires_grad_(False)
    return network


def glorot_output(task: AbstractTask, features: int) -> Output:
    """An output layer with Glorot's weights and zero biases."""
    return Output(bound=glorot(features, task.output_size))


def torch_output(_task: AbstractTask, features: int) -> Output:
    """An output layer with the initial values that torch gives a linear layer."""
    usual = 1 / math.sqrt(features)
    return Output(bound=usual, bias_bound=usual)


def output_exprnn(task: AbstractTask, features: int) -> Output:
    """An output layer with He's weights for copying, and torch's for other tasks."""
    if task.recipe == "copying":
        return Output(std=math.sqrt(2 / features))
    return torch_output(task, features)


def output_scornn(task: AbstractTask, features: int) -> Output:
    """An output layer with Glorot's weights and, for copying, also Glorot's biases."""
    outputs = task.output_size
    bias = glorot(outputs, outputs) if task.recipe == "copying" else 0.0
    return Output(bound=glorot(features, outputs), bias_bound=bias)


def output_eurnn(task: AbstractTask, _features: int) -> Output:
    """An output layer whose weights have Glorot's bound for the network's input size.

    The code of [JSD17] uses the input size instead of the number of features.
    """
    return Output(bound=glorot(task.input_size, task.output_size), bias=0.01)


@dataclass(frozen=True)
class Network:
    """A kind of network: how to make and train it, for every task and size.

    Attributes:
        make_layer: makes the network, without its output layer, from a task, a size,
            options and a source of initial values.
        schedule: returns the schedule for a task and a size.
        output: returns the initial values of the output layer for a task and a number
            of features; None if the network has its own output layer.
        options: returns the default options for a task and a size.
        parts: the parts of complex hidden states that the output layer reads.
        after_step: called with the network after each step of the optimizers.
    """

    make_layer: Callable[[AbstractTask, int, dict[str, Any], Draw], nn.Module]
    schedule: Callable[[str, int], Schedule]
    output: Callable[[AbstractTask, int], Output] | None = glorot_output
    options: Callable[[str, int], dict[str, Any]] = lambda _task, _size: {}
    parts: Parts = "both"
    after_step: Callable[[Any], None] = lambda _network: None

    def make_model(
        self, task: AbstractTask, size: int, options: Mapping[str, Any], draw: Draw
    ) -> nn.Module:
        """Make the network with its output layer and initial values."""
        network = self.make_layer(task, size, dict(options), draw)
        ours = isinstance(network, AbstractRecurrent)
        if not ours and not getattr(network, "reads_classes", False):
            network.register_forward_pre_hook(partial(unit_vectors, task.input_size))
        if self.output is None:
            return network
        is_complex = any(p.is_complex() for p in network.parameters())
        features = size * (2 if is_complex and self.parts == "both" else 1)
        layer = self.output(task, features).layer(features, task.output_size, draw)
        return SequenceModel(network, layer, parts=self.parts, last_only=task.last_only)


def options_exprnn(task: str, _size: int) -> dict[str, Any]:
    """Options of ExpRNN: the initial distribution of the recurrent weight."""
    return {"init": "cayley" if task in ("mnist", "pmnist") else "henaff"}


def options_scornn(task: str, size: int) -> dict[str, Any]:
    """Options of scoRNN: half of the signs are negative; on plain MNIST, a tenth."""
    return {"negatives": size // 10 if task == "mnist" else size // 2}


def options_structured(task: str, _size: int) -> dict[str, Any]:
    """Options of uRNN and RGD: on MNIST, permuted or not, the biases start at zero."""
    return {"bias_bound": 0.0 if task in ("mnist", "pmnist") else 0.01}


def options_eurnn(task: str, _size: int) -> dict[str, Any]:
    """Options of EURNN: the number of layers of rotations."""
    return {"capacity": {"copying": 12, "mnist": 4, "pmnist": 4}.get(task, 2)}


def _accept(value: Any) -> Network:
    """Check a user's own network, and wrap it in a `Network`."""
    if isinstance(value, Network):
        return value
    if not (isinstance(value, type) and issubclass(value, nn.Module)):
        raise TypeError(
            f"`model` must be a class that derives from torch.nn.Module; got {value!r}."
        )
    kind: Any = value
    signature = inspect.signature(kind)
    # a class that takes `output_size` has an output layer; to any other, we add one
    has_output = "output_size" in signature.parameters
    sizes = {"input_size": 1, "hidden_size": 1, "output_size": 1} if has_output else {}
    try:
        signature.bind(*(() if has_output else (1, 1)), **sizes)
    except TypeError as error:
        raise ValueError(
            f"`model` must be a class that is called with `input_size`, `hidden_size` "
            f"and, if it makes its own output layer, `output_size`; got {value!r}: "
            f"{error}. Give its other arguments a default."
        ) from error

    def make(
        task: AbstractTask, size: int, options: dict[str, Any], _draw: Draw
    ) -> nn.Module:
        if has_output:
            sizes = {"input_size": task.input_size, "output_size": task.output_size}
            return kind(**sizes, hidden_size=size, **options)
        return kind(task.input_size, size, **options)

    schedule = training.schedule_of(kind)
    return Network(make, lambda *_: schedule, None if has_output else torch_output)


NETWORKS: Registry[Network] = Registry(
    "model",
    "isometry.networks",
    {
        "exprnn": Network(
            maker(layers.ExpRNN),
            training.schedule_exprnn,
            output_exprnn,
            options_exprnn,
        ),
        "scornn": Network(
            maker(layers.ScoRNN),
            training.schedule_scornn,
            output_scornn,
            options_scornn,
        ),
        "scurnn": Network(maker(layers.ScuRNN), training.schedule_scurnn),
        "urnn": Network(
            maker(layers.URNN), training.schedule_urnn, options=options_structured
        ),
        "rgd": Network(
            maker(layers.FullCapacityURNN),
            training.schedule_rgd,
            options=options_structured,
        ),
        "eurnn": Network(
            maker(layers.EURNN),
            training.schedule_eurnn,
            output_eurnn,
            options_eurnn,
            parts="real",
        ),
        "householder": Network(
            maker(layers.HouseholderRNN),
            training.schedule_householder,
            after_step=layers.HouseholderRNN.renormalize_,
        ),
        "spectral": Network(maker(layers.SpectralRNN), training.schedule_spectral),
        "lie": Network(maker(layers.LieRNN), training.schedule_lie),
        "explstm": Network(maker(layers.ExpLSTM), training.schedule_exp_gated),
        "expgru": Network(maker(layers.ExpGRU), training.schedule_exp_gated),
        "lstm": Network(torch_lstm, training.schedule_lstm),
        # the GRU keeps the initial parameters that torch gives it
        "gru": Network(maker(nn.GRU, without=TORCH_LACKS), training.schedule_gru),
    },
    _accept,
)

# the default hidden size of a network that is not in `SIZES`
USUAL_SIZE = 128


def recipe(
    model: str, task: AbstractTask, hidden_size: int | None = None, **options: Any
) -> Recipe:
    """How to make a network and train it on a task.

    The networks of the paper are made and trained as by their authors.

    Args:
        model: a name in `NETWORKS`, such as "exprnn", "scornn" or "lstm".
        task: the task. Its `recipe` selects learning rates, sizes and options. Its
            `input_size` and `output_size` become those of the network.
        hidden_size: number of features of the hidden state. If None, the first size in
            `SIZES`, or 128 for your own network.
        **options: options of the network, which replace its default options.

    Returns:
        The recipe. Its function `make_model` makes the network.

    Raises:
        ValueError: if there is no such network, `task.recipe` is not known, or the task
            has no inputs or no outputs.
    """
    network = NETWORKS.find(model)
    if task.recipe not in EPOCHS | ITERATIONS:
        raise ValueError(
            f"`task.recipe` must be one of {', '.join(EPOCHS | ITERATIONS)}; got "
            f"{task.recipe!r}."
        )
    if min(task.input_size, task.output_size) < 1:
        raise ValueError(
            f"`input_size` and `output_size` must be at least 1; got "
            f"{task.input_size} and {task.output_size}."
        )
    sizes = SIZES.get(model, {}).get(task.recipe, (USUAL_SIZE,))
    size = sizes[0] if hidden_size is None else hidden_size
    options = {**network.options(task.recipe, size), **options}

    def make_model(**keywords: Any) -> nn.Module:
        return network.make_model(task, size, options, Draw(**keywords))

    return Recipe(
        name=model,
        hidden_size=size,
        make_model=make_model,
        options=options,
        schedule=network.schedule(task.recipe, size),
        after_step=lambda model: network.after_step(getattr(model, "network", model)),
        iterations=ITERATIONS.get(task.recipe),
        epochs=EPOCHS.get(task.recipe),
    )
