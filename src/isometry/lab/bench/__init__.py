"""The command `isometry bench`, which compares isometry with its peers on your machine.

A contender is a function, layer or optimizer, ours or a peer's, whose calls are timed.
The published results are from the programs in the folder `benchmarks/` of the
repository, which time these contenders and others.
"""

from importlib.util import find_spec

OURS = "isometry"
OUR_CAYLEY = "isometry, Cayley"
OUR_HOUSEHOLDER = "isometry, Householder"
TORCH_MATRIX_EXP = "torch.linalg.matrix_exp"
TORCH_EXP = "torch orthogonal, exp"
TORCH_CAYLEY = "torch orthogonal, Cayley"
TORCH_HOUSEHOLDER = "torch orthogonal, Householder"
TORCH_RNN = "nn.RNN, tanh"
GEOTORCH = "geotorch"
UNCONSTRAINED = "unconstrained"
BARE = "bare products"

SUITE_NAMES = ("exponential", "layer", "recurrent", "optimizers")

# optional packages to compare with; the extra `bench` installs them
PEERS = ("geotorch", "geoopt")


def installed(package: str) -> bool:
    """True if a package is installed. This does not import the package."""
    return find_spec(package) is not None
