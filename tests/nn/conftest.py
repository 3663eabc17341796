import pytest
import torch

from isometry._backend.library import kernels
from isometry.nn import _engines


@pytest.fixture(params=["C", "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The loop over time in C, and the one for machines without a compiler."""
    if request.param == "torch":
        monkeypatch.setattr(_engines, "kernels", lambda _: None)
    else:
        assert kernels(torch.float32), "`cc` must be installed; the log says more"
    return request.param
