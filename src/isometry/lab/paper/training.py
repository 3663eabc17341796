"""How the networks of the paper were trained, as data.

The numbers are from the papers and programs of the networks' authors. `Schedule.source`
names the paper, or says that the numbers are ours because none are published. RMSprop
differs from library to library, enough to change results. The options of
`isometry.optim.RiemannianRMSprop` can imitate each of these libraries.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Adam, Optimizer, RMSprop, Rprop

import isometry.optim
from isometry._declare import manifold_of
from isometry.groups import AbstractManifold
from isometry.optim import RiemannianRMSprop, RiemannianSGD


@dataclass(frozen=True)
class OptimizerRecipe:
    """An optimizer, its options and the parameters that it moves.

    Attributes:
        optimizer_class: a class of `torch.optim` or of `isometry.optim`.
        options: the arguments of the class.
        parameters: names of the parameters that the optimizer moves, such as
            "output.weight", or of the modules that hold them. If empty, it moves every
            parameter that no other optimizer moves.
    """

    optimizer_class: type[Optimizer]
    options: Mapping[str, Any]
    parameters: tuple[str, ...] = ()

    def names_parameter(self, path: str) -> bool:
        """True if `parameters` names the parameter with this path in a network."""
        return any(f".{name}." in f".{path}." for name in self.parameters)


@dataclass(frozen=True)
class Schedule:
    """The optimizers of a network on a task, and where their numbers come from.

    Attributes:
        optimizers: the optimizers, each with the parameters that it moves.
        source: where the numbers were published, or a note that they are ours.
        clip_norm: maximum norm of the gradient of all parameters together; longer
            gradients are clipped. None for no clipping.
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
                f"`optimizers` must have one without `parameters`, to move all "
                f"parameters that no optimizer names; got optimizers only for "
                f"{', '.join(named) or 'nothing'}. Add one, such as "
                f"`OptimizerRecipe(Adam, {{'lr': 1e-3}})`."
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
            source of the initial values). All may be left out.
        options: options of the network, besides its sizes, as they are recorded.
        schedule: the optimizers, and the clipping and decay that go with them.
        after_step: called with the network after each step of the optimizers.
        iterations: the usual number of steps; None if `epochs` gives the length.
        epochs: the usual number of passes over the data; None if the data is endless.
    """

    name: str
    hidden_size: int
    make_model: Callable[..., Any]
    options: Mapping[str, Any]
    schedule: Schedule
    after_step: Callable[[nn.Module], None] = lambda _model: None
    iterations: int | None = None
    epochs: int | None = None

    @property
    def optimizers(self) -> tuple[OptimizerRecipe, ...]:
        """The optimizers, each with the parameters that it moves."""
        return self.schedule.optimizers

    def param_groups(
        self, model: nn.Module
    ) -> list[tuple[OptimizerRecipe, list[dict[str, Any]]]]:
        """Pair each optimizer with its parameter groups.

        Parameters on the same manifold form a parameter group, whose entry `manifold`
        is that manifold. For all other parameters, this entry is None.

        Args:
            model: the network that `make_model` made.

        Returns:
            Pairs of an optimizer and its parameter groups. Optimizers that would move
            nothing are left out.
        """
        pairs = []
        for row in self.optimizers:
            by_manifold: dict[AbstractManifold | None, list[nn.Parameter]] = {}
            for path, p in model.named_parameters():
                named = any(other.names_parameter(path) for other in self.optimizers)
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
        """Make the optimizers.

        Args:
            model: the network that `make_model` made.

        Returns:
            The optimizers, without those that would have no parameters to move.

        Raises:
            ValueError: if a plain optimizer would move a weight off its manifold, or an
                optimizer does not take the parameters.
        """
        optimizers = []
        for row, groups in self.param_groups(model):
            name = row.optimizer_class.__name__
            on_manifold = any(group["manifold"] is not None for group in groups)
            if on_manifold and not hasattr(isometry.optim, name):
                raise ValueError(
                    f"`optimizer` must be one of isometry.optim, since a weight of "
                    f"{self.name} lives on a manifold; got {name}. Leave it out for "
                    f"the optimizer of the paper."
                )
            if self.schedule.decay is not None:
                if row.optimizer_class is Rprop:
                    raise ValueError(
                        "`decay` must be left out for Rprop, which uses the learning "
                        "rate only in its first step."
                    )
                # `initial_lr`, as torch's schedulers call it, is the rate before any
                # decay. Checkpoints store it.
                for group in groups:
                    group["initial_lr"] = row.options["lr"]
            try:
                optimizers.append(row.optimizer_class(groups, **row.options))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"`optimizer` must be one that takes these parameters; got "
                    f"{name}: {error}. Choose another optimizer, such as Adam."
                ) from error
        return optimizers


def cosine(done: float) -> float:
    r"""The decay $(1 + \cos \pi x) / 2$ at $x$ = `done`: half a cosine from 1 to 0."""
    return (1 + math.cos(math.pi * done)) / 2


def linear(done: float) -> float:
    """A decay along a straight line from 1 to 0."""
    return 1 - done


# Values of the option `decay`, and how learning rates decay with them. The paper keeps
# the rates constant.
DECAYS: dict[str, Callable[[float], float]] = {"cosine": cosine, "linear": linear}

UNPUBLISHED = "ours: none is published"

# how a user's own network is trained, unless its class has an attribute `schedule`
USUAL = Schedule(
    (
        OptimizerRecipe(Adam, {"lr": 1e-3}),
        OptimizerRecipe(Adam, {"lr": 1e-4}, ("parametrizations",)),
    ),
    "ours: Adam, with a tenth of the rate for parametrized weights",
)


def schedule_of(network: type[nn.Module]) -> Schedule:
    """The schedule of a user's own network: its attribute `schedule`, or else Adam.

    Args:
        network: the class.

    Returns:
        The schedule.

    Raises:
        TypeError: if the attribute is not a schedule.
    """
    schedule = getattr(network, "schedule", USUAL)
    if not isinstance(schedule, Schedule):
        raise TypeError(
            f"`schedule` of {network.__name__} must be an isometry.lab.Schedule; got "
            f"{schedule!r}. Write `Schedule((OptimizerRecipe(Adam, {{'lr': 1e-3}}),), "
            f"source='mine')`."
        )
    return schedule


# the options that make RiemannianRMSprop behave like RMSprop in other libraries
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
    """RMSprop as in torch, or as in another library if `like` gives its options."""
    if like is None:
        return OptimizerRecipe(RMSprop, {"lr": lr}, parameters)
    return OptimizerRecipe(RiemannianRMSprop, {"lr": lr, **like}, parameters)


def adam(lr: float, *parameters: str) -> OptimizerRecipe:
    """Adam as in torch."""
    return OptimizerRecipe(Adam, {"lr": lr}, parameters)


def descent(lr: float, *parameters: str) -> OptimizerRecipe:
    """Riemannian gradient descent with the Cayley retraction, as in [WPH16]."""
    return OptimizerRecipe(
        RiemannianSGD, {"lr": lr, "retraction": "cayley"}, parameters
    )


def nearest(table: Mapping[int, float], size: int) -> float:
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

    On TIMIT, Adam moves all parameters except the orthogonal weight.
    """
    lr = nearest(EXPRNN[task], size)
    rest = adam(lr) if task == "timit" else rmsprop(lr)
    source = (
        UNPUBLISHED if task == "adding" else "[LM19] appendix, table of hyperparameters"
    )
    return Schedule((rest, rmsprop(lr / 10, "weight_hh")), source)


def schedule_scornn(task: str, _size: int) -> Schedule:
    """Schedule of scoRNN: RMSprop, with a tenth of the rate for the skew matrix A.

    The options of RMSprop are TensorFlow's. On the adding problem, Adam moves all
    parameters except A.
    """
    A = rmsprop(1e-4, "X", like=TENSORFLOW)
    rest = adam(1e-3) if task == "adding" else rmsprop(1e-3, like=TENSORFLOW)
    return Schedule((rest, A), UNPUBLISHED if task == "timit" else "[HWY18], its code")


def schedule_scurnn(task: str, _size: int) -> Schedule:
    """Schedule of scuRNN: RMSprop for the skew matrix, and two more optimizers.

    Adagrad moves the angles of the diagonal matrix D. Adam moves all other parameters.
    """
    inside = {"alpha": 0.9, "eps": 1e-8, "eps_inside": True}
    adagrad = {"eps": 0.0, "initial_accumulator": 0.1, "sum_squares": True}
    theta = rmsprop(1e-4 if task == "copying" else 1e-3, "theta", like=adagrad)
    source = UNPUBLISHED if task in ("timit", "pmnist") else "[MHY19], its code"
    return Schedule((adam(1e-3), rmsprop(1e-4, "X", like=inside), theta), source)


def schedule_urnn(task: str, _size: int) -> Schedule:
    """Schedule of uRNN: Keras's RMSprop on MNIST, and Theano's on other tasks."""
    if task in ("mnist", "pmnist"):
        return Schedule((rmsprop(1e-4, like=KERAS),), "[WPH16], its code")
    return Schedule((rmsprop(1e-3, like=THEANO),), "[ASB16] and [WPH16], their code")


def schedule_rgd(task: str, size: int) -> Schedule:
    """Schedule of RGD: W moves on the unitary group, by Cayley retractions.

    W moves by Riemannian gradient descent or, on MNIST, by RMSprop. From the gradient
    $G$ at $W$, the authors compute $S = G W^H - W G^H$. This is twice our Riemannian
    gradient, so we double their rates for $W$. They apply RMSprop to the entries of
    $G$; we apply it in the Lie algebra.
    """
    if task not in ("mnist", "pmnist"):
        rest = rmsprop(1e-3, like=THEANO)
        source = UNPUBLISHED if task == "adding" else "[WPH16], its code"
        return Schedule((rest, descent(2e-3, "weight_hh")), source)
    rest = rmsprop(nearest({116: 1e-3, 512: 1e-4}, size), like=KERAS)
    like = {**KERAS, "retraction": "cayley"}
    W = rmsprop(2e-6, "weight_hh", like=like)
    return Schedule((rest, W), "[WPH16], its code; adapted in the Lie algebra")


def schedule_eurnn(task: str, _size: int) -> Schedule:
    """Schedule of EURNN: TensorFlow's RMSprop."""
    lr = 1e-4 if task in ("mnist", "pmnist") else 1e-3
    source = UNPUBLISHED if task in ("timit", "adding") else "[JSD17], its code"
    return Schedule((rmsprop(lr, like=TENSORFLOW),), source)


def schedule_lstm(task: str, _size: int) -> Schedule:
    """Schedule of the LSTM: from [WPH16] on MNIST, permuted or not, else ours."""
    if task in ("mnist", "pmnist"):
        return Schedule((rmsprop(1e-3, like=KERAS),), "[WPH16], its code", clip_norm=1)
    if task == "timit":
        return Schedule((adam(1e-3),), UNPUBLISHED)
    return Schedule((rmsprop(1e-3, like=TENSORFLOW),), UNPUBLISHED)


def schedule_gru(task: str, size: int) -> Schedule:
    """Schedule of the GRU: the optimizers of the LSTM."""
    lstm = schedule_lstm(task, size)
    return Schedule(lstm.optimizers, UNPUBLISHED, lstm.clip_norm)


def schedule_exp_gated(task: str, size: int) -> Schedule:
    """Schedule of ExpLSTM and ExpGRU: the optimizers of ExpRNN."""
    return Schedule(schedule_exprnn(task, size).optimizers, UNPUBLISHED)


def schedule_householder(_task: str, _size: int) -> Schedule:
    """Schedule of HouseholderRNN: Adam, with normalized reflections after each step."""
    return Schedule((adam(1e-3),), "[MHRB17], its code")


def schedule_spectral(_task: str, _size: int) -> Schedule:
    """Schedule of SpectralRNN: Riemannian descent for U and V, RMSprop for the rest."""
    return Schedule((rmsprop(1e-4), descent(1e-4, "U", "V")), UNPUBLISHED)


def schedule_lie(_task: str, _size: int) -> Schedule:
    """Schedule of LieRNN: RMSprop, with a tenth of the rate for its coefficients."""
    return Schedule((rmsprop(1e-3), rmsprop(1e-4, "X")), UNPUBLISHED)
