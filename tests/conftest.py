"""Fixtures, and the modes of the suite: `--shapes` executes the annotations."""

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shapes",
        action="store_true",
        help="execute the shape annotations of isometry (jaxtyping and beartype)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("isometry", "beartype.beartype")


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(5544)


@pytest.fixture(autouse=True)
def poisoned_empty():
    """`torch.empty` holds NaN: reading uninitialized memory fails a test."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
