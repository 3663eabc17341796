"""Each message says what was expected, what was passed and what to do."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import isometry
from isometry import declare
from isometry.groups import SO, SU, O, Sphere, Stiefel, U
from isometry.optim import RiemannianAdam, RiemannianRMSprop, RiemannianSGD
from tests.optim.cases import plain

pytestmark = pytest.mark.errors

ALL = [RiemannianSGD, RiemannianAdam, RiemannianRMSprop]


@pytest.mark.parametrize("make", ALL)
def test_a_weight_is_on_its_manifold(make):
    """The constructor refuses a weight off its manifold.

    The error has the defect, its bound and the remedy.
    """
    p = nn.Parameter(2 * torch.eye(3))
    with pytest.raises(
        ValueError,
        match=r"`params\[0\]` must be a point of SO\(n=3\); got a defect of \S+, above "
        r"\S+ for torch.float32. Project it first, with `SO\(n=3\).nearest",
    ):
        make([p], manifold=SO(3))


def test_a_weight_is_still_on_its_manifold_at_the_first_step():
    """The first step refuses a weight that has left its manifold since.

    For example, a checkpoint may have been loaded whose weight is off the manifold. Its
    defect used to stay for good.
    """
    p = nn.Parameter(torch.eye(3))
    optimizer = RiemannianSGD([p], manifold=SO(3))
    p.data.mul_(1.5)
    p.grad = torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"must be a point of SO\(n=3\); got a defect"):
        optimizer.step()


def test_a_refused_group_is_not_added():
    p = nn.Parameter(torch.eye(3))
    optimizer = RiemannianSGD([p], manifold=SO(3))
    other = nn.Parameter(torch.ones(3, 3))
    with pytest.raises(ValueError, match="must be a point"):
        optimizer.add_param_group({"params": [other]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [other], "manifold": None})


def test_names_are_those_of_the_parameters():
    layer = nn.Linear(3, 3, bias=False)
    with pytest.raises(ValueError, match=r"`weight` must be a point of SO\(n=3\)"):
        RiemannianSGD(layer.named_parameters(), manifold=SO(3))


def test_a_manifold_has_the_shape_of_its_weight():
    p = nn.Parameter(torch.eye(3))
    with pytest.raises(
        ValueError,
        match=r"shape \(\*batch, 4, 4\) for SO\(n=4\); got \(3, 3\). Use a manifold",
    ):
        RiemannianSGD([p], manifold=SO(4))
    # its columns are orthonormal, but the manifold has another number of rows and
    # columns
    with pytest.raises(ValueError, match=r"shape \(\*batch, 5, 2\) .* got \(3, 2\)"):
        RiemannianSGD([nn.Parameter(torch.eye(3, 2))], manifold=Stiefel(5, 2))


def test_a_manifold_has_the_field_of_its_weight():
    with pytest.raises(TypeError, match=r"complex dtype for U\(n=3\); got torch.fl"):
        RiemannianSGD([nn.Parameter(torch.eye(3))], manifold=U(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_no_point(dtype):
    p = nn.Parameter(torch.eye(3, dtype=dtype))
    with pytest.raises(
        TypeError, match=r"must be in single or double precision .* got torch\.\w+16\."
    ):
        RiemannianSGD([p], manifold=SO(3))


def test_sharded_parameters_are_no_points(tmp_path):
    """A sharded parameter is refused, since a shard has no orthonormal columns."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    layer = nn.Linear(3, 3, bias=False)
    layer.weight = nn.Parameter(torch.eye(3))
    fully_shard(layer)
    try:
        with pytest.raises(TypeError, match=r"must be whole on every rank .* DTensor"):
            RiemannianSGD(layer.parameters(), manifold=SO(3))
    finally:
        dist.destroy_process_group()


def test_a_manifold_is_an_object():
    wrong: Any = SO
    with pytest.raises(TypeError, match=r"`manifold` must be a manifold .* got <class"):
        RiemannianSGD([nn.Parameter(torch.eye(3))], manifold=wrong)


@pytest.mark.parametrize("make", ALL)
def test_retractions_have_names(make):
    p = nn.Parameter(torch.eye(3))
    with pytest.raises(
        ValueError,
        match=r"`retraction` must be one of exp, cayley, pade-m, polar, qr for "
        r"SO\(n=3\); got 'expm'",
    ):
        make([p], manifold=SO(3), retraction="expm")
    with pytest.raises(ValueError, match=r"one of exp, polar, qr for SU\(n=3\); got"):
        make(
            [{"params": [nn.Parameter(torch.eye(3) + 0j)], "retraction": "cayley"}],
            manifold=SU(3),
        )


def test_gradients_of_points_are_dense():
    layer = nn.Embedding(4, 4, sparse=True)
    layer.weight = nn.Parameter(torch.eye(4))
    optimizer = RiemannianSGD(layer.parameters(), manifold=Sphere(4))
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match=r"must be dense; got torch.sparse_coo. Create"):
        optimizer.step()


@pytest.mark.parametrize("rule", [RiemannianAdam, RiemannianRMSprop], ids=str)
def test_sparse_gradients_of_plain_parameters_are_refused_by_adaptive_rules(rule):
    """Adaptive rules refuse sparse gradients, as in torch.

    Their means of squares are dense.
    """
    layer = nn.Embedding(4, 4, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    optimizer = rule(plain(layer.parameters()), lr=0.1)
    with pytest.raises(
        TypeError, match=rf"of {rule.__name__} must be dense; got torch"
    ):
        optimizer.step()


def test_a_checkpoint_of_another_manifold_is_refused():
    """A checkpoint of O(3) is refused by SO(3), which lacks the reflections."""
    p = nn.Parameter(torch.eye(3))
    saved = RiemannianSGD([p], manifold=O(3)).state_dict()
    with pytest.raises(
        ValueError, match=r"got a group on O\(n=3\) where .* has SO\(n=3\)"
    ):
        RiemannianSGD([p], manifold=SO(3)).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"where this optimizer has None"):
        RiemannianSGD(plain([p])).load_state_dict(saved)
    two = [{"params": [p]}, {"params": [nn.Parameter(torch.eye(2))], "manifold": None}]
    # this is torch's own message
    with pytest.raises(ValueError, match="different number of parameter groups"):
        RiemannianSGD(two, manifold=SO(3)).load_state_dict(
            RiemannianSGD([p], manifold=SO(3)).state_dict()
        )


@pytest.mark.parametrize(
    ("make", "theirs", "options"),
    [
        (RiemannianRMSprop, torch.optim.RMSprop, {"centered": True}),
        (RiemannianAdam, torch.optim.AdamW, {}),
    ],
)
def test_a_checkpoint_of_another_rule_is_refused(make, theirs, options):
    """A checkpoint of another rule is refused.

    It used to load, and training went on by our rule.
    """
    p = nn.Parameter(torch.ones(3))
    saved = theirs([p], **options).state_dict()
    with pytest.raises(
        ValueError,
        match=r"`state_dict` must come .*; got (centered|decoupled_w.*)=True",
    ):
        make(plain([p])).load_state_dict(saved)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (RiemannianSGD, {"lr": -1.0}),
        (RiemannianSGD, {"momentum": -0.1}),
        (RiemannianSGD, {"weight_decay": math.nan}),
        (RiemannianAdam, {"eps": -1e-8}),
        (RiemannianRMSprop, {"alpha": -0.5}),
        (RiemannianRMSprop, {"initial_accumulator": -1.0}),
    ],
)
def test_numbers_are_not_negative(make, options):
    (name,) = options
    parameters = [nn.Parameter(torch.ones(1))]
    with pytest.raises(ValueError, match=rf"`{name}` must be at least 0; got"):
        make(parameters, **options)
    # options of a parameter group used to be unchecked
    with pytest.raises(ValueError, match=rf"`{name}` must be at least 0; got"):
        make([{"params": parameters, "manifold": None, **options}])


def test_numbers_are_numbers():
    """A rate that is a string used to be Python's own error about `>=`."""
    rate: Any = "0.1"
    with pytest.raises(TypeError, match=r"`lr` must be a number; got '0\.1'"):
        RiemannianSGD([nn.Parameter(torch.eye(3))], lr=rate, manifold=SO(3))


def test_betas_are_below_one():
    with pytest.raises(ValueError, match=r"`betas` must be at least 0 and below 1; go"):
        RiemannianAdam([nn.Parameter(torch.ones(1))], betas=(0.9, 1.0))
    group = {"params": [nn.Parameter(torch.ones(1))], "manifold": None}
    # betas of a parameter group used to be unchecked
    with pytest.raises(ValueError, match=r"`betas` must be at least 0 and below 1; go"):
        RiemannianAdam([{**group, "betas": (0.9, 1.0)}])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "dampening": 0.1}])
def test_nesterov_has_a_momentum(options):
    with pytest.raises(ValueError, match=r"`nesterov` must have a momentum and no da"):
        RiemannianSGD([nn.Parameter(torch.ones(1))], nesterov=True, **options)
    group = {"params": [nn.Parameter(torch.ones(1))], "manifold": None}
    # options of a parameter group used to be unchecked
    with pytest.raises(ValueError, match=r"`nesterov` must have a momentum and no da"):
        RiemannianSGD([{**group, "nesterov": True, **options}])


@pytest.mark.parametrize("make", ALL)
def test_somebody_says_where_parameters_live(make):
    """The manifold must be named.

    `RiemannianAdam([Q])` used to be plain Adam, and Q left the group.
    """
    Q, p = nn.Parameter(torch.eye(3)), nn.Parameter(torch.ones(2))
    kind = make.__name__.removeprefix("Riemannian")
    message = rf"`manifold` must be given, .* plain, use `torch\.optim\.{kind}`"
    lists: list[Any] = [[Q], iter([Q, p]), [("Q", Q)], [{"params": [Q], "lr": 0.1}]]
    for params in lists:
        with pytest.raises(ValueError, match=message):
            make(params)
    with pytest.raises(ValueError, match=message):
        make(declared_model().parameters())
    with pytest.raises(ValueError, match=message):
        make(isometry.param_groups(nn.Linear(3, 3), lr=0.1))
    # these are torch's own messages
    tensor: Any = Q
    with pytest.raises(TypeError, match="should be an iterable of Tensors"):
        make(tensor)
    with pytest.raises(ValueError, match="empty parameter list"):
        make([])


@pytest.mark.parametrize("make", ALL)
def test_plain_parameters_beside_points(make):
    """One named manifold is enough; None counts as a name."""
    Q, p = nn.Parameter(torch.eye(3)), nn.Parameter(torch.ones(2))
    mixed = make([{"params": [p]}, {"params": iter([Q]), "manifold": SO(3)}])
    assert [group["manifold"] for group in mixed.param_groups] == [None, SO(3)]
    later = make(plain([p]))
    later.add_param_group({"params": [Q], "manifold": SO(3)})
    assert [group["manifold"] for group in later.param_groups] == [None, SO(3)]
    make(isometry.param_groups(declared_model(), lr=0.1))
    make(iter([Q]), manifold=SO(3))


def declared_model() -> nn.Linear:
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.eye(3))
    declare(model, "weight", SO(3))
    return model


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW])
def test_other_optimizers_do_not_step_on_a_manifold(make):
    """torch's optimizers refuse groups with a manifold.

    They used to ignore the option, and the weight left SO(3) silently (issue 14).
    """
    model = declared_model()
    optimizer = make(isometry.param_groups(model, lr=0.1))
    model(torch.ones(3)).square().sum().backward()
    with pytest.raises(
        TypeError, match=r"keep parameters on .*ignores the SO\(n=3\) of"
    ):
        optimizer.step()
    assert torch.equal(model.weight, torch.eye(3))


@pytest.mark.errors
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.LBFGS])
def test_a_declared_parameter_does_not_leave_its_manifold_silently(kind):
    """`Adam(model.parameters())` refuses to move a declared parameter.

    It used to move the parameter, because only parameter groups made by `param_groups`
    were checked. LBFGS computes its gradients after the hook has been called.
    """
    model = declared_model()
    optimizer = kind(model.parameters(), lr=0.1)

    def loss() -> Any:
        value = model(torch.ones(3)).square().sum()
        value.backward()
        return value

    loss()
    with pytest.raises(TypeError, match=r"got \w+, which ignores the SO\(n=3\) of"):
        optimizer.step(loss)
    assert torch.equal(model.weight, torch.eye(3))
    # a frozen weight does not move, and a constrained one stays where it belongs
    model.requires_grad_(False)
    optimizer.step(lambda: torch.zeros(()))
    model.requires_grad_(True)
    isometry.constrain(model, SO(3))
    optimizer.step(loss)
    assert not torch.equal(model.weight, torch.eye(3))


@pytest.mark.errors
def test_a_plain_group_does_not_take_a_declared_parameter():
    """Our optimizers refuse a declared parameter in a group with `manifold=None`.

    They used to move it off its manifold silently.
    """
    model = declared_model()
    optimizer = RiemannianAdam(
        [
            {"params": [model.bias], "manifold": None},
            {"params": [model.weight], "manifold": None},
        ],
        lr=0.1,
    )
    model(torch.ones(3)).square().sum().backward()
    with pytest.raises(
        TypeError,
        match=r"got RiemannianAdam with `manifold=None` .* on SO\(n=3\) in "
        r"`param_groups\[1\]`\. Make",
    ):
        optimizer.step()
    assert torch.equal(model.weight, torch.eye(3))
    # a frozen weight does not move
    model.weight.requires_grad_(False).grad = None
    optimizer.step()
    assert torch.equal(model.weight, torch.eye(3))


def test_optimizers_that_know_manifolds_step_on_them():
    """Our optimizers step on manifolds, also inside of a wrapper.

    torch's optimizers step on plain parameters and coordinates.
    """

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> None:
            self.inner.step(closure)

    model = declared_model()
    ours = RiemannianAdam(isometry.param_groups(model, lr=0.1))
    for optimizer in (ours, Wrapper(ours)):
        model(torch.ones(3)).square().sum().backward()
        before = model.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(model.weight, before)
        assert SO(3).contains(model.weight)
    layer = isometry.orthogonal(nn.Linear(3, 3))
    torch.optim.Adam(isometry.param_groups(layer, lr=0.1)).step()
