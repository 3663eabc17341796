"""The command `isometry bench`, which compares isometry with its peers on your machine.

The programs in the folder `benchmarks/` of the repository time the same contenders, for
the published results.
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
    """True if a package can be imported. The check does not import it."""
    return find_spec(package) is not None
