"""RMSprop on manifolds, including its variants in older libraries."""

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.rmsprop import rmsprop

from isometry.groups import AbstractManifold
from isometry.groups._maps import RetractionLike
from isometry.optim._riemannian import AbstractRiemannian, ParamGroup, Past, Update


class RiemannianRMSprop(AbstractRiemannian):
    r"""RMSprop, or Adagrad, on a manifold.

    On a group, let $A_t = Q_t^H \operatorname{grad} f(Q_t)$, a skew matrix. Entry by
    entry, separately for real and imaginary parts,

    $$ V_t = \alpha V_{t-1} + (1 - \alpha) A_t^2, \qquad
       B_t = \mu B_{t-1} + \frac{A_t}{\sqrt{V_t} + \epsilon}, \qquad
       Q_{t+1} = Q_t\, \phi(-\eta B_t). $$

    Here $\phi$ is the retraction at the identity. If the Lie algebra does not contain
    all skew matrices, the step $-\eta B_t$ is projected onto the algebra. On the
    Stiefel manifold and the sphere, the mean square of the gradient's entries takes the
    place of $A_t^2$, so $V$ is a single number, and $B$ is transported with the point:
    see docs/theory/optimizers.md.

    Implementations of RMSprop differ in five options. This list gives their values in
    the order `alpha`, `eps`, `initial_accumulator`, `eps_inside`, `sum_squares`, where
    "any" means that the option has no effect:

    - torch: 0.99, 1e-8, 0, no, no
    - TensorFlow 1, RMSProp: 0.9, 1e-10, 1, yes, no
    - TensorFlow 1, Adagrad: any, 0, 0.1, any, yes
    - Keras 1, RMSprop: 0.9, 1e-8, 0, no, no
    - Keras 3, RMSprop: 0.9, 1e-7, 0, yes, no
    - Theano code of the unitary RNN: 0.9, 0, 1e-3, any, no

    Parameter groups without a manifold are plain: they get the update of
    `torch.optim.RMSprop`, or its variants with `eps_inside` and `sum_squares`, which
    torch does not have. Weight decay, and steps that are not finite, are handled as in
    `RiemannianSGD`.

    Args:
        params: parameters, or parameter groups with their own options, such as
            `manifold` and `retraction`; `isometry.param_groups` creates them.
        lr: $\eta$.
        alpha: $\alpha$.
        eps: $\epsilon$.
        weight_decay: weight decay of the plain parameter groups.
        momentum: $\mu$.
        initial_accumulator: $V_0$.
        eps_inside: whether to divide by $\sqrt{V_t + \epsilon}$ instead of
            $\sqrt{V_t} + \epsilon$.
        sum_squares: whether $V_t = V_{t-1} + A_t^2$, as in Adagrad.
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
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        momentum: float = 0.0,
        initial_accumulator: float = 0.0,
        eps_inside: bool = False,
        sum_squares: bool = False,
        maximize: bool = False,
        manifold: AbstractManifold | None = None,
        retraction: RetractionLike = "exp",
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            initial_accumulator=initial_accumulator,
            eps_inside=eps_inside,
            sum_squares=sum_squares,
            maximize=maximize,
            manifold=manifold,
            retraction=retraction,
        )

    def _rule(self, g: Tensor, past: Past, group: ParamGroup) -> Update:
        state, _, square = past
        start = group["initial_accumulator"]
        alpha, mu = group["alpha"], group["momentum"]
        v = square(g)
        before = state.get("square_avg", torch.full_like(v, start))
        v = v + before if group["sum_squares"] else v * (1 - alpha) + alpha * before
        eps = group["eps"]
        root = (v + eps).sqrt() if group["eps_inside"] else v.sqrt().add_(eps)
        # The diagonal of a real skew matrix is 0. If eps and `initial_accumulator` are
        # 0, the root is 0 there too, and the step would be 0 / 0.
        root.clamp_(min=torch.finfo(root.dtype).tiny)
        if mu == 0:
            vectors = past.unused("momentum_buffer")
            return Update(g, -group["lr"] / root, vectors, {"square_avg": v}, start)
        b = g.div_(root)
        if "momentum_buffer" in state:
            b.add_(state["momentum_buffer"], alpha=mu)
        return Update(b, -group["lr"], {"momentum_buffer": b}, {"square_avg": v}, start)

    def _plain_step(self, group: ParamGroup) -> None:
        buffers = {"square_avg": group["initial_accumulator"]}
        if group["momentum"] > 0:
            buffers["momentum_buffer"] = 0.0
        params, gradients, state = self._plain_state(group, **buffers)
        if group["eps_inside"] or group["sum_squares"]:
            for p, gradient in zip(params, gradients, strict=True):
                self._historical_step(p, gradient, group)
            return
        steps, squares, *momenta = state
        options = ("maximize", "lr", "alpha", "eps", "weight_decay", "momentum")
        rmsprop(
            params,
            gradients,
            squares,
            [],
            momenta[0] if momenta else [],
            steps,
            has_complex=any(p.is_complex() for p in params),
            centered=False,
            **{name: group[name] for name in options},
        )

    def _historical_step(self, p: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        """A step of a plain parameter, with options that torch's RMSprop lacks."""
        state = self.state[p]
        state["step"] += 1
        g = -gradient if group["maximize"] else gradient.clone()
        g.add_(p, alpha=group["weight_decay"])
        old = {name: _reals(state[name]) for name in state.keys() - {"step"}}
        past = Past(old, int(state["step"]), torch.square)
        update = self._rule(_reals(g), past, group)
        _reals(p).add_(update.scale * update.direction)
        for name, value in (update.vectors | update.squares).items():
            old[name].copy_(value)


def _reals(X: Tensor) -> Tensor:
    return torch.view_as_real(X) if X.is_complex() else X
