"""How to make networks and output layers for a task, and how to train them."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Adam, Optimizer, Rprop

from isometry._declare import manifold_of
from isometry.groups import AbstractManifold
from isometry.lab.task import AbstractTask
from isometry.nn._recurrent import AbstractRecurrent
from isometry.nn.comparators.cell import Draw, glorot
from isometry.optim._riemannian import AbstractRiemannian


@dataclass(frozen=True)
class OptimizerRecipe:
    """An optimizer, its options and the parameters that it updates.

    Attributes:
        optimizer_class: a class of `torch.optim` or `isometry.optim`, or your own.
        options: keyword arguments of the class.
        parameters: names of the parameters that the optimizer updates, such as
            "output.weight", or of the modules that contain them. If empty, the
            optimizer updates every parameter that no other optimizer names.
    """

    optimizer_class: type[Optimizer]
    options: Mapping[str, Any]
    parameters: tuple[str, ...] = ()

    def names_parameter(self, path: str) -> bool:
        """True if `parameters` names this parameter, or a module that contains it.

        A name may leave out outer modules: "weight" also names "output.weight".
        """
        return any(f".{name}." in f".{path}." for name in self.parameters)


@dataclass(frozen=True)
class Schedule:
    """The optimizers for a network on a task, and where their settings come from.

    Attributes:
        optimizers: the optimizers, each with the parameters that it updates.
        source: where the settings were published, or a note that they are ours.
        clip_norm: maximum norm of the gradient of all parameters together; larger
            gradients are scaled down to it. None for no clipping.
        decay: the factor by which all learning rates are multiplied, as a function of
            the fraction of the run that is done. None keeps the rates constant.
    """

    optimizers: tuple[OptimizerRecipe, ...]
    source: str
    clip_norm: float | None = None
    decay: Callable[[float], float] | None = None

    def __post_init__(self) -> None:
        if all(row.parameters for row in self.optimizers):
            named = [name for row in self.optimizers for name in row.parameters]
            raise ValueError(
                f"`optimizers` must include one without `parameters`, for all that no "
                f"optimizer names; got optimizers only for {', '.join(named) or 'none'}"
                f". Add one, such as `OptimizerRecipe(Adam, {{'lr': 1e-3}})`."
            )
        for row in self.optimizers:
            if "lr" not in row.options:
                raise ValueError(
                    f"`options` of an optimizer must have an `lr`; got "
                    f"{dict(row.options)} for {row.optimizer_class.__name__}."
                )


@dataclass(frozen=True)
class Recipe:
    """How a network is made and trained on a task.

    Attributes:
        name: name of the network.
        hidden_size: number of features of the hidden state.
        make_model: makes the network with its output layer and initial values. It takes
            the keywords `device`, `dtype` (of the real parameters) and `generator` (the
            source of the initial values). All of them are optional.
        options: options of the network other than its sizes, for `config.json`.
        schedule: the optimizers, and the clipping and decay that go with them.
        after_step: called with the result of `make_model` after each step.
        iterations: the default number of steps on endless data; None if not known.
        epochs: the default number of passes over finite data; None if not known.
    """

    name: str
    hidden_size: int
    make_model: Callable[..., Any]
    options: Mapping[str, Any]
    schedule: Schedule
    after_step: Callable[[nn.Module], None] = lambda _model: None
    iterations: int | None = None
    epochs: int | None = None

    def param_groups(
        self, model: nn.Module
    ) -> list[tuple[OptimizerRecipe, list[dict[str, Any]]]]:
        """Pair each optimizer with its parameter groups.

        An optimizer has a parameter group for each manifold on which it has parameters;
        the entry `manifold` of the group is this manifold. The optimizer's parameters
        that are on no manifold form another group, whose entry is None.

        Args:
            model: the network that `make_model` made.

        Returns:
            Pairs of an optimizer and its parameter groups. Optimizers without any
            parameters are left out.
        """
        pairs = []
        rows = self.schedule.optimizers
        for row in rows:
            by_manifold: dict[AbstractManifold | None, list[nn.Parameter]] = {}
            for path, p in model.named_parameters():
                named = any(other.names_parameter(path) for other in rows)
                moved = row.names_parameter(path) if named else not row.parameters
                if p.requires_grad and moved:
                    owner, _, name = path.rpartition(".")
                    manifold = manifold_of(model.get_submodule(owner), name)
                    by_manifold.setdefault(manifold, []).append(p)
            groups = [{"params": ps, "manifold": m} for m, ps in by_manifold.items()]
            if groups:
                pairs.append((row, groups))
        return pairs

    def make_optimizers(self, model: nn.Module) -> list[Optimizer]:
        """Make the optimizers of the schedule for the parameters of a model.

        Args:
            model: the network that `make_model` made.

        Returns:
            The optimizers. An optimizer without any parameters is left out.

        Raises:
            ValueError: if an optimizer that is not Riemannian would move a weight off
                its manifold, if the schedule has both Rprop and a `decay`, or if an
                optimizer rejects its parameters or options.
        """
        optimizers = []
        for row, groups in self.param_groups(model):
            name = row.optimizer_class.__name__
            on_manifold = any(group["manifold"] is not None for group in groups)
            if on_manifold and not issubclass(row.optimizer_class, AbstractRiemannian):
                raise ValueError(
                    f"`optimizer` must be or extend a class of isometry.optim, since a "
                    f"weight of {self.name} lives on a manifold; got {name}. Leave it "
                    f"out to use the paper's optimizer."
                )
            if self.schedule.decay is not None:
                if row.optimizer_class is Rprop:
                    raise ValueError(
                        "`decay` must be left out for Rprop: only step 1 uses `lr`."
                    )
                # `initial_lr`, as torch's schedulers call it, is the rate before any
                # decay. The training loop computes each step's rate from `initial_lr`.
                for group in groups:
                    group["initial_lr"] = row.options["lr"]
            try:
                optimizers.append(row.optimizer_class(groups, **row.options))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`optimizer` must accept the network's parameters; got "
                    f"{name}: {error}. Change its options, or choose another."
                ) from error
        return optimizers


# the parts of a complex hidden state that an output layer reads
Parts = Literal["both", "real"]


@dataclass(frozen=True)
class Output:
    """How to draw the initial values of an output layer.

    Attributes:
        bound: bound on the absolute values of the weights; used only if `std` is None.
        std: standard deviation of normally distributed weights; None for uniformly
            distributed weights.
        bias_bound: bound on the absolute values of the uniformly distributed biases.
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


def glorot_output(task: AbstractTask, features: int) -> Output:
    """Initial values of an output layer: Glorot's weights and zero biases."""
    return Output(bound=glorot(features, task.output_size))


def torch_output(_task: AbstractTask, features: int) -> Output:
    """Initial values of an output layer, distributed as in `torch.nn.Linear`."""
    usual = 1 / math.sqrt(features)
    return Output(bound=usual, bias_bound=usual)


class SequenceModel(nn.Module):
    r"""A recurrent network and a linear output layer, $y_t = V h_t + c$.

    If the hidden states $h_t$ are complex, the output layer reads their real parts
    followed by their imaginary parts, or the real parts alone.

    Args:
        network: a recurrent network of `isometry.nn`, or a layer with the interface of
            torch's `RNN`.
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
            If the states are a `PackedSequence`, so are all outputs.

        Raises:
            TypeError: if the network does not return all its states and its last state.
        """
        answer = self.network(x)
        # check the type, since a tensor with two time steps also unpacks to two values
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


def network_of(model: nn.Module) -> nn.Module:
    """The network inside a `SequenceModel`; any other model is a network itself."""
    return model.network if isinstance(model, SequenceModel) else model


def one_hot_inputs(classes: int, network: nn.Module, inputs: tuple) -> tuple:
    """A forward pre-hook that replaces class indices, if any, with one-hot vectors."""
    x, *rest = inputs
    if not isinstance(x, Tensor) or x.is_floating_point() or x.is_complex():
        return inputs
    real = (p.dtype for p in network.parameters() if p.is_floating_point())
    return one_hot(x.long(), classes).to(next(real, torch.get_default_dtype())), *rest


@dataclass(frozen=True)
class Network:
    """A kind of network: how to make and train it, for every task and size.

    Attributes:
        make_layer: makes the network from a task, a hidden size, options and a source
            of initial values. `make_model` adds the output layer.
        schedule: returns the schedule for a task's `settings_of` and a hidden size.
        output: returns the initial values of the output layer for a task and a number
            of features; None if the network has its own output layer.
        options: returns the default options; takes the same arguments as `schedule`.
        parts: the parts of complex hidden states that the output layer reads.
        after_step: called with the result of `make_layer` after each step.
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
            network.register_forward_pre_hook(partial(one_hot_inputs, task.input_size))
        if self.output is None:
            return network
        is_complex = any(p.is_complex() for p in network.parameters())
        features = size * (2 if is_complex and self.parts == "both" else 1)
        layer = self.output(task, features).layer(features, task.output_size, draw)
        return SequenceModel(network, layer, parts=self.parts, last_only=task.last_only)


# how a user's own network is trained, unless its class has an attribute `schedule`
USUAL = Schedule(
    (
        OptimizerRecipe(Adam, {"lr": 1e-3}),
        OptimizerRecipe(Adam, {"lr": 1e-4}, ("parametrizations",)),
    ),
    "ours: Adam, with a tenth of the rate for parametrized weights",
)


def accept(value: Any) -> Network:
    """Check a user's own network class, and make a `Network` of it.

    A value that is already a `Network` is returned unchanged.
    """
    if isinstance(value, Network):
        return value
    if not (isinstance(value, type) and issubclass(value, nn.Module)):
        raise TypeError(
            f"`model` must be a class that derives from torch.nn.Module; got {value!r}."
        )
    kind: Any = value
    signature = inspect.signature(kind)
    # if a class does not take `output_size`, `Network.make_model` adds an output layer
    has_output = "output_size" in signature.parameters

    def make(task: AbstractTask, size: int, options: dict[str, Any], _: Draw) -> Any:
        if has_output:
            return kind(
                input_size=task.input_size,
                hidden_size=size,
                output_size=task.output_size,
                **options,
            )
        return kind(task.input_size, size, **options)

    # check that `make` can call the class without options
    try:
        if has_output:
            signature.bind(input_size=1, hidden_size=1, output_size=1)
        else:
            signature.bind(1, 1)
    except TypeError as error:
        raise ValueError(
            f"`model` must be a class that is called with `input_size`, `hidden_size` "
            f"and, if it makes its own output layer, `output_size`; got {kind!r}: "
            f"{error}. Give its other arguments a default."
        ) from error
    schedule = _schedule_of(kind)
    return Network(make, lambda *_: schedule, None if has_output else torch_output)


def _schedule_of(kind: type[nn.Module]) -> Schedule:
    """The attribute `schedule` of a user's own network class, or the usual schedule."""
    schedule = getattr(kind, "schedule", USUAL)
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"`schedule` of {kind.__name__} must be an isometry.lab.Schedule; got "
            f"{schedule!r}. Write `Schedule((OptimizerRecipe(Adam, {{'lr': 1e-3}}),), "
            f"source='mine')`."
        )
    return schedule
