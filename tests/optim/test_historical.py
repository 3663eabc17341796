"""The optimizers of older systems, against steps written out in numpy."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isometry.groups import U
from isometry.optim import RiemannianRMSprop, RiemannianSGD
from tests.helpers import shifted_seed
from tests.optim.cases import plain

GRADIENTS = np.random.default_rng(shifted_seed(5544)).normal(size=(6, 3))
LR = 0.01


def run(**options: Any) -> np.ndarray:
    p = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = RiemannianRMSprop(plain([p]), lr=LR, **options)
    for g in GRADIENTS:
        p.grad = torch.tensor(g)
        optimizer.step()
    return p.detach().numpy()


def test_rmsprop_of_tensorflow_1():
    """TensorFlow 1: decay 0.9, accumulator from 1, epsilon inside the root.

    Momentum and weight decay are tested too.
    """
    p, ms, mom = np.ones(3), np.ones(3), np.zeros(3)
    for gradient in GRADIENTS:
        g = gradient + 0.1 * p
        ms = 0.9 * ms + 0.1 * g * g
        mom = 0.5 * mom + LR * g / np.sqrt(ms + 1e-10)
        p = p - mom
    ours = run(
        alpha=0.9,
        eps=1e-10,
        initial_accumulator=1.0,
        eps_inside=True,
        momentum=0.5,
        weight_decay=0.1,
    )
    np.testing.assert_allclose(ours, p, rtol=1e-15)


def test_rmsprop_of_the_unitary_rnn_in_theano():
    """Theano's unitary RNN: decay 0.9, accumulator from 1e-3, no epsilon."""
    p, acc = np.ones(3), np.full(3, 1e-3)
    for g in GRADIENTS:
        acc = 0.9 * acc + 0.1 * g**2
        p = p - LR * g / np.sqrt(acc)
    np.testing.assert_allclose(
        run(alpha=0.9, eps=0.0, initial_accumulator=1e-3), p, rtol=1e-15
    )


def test_rmsprop_of_keras():
    """Keras: decay 0.9, epsilon outside of the root."""
    p, a = np.ones(3), np.zeros(3)
    for g in GRADIENTS:
        a = 0.9 * a + 0.1 * g * g
        p = p - LR * g / (np.sqrt(a) + 1e-8)
    np.testing.assert_allclose(run(alpha=0.9), p, rtol=1e-15)


def test_adagrad_of_tensorflow_1():
    """TensorFlow 1: the sum of squares starts at 0.1, and there is no epsilon."""
    p, acc = np.ones(3), np.full(3, 0.1)
    for g in GRADIENTS:
        acc = acc + g * g
        p = p - LR * g / np.sqrt(acc)
    np.testing.assert_allclose(
        run(eps=0.0, initial_accumulator=0.1, sum_squares=True), p, rtol=1e-15
    )


@pytest.mark.parametrize("inside", [False, True])
def test_real_and_imaginary_parts_are_apart(inside, rng):
    """A complex parameter is treated as two real ones, as for the weights of scuRNN."""
    options: dict[str, Any] = {
        "alpha": 0.9,
        "eps": 1e-8,
        "eps_inside": inside,
        "weight_decay": 0.1,
    }
    X, *gradients = torch.randn(7, 4, dtype=torch.complex128, generator=rng)
    z, x = nn.Parameter(X.clone()), nn.Parameter(torch.view_as_real(X).clone())
    ours = RiemannianRMSprop(plain([z]), initial_accumulator=0.5, **options)
    twin = RiemannianRMSprop(plain([x]), initial_accumulator=0.5, **options)
    for g in gradients:
        z.grad, x.grad = g, torch.view_as_real(g)
        ours.step()
        twin.step()
    # twice the worst over 300 seeds, 2.2e-16: torch may use different loops for the two
    # layouts, and they need not round alike
    torch.testing.assert_close(
        torch.view_as_real(z.detach()), x.detach(), rtol=0, atol=4.5e-16
    )


def test_a_zero_gradient_without_epsilon_is_no_step():
    """Without epsilon, a zero gradient changes nothing; 0 / 0 would give NaN."""
    p = nn.Parameter(torch.ones(3))
    for inside in (False, True):
        optimizer = RiemannianRMSprop(
            plain([p]), eps=0.0, eps_inside=inside, sum_squares=True
        )
        p.grad = torch.zeros(3)
        optimizer.step()
        assert torch.equal(p, torch.ones(3))


def test_each_step_counts_once():
    """The state of a plain parameter has the number of steps, as in torch's RMSprop."""
    p = nn.Parameter(torch.ones(3))
    optimizer = RiemannianRMSprop(plain([p]), eps_inside=True)
    for count in (1, 2):
        p.grad = torch.ones(3)
        optimizer.step()
        assert optimizer.state[p]["step"] == count


def test_the_step_of_the_full_capacity_unitary_rnn(rng):
    """W <- (I + l/2 S)^-1 (I - l/2 S) W, S = G W^H - W G^H, is cayley with lr = 2 l."""
    W, G = U(5).random(2, dtype=torch.complex128, generator=rng)
    p = nn.Parameter(W.clone())
    p.grad = G
    RiemannianSGD([p], lr=2e-3, manifold=U(5), retraction="cayley").step()
    S, eye = G @ W.mH - W @ G.mH, torch.eye(5)
    expected = torch.linalg.solve(eye + 1e-3 / 2 * S, (eye - 1e-3 / 2 * S) @ W)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-14)
