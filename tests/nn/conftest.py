from collections.abc import Iterator

import pytest
import torch

from isometry._backend import only_torch
from isometry._backend.library import kernels


@pytest.fixture(params=["C", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The loop over time in C, and the one for machines without a compiler."""
    if request.param == "torch":
        with only_torch():
            yield request.param
        return
    assert kernels(torch.float32), "`cc` must be installed; the log says more"
    yield request.param
