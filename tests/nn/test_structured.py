"""The networks that loop over time and never form a matrix: uRNN and EURNN."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from isometry.nn import EURNN, URNN
from isometry.nn.comparators import cell as cell_module
from tests.nn import reference
from tests.nn.comparators import CASES, INPUTS, N, assert_near_largest


class Largest(TorchDispatchMode):
    """The number of entries of the largest tensor that an operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for X in out if isinstance(out, tuple | list) else (out,):
            if isinstance(X, Tensor):
                self.numel = max(self.numel, X.numel())
        return out


STRUCTURED = {
    "urnn": lambda n: URNN(1, n),
    "eurnn": lambda n: EURNN(1, n, capacity=4),
    "eurnn fft": lambda n: EURNN(1, n, style="fft"),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_maps_never_make_a_matrix(name):
    """The largest tensor of a step grows like n: fourfold from 256 to 1024."""
    sizes = []
    for n in (256, 1024):
        network = STRUCTURED[name](n)
        with Largest() as largest:
            H, _ = network(torch.ones(1, 1, 1))
            H.abs().sum().backward()
        sizes.append(largest.numel)
    assert sizes[1] == 4 * sizes[0]


@pytest.mark.parametrize(
    ("n", "capacity"), [(2, 2), (4, 2), (6, 6), (10, 14), (50, 12), (64, 40), (32, 16)]
)
def test_blocks_are_the_product_of_single_rotations(n, capacity):
    """The blocks of EURNN are products of single rotations, for all capacities.

    Some blocks are longer than n, some do not divide n, and with some capacities the
    layers form several groups.
    """
    network = EURNN(1, n, capacity=capacity, dtype=torch.float64)
    cell: Any = network.cells[0]
    W = cell.state_map()(torch.eye(n, dtype=torch.complex128)).mT
    # twice the worst over 40 seeds, 1.22e-15 (n = 64, 40 layers)
    assert_near_largest(W, reference.eurnn_weight(cell, "tunable"), tol=2.5e-15)


@pytest.mark.parametrize("n", [2, 4, 16, 32, 64])
def test_blocks_are_the_product_of_an_fft(n):
    """The blocks of the FFT style are products of single rotations.

    There are fewer layers than a block takes, just as many, and more.
    """
    network = EURNN(1, n, style="fft", dtype=torch.float64)
    cell: Any = network.cells[0]
    W = cell.state_map()(torch.eye(n, dtype=torch.complex128)).mT
    # twice the worst over 20 seeds, 5.3e-16
    assert_near_largest(W, reference.eurnn_weight(cell, "fft"), tol=1.1e-15)


@pytest.mark.parametrize("name", ["urnn", "eurnn"])
def test_chunks_keep_the_states_between_them_alone(name, monkeypatch):
    """Only the state between two chunks stays in memory until the backward pass.

    It used to be a view of all states of its chunk, so all of them stayed: 3.3 MB for
    400 time steps of 8 kB in chunks of 20, where 0.2 MB are enough.
    """
    sizes, original = [], cell_module.checkpoint

    def checkpoint(function: Any, x: Tensor, h: Tensor, *args: Any, **options: Any):
        sizes.append(h.untyped_storage().nbytes() // h.element_size())
        return original(function, x, h, *args, **options)

    monkeypatch.setattr(cell_module, "checkpoint", checkpoint)
    network = CASES[name].network(last_only=True, chunk=2)
    network(torch.ones(6, 4, INPUTS, dtype=torch.float64))
    assert sizes[1:] == [4 * N, 4 * N]
