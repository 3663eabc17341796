"""Two backends, one in torch and one in C; `backend_for` chooses between them.

`Backend` computes with torch's operations, on any device. `NativeBackend` computes in
C, for real numbers on the CPU; its results differ only by rounding. Where torch is
faster than C, it uses the methods that it inherits from `Backend`. For small matrices,
even a call of `backend_for` may take longer than C saves; so some callers first ask
`is_large`.

The C library is optional: it comes with a wheel, or is built when it is first needed.
Where it cannot be built or used, and with `ISOMETRY_NATIVE=0`, `Backend` computes
everything, which is slower.
"""

from isometry._backend.native import NativeBackend as NativeBackend
from isometry._backend.native import backend_for as backend_for
from isometry._backend.native import is_large as is_large
from isometry._backend.native import kernels_origin as kernels_origin
from isometry._backend.native import only_torch as only_torch
from isometry._backend.operations import Backend as Backend
from isometry._backend.operations import PowerSums as PowerSums
from isometry._backend.operations import power_sums as power_sums
from isometry._backend.polynomial import Polynomial as Polynomial
from isometry._backend.recurrence import Recurrence as Recurrence
from isometry._backend.recurrence import TimeSteps as TimeSteps
