"""Two backends, one in torch and one in C; `backend_for` chooses between them.

`TorchBackend` computes with torch's operations, on any device. `NativeBackend` computes
in C, for real numbers on the CPU; its results differ only by rounding. Only
`backend_for` chooses between them, and `is_large` tells where asking it pays. Inside
`NativeBackend`, a few computations are left to torch, which is faster there. The C
library is optional: it comes with a wheel, or is built when it is first needed. Where
it cannot be built or used, and with `ISOMETRY_NATIVE=0`, `TorchBackend` computes
everything, which is slower.
"""

from isometry._backend.abstract import AbstractBackend as AbstractBackend
from isometry._backend.abstract import Polynomial as Polynomial
from isometry._backend.abstract import PowerSums as PowerSums
from isometry._backend.abstract import Stage as Stage
from isometry._backend.native import NativeBackend as NativeBackend
from isometry._backend.native import backend_for as backend_for
from isometry._backend.native import is_large as is_large
from isometry._backend.native import kernels_origin as kernels_origin
from isometry._backend.native import only_torch as only_torch
from isometry._backend.operations import TorchBackend as TorchBackend
from isometry._backend.operations import plain_skew as plain_skew
from isometry._backend.operations import power_sums as power_sums
from isometry._backend.recurrence import Cell as Cell
from isometry._backend.recurrence import TimeSteps as TimeSteps
