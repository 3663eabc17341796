"""Adam on manifolds."""

import math

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import ParamsT

from isometry._backend.memory import recycled
from isometry.groups import AbstractManifold
from isometry.groups._maps import RetractionLike
from isometry.optim._riemannian import AbstractRiemannian, ParamGroup, Past, Update


class RiemannianAdam(AbstractRiemannian):
    r"""Adam, or AMSGrad, on a manifold.

    On a group, let $A_t = Q_t^H \operatorname{grad} f(Q_t)$, a skew matrix. The moments
    are computed entry by entry, separately for real and imaginary parts:

    $$ M_t = \beta_1 M_{t-1} + (1 - \beta_1) A_t, \qquad
       V_t = \beta_2 V_{t-1} + (1 - \beta_2) A_t^2, $$

    $$ Q_{t+1} = Q_t\, \phi \Bigl( -\eta\, \frac{M_t / (1 - \beta_1^t)}
       {\sqrt{V_t / (1 - \beta_2^t)} + \epsilon} \Bigr), $$

    with the retraction $\phi$ at the identity. If the Lie algebra does not contain all
    skew matrices, the quotient is projected onto the algebra. With `amsgrad`, the step
    uses the largest value so far of each entry of $V_t$.

    An entry of $A_t$ means the same at every point, because the Lie algebra does not
    depend on the point. On the Stiefel manifold and the sphere, the entries of tangent
    vectors at different points cannot be compared. There, the mean square of the
    gradient's entries takes the place of $A_t^2$, so $V$ is a single number, and $M$ is
    transported with the point: see docs/theory/optimizers.md.

    Parameter groups without a manifold are plain: they get the update of
    `torch.optim.Adam`. Weight decay, and steps that are not finite, are handled as in
    `RiemannianSGD`.

    Args:
        params: parameters, or parameter groups with their own options, such as
            `manifold` and `retraction`; `isometry.param_groups` creates them.
        lr: $\eta$, roughly the change of an entry in one step.
        betas: $\beta_1$ and $\beta_2$.
        eps: $\epsilon$.
        weight_decay: weight decay of the plain parameter groups.
        amsgrad: whether to use the largest value so far instead of $V_t$ (AMSGrad).
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
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        amsgrad: bool = False,
        maximize: bool = False,
        manifold: AbstractManifold | None = None,
        retraction: RetractionLike = "exp",
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            manifold=manifold,
            retraction=retraction,
        )

    def _rule(self, g: Tensor, past: Past, group: ParamGroup) -> Update:
        state, step, square = past
        beta1, beta2 = group["betas"]
        v = square(g).mul_(1 - beta2)
        m = g.mul_(1 - beta1)
        if "exp_avg" in state:
            m.add_(state["exp_avg"], alpha=beta1)
            v.add_(state["exp_avg_sq"], alpha=beta2)
        squares = {"exp_avg_sq": v}
        if group["amsgrad"]:
            v = torch.maximum(v, state.get("max_exp_avg_sq", torch.zeros_like(v)))
            squares["max_exp_avg_sq"] = v
        # both bias corrections are scalars, so include them in the scale
        c = math.sqrt(1 - beta2**step)
        root = torch.sqrt(v, out=recycled(v.shape, v)).add_(c * group["eps"])
        if group["eps"] == 0:
            # on the diagonal of a real skew matrix, which is 0, the step would be 0 / 0
            root.clamp_(min=torch.finfo(root.dtype).tiny)
        scale = root.reciprocal_().mul_(-group["lr"] * (c / (1 - beta1**step)))
        return Update(m, scale, {"exp_avg": m}, squares)

    def _plain_step(self, group: ParamGroup) -> None:
        buffers = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        if group["amsgrad"]:
            buffers["max_exp_avg_sq"] = 0.0
        params, gradients, state = self._plain_state(group, **buffers)
        steps, averages, squares, *largest = state
        options = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        adam(
            params,
            gradients,
            averages,
            squares,
            largest[0] if largest else [],
            steps,
            has_complex=any(p.is_complex() for p in params),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            **{name: group[name] for name in options},
        )
