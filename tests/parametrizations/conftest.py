import pytest
import torch


@pytest.fixture(autouse=True)
def seeded_layers() -> None:
    """Layers initialize themselves from the global generator."""
    torch.manual_seed(5544)
