"""Side-by-side measurements on the user's machine: `isometry bench`.

The repository's `benchmarks/` times the same contenders, and writes the record.
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
PLAIN = "unconstrained"
BARE = "bare products"

SUITE_NAMES = ("kernel", "layer", "recurrent", "optimizers")

# not needed by the laboratory: they are in the extra `bench`
PEERS = ("geotorch", "geoopt")


def installed(peer: str) -> bool:
    """True if a package can be imported."""
    return find_spec(peer) is not None
