from collections.abc import Iterator

import pytest
import torch

from isometry._backend import only_torch
from isometry._backend.native import native_backend


@pytest.fixture(params=["C", "torch"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the loop over time in C, and again with torch's operations."""
    if request.param == "torch":
        with only_torch():
            yield request.param
        return
    assert native_backend(torch.float32), "`cc` must be installed; the log says more"
    yield request.param
