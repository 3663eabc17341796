"""Riemannian gradient descent, with momentum."""

from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from isometry.groups import AbstractManifold
from isometry.groups._maps import RetractionLike
from isometry.optim._riemannian import (
    AbstractRiemannian,
    ParamGroup,
    Past,
    Update,
    with_gradients,
)


class RiemannianSGD(AbstractRiemannian):
    r"""Riemannian gradient descent (RGD), with momentum.

    On a group, with the skew matrix $A_t = Q_t^H \operatorname{grad} f(Q_t)$ and a
    retraction $\phi$ at the identity,

    $$ B_t = \mu B_{t-1} + (1 - \tau) A_t, \quad B_1 = A_1, \qquad
       Q_{t+1} = Q_t\, \phi(-\eta D_t), $$

    where $D_t = B_t$, or $A_t + \mu B_t$ with `nesterov`. With exp and no momentum,
    this is $Q \leftarrow Q \exp(-\eta\, Q^H \operatorname{grad} f(Q))$. The momentum
    $B$ is an element of the Lie algebra, and stands for the tangent vector $QB$. Left
    translation, which is an isometry, moves this vector to the new point without
    changing $B$. On the Stiefel manifold and the sphere, $B$ is itself a tangent vector
    and is transported with the point. The equations are in docs/theory/optimizers.md.

    Parameter groups without a manifold are plain: they get exactly the update of
    `torch.optim.SGD`. `weight_decay` affects only plain parameter groups, because
    $\lVert Q \rVert$ is constant on the manifolds of `isometry.groups`. A matrix whose
    gradient or step is not finite keeps its value and its momentum. So does a matrix
    whose step is so long that too few correct digits would be left, for instance $1 /
    \sqrt\varepsilon$ radians, where $\varepsilon$ is the machine precision. If this
    happens, clip the gradients, or choose a smaller learning rate.

    Args:
        params: parameters, or parameter groups with their own options, such as
            `manifold` and `retraction`; `isometry.param_groups` creates them.
        lr: $\eta$.
        momentum: $\mu$.
        dampening: $\tau$.
        weight_decay: weight decay of the plain parameter groups.
        nesterov: whether to use Nesterov's direction $A_t + \mu B_t$.
        maximize: whether to ascend instead of descend.
        manifold: the default for parameter groups without this option. If it is None,
            at least one parameter group must have the option, and parameter groups
            without a manifold are plain. A wide matrix is treated as its transpose.
        retraction: "exp", "cayley", "pade-m", "polar" or "qr", or a map from
            `isometry.groups`, or your own map.

    Raises:
        TypeError: if a parameter is real and its manifold is complex, or the other way
            round, or if a parameter on a manifold is sharded or in half precision.
        ValueError: if a parameter is not on its manifold, no manifold is named, or an
            option is not valid.

    References:
        [LM19] section 4.2, on retractions that are closer to exp than the Cayley map.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        maximize: bool = False,
        manifold: AbstractManifold | None = None,
        retraction: RetractionLike = "exp",
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
            manifold=manifold,
            retraction=retraction,
        )

    def _rule(self, g: Tensor, past: Past, group: ParamGroup) -> Update:
        mu = group["momentum"]
        scale = -group["lr"]
        if mu == 0:
            return Update(g, scale, past.unused("momentum_buffer"))
        b = g.clone() if group["nesterov"] else g
        if "momentum_buffer" in past.state:
            if group["dampening"] != 0:
                b.mul_(1 - group["dampening"])
            b.add_(past.state["momentum_buffer"], alpha=mu)
        direction = g.add_(b, alpha=mu) if group["nesterov"] else b
        return Update(direction, scale, {"momentum_buffer": b})

    def _plain_step(self, group: ParamGroup) -> None:
        params, gradients = with_gradients(group["params"])
        buffers: list[Tensor | None] = [
            self.state[p].get("momentum_buffer") for p in params
        ]
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        sgd(
            params,
            gradients,
            buffers,
            has_sparse_grad=any(g.is_sparse for g in gradients),
            **{name: group[name] for name in names},
        )
        if group["momentum"] != 0:
            for p, buffer in zip(params, buffers, strict=True):
                self.state[p]["momentum_buffer"] = buffer
