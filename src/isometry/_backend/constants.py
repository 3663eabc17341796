"""Constants of the backends; the build passes those that C needs to the compiler."""

from typing import Literal, get_args

# the nonlinearities of a recurrence
SigmaName = Literal[
    "identity",
    "tanh",
    "relu",
    "modrelu",
    "complex_modrelu",
    "smooth_modrelu",
    "leaky_relu",
]

# the integer that stands for each nonlinearity in C
SIGMAS: dict[SigmaName, int] = {
    name: number for number, name in enumerate(get_args(SigmaName))
}

# the slope of leaky ReLU below zero [MHRB17]
LEAKY_SLOPE = 0.1

# With fewer rows than this, torch's operations are as fast as C. This was measured for
# `skew`, and for the autograd function that computes the weight of a layer.
FEWEST_ROWS = 32

# If a symmetric or skew matrix A has at least this many rows, C computes only the lower
# half of A^2, and mirrors it. With fewer rows than this, the full product is as fast.
HALVED_FROM = 96

# Torch copies a transposed matrix block by block, but adds it without blocks. So from
# this many rows on, copying the transpose and adding the copy is faster.
COPIED_FROM = 1024

# The largest number of matrices in a linear combination in C, and so the largest number
# of slots of a polynomial.
MOST_SLOTS = 8

# The largest number of axes of a tensor that `watch_bytes` accepts (memory.py). C
# stores the shape and the strides of the tensor in arrays of this length.
MOST_AXES = 8


def compiler_options() -> list[str]:
    """Compiler options that define the constants that the C sources use."""
    values: dict[str, float] = {
        "HALVED_FROM": HALVED_FROM,
        "MOST_SLOTS": MOST_SLOTS,
        "MOST_AXES": MOST_AXES,
        "LEAKY_SLOPE": LEAKY_SLOPE,
    }
    values |= {name.upper(): number for name, number in SIGMAS.items()}
    return [f"-DISOMETRY_{name}={value!r}" for name, value in values.items()]
