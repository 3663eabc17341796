"""Fixtures, and the modes of the suite.

`--shapes` executes the annotations. `--record FILE` writes the outcome of a long run,
and `--record-torch FILE` the number of tests that passed with this version of torch.
`--seed N` draws other random inputs, `--seeds N` draws them N times for each test
function, `--record-seeds FILE` counts how often, and `--continue-seeds` goes on where
such a run stopped. `--blas=scrambled` makes the BLAS sum in another order.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import SEED_VARIABLE, SEEDS_IN_USE, new_generator, shifted_seed
from tests.recorders import (
    Recorder,
    SeedRecorder,
    TorchRecorder,
    function_of,
    lacking_seeds,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shapes",
        action="store_true",
        help="execute the shape annotations of isometry (jaxtyping and beartype)",
    )
    parser.addoption(
        "--record",
        type=Path,
        metavar="FILE",
        help="write outcome, time and recorded properties of each test to a JSON file",
    )
    parser.addoption(
        "--record-torch",
        type=Path,
        metavar="FILE",
        help="write how many tests passed with this torch to a JSON file; a run with "
        "a failure is not written",
    )
    parser.addoption(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="shift the seed of every generator; a test that then fails had been lucky",
    )
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="call each test function that draws random numbers with N seeds, which "
        "its rows share: a tolerance must hold for 200",
    )
    parser.addoption(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="stop repeating a test function after S seconds of processor time, which "
        "its rows share, too",
    )
    parser.addoption(
        "--record-seeds",
        type=Path,
        metavar="FILE",
        help="write to a JSON file how often the tests of each folder were repeated",
    )
    parser.addoption(
        "--continue-seeds",
        action="store_true",
        help="call only the test functions that `--record-seeds FILE` names as stopped "
        "early, as often as they still lack, and add the calls to FILE; use `--seed` "
        "to begin after the seeds that they have seen",
    )
    parser.addoption(
        "--blas",
        choices=["torch", "scrambled"],
        default="torch",
        help="the products of the kernels: torch's, or tests/backend/scrambled.c, "
        "whose order of summation depends on sizes and places",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "once: neither the kernels in C nor executed shapes can change the outcome; "
        "the second pass of `make test` leaves it out",
    )
    os.environ[SEED_VARIABLE] = str(config.getoption("--seed"))
    if config.getoption("--shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("isometry", "beartype.beartype")
    if config.getoption("--blas") == "scrambled":
        from tests.backend.scrambled import install

        install()
    path = config.getoption("--record")
    # with xdist every report reaches the controller, and the workers keep none
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path))
    path = config.getoption("--record-torch")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(TorchRecorder(path))
    seeds: Any = config.getoption("--seeds")
    continues: Any = config.getoption("--continue-seeds")
    path = config.getoption("--record-seeds")
    if continues and path is not None:
        config.stash[LACKING] = lacking_seeds(path, seeds)
    if path is not None and not hasattr(config, "workerinput"):
        recorder = SeedRecorder(path, seeds, is_continuation=continues)
        config.pluginmanager.register(recorder)


# with `--continue-seeds`, how many seeds each test function lacks
LACKING = pytest.StashKey[dict[str, int]]()


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave out test functions that lack no seeds, if `--continue-seeds` is given."""
    if LACKING in config.stash:
        items[:] = [i for i in items if function_of(i.nodeid) in config.stash[LACKING]]


# for each item, its row among those of its test function, and how many rows there are
ROWS = pytest.StashKey[tuple[int, int]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the selected rows of each test function."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        functions.setdefault(function_of(item.nodeid), []).append(item)
    for items in functions.values():
        for row, item in enumerate(items):
            item.stash[ROWS] = row, len(items)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Call a test that draws random numbers again, with other seeds.

    The rows of a test function share its tolerance, so they also share the seeds: each
    row gets a part of them, and together they get them all.
    """
    seeds: Any = pyfuncitem.config.getoption("--seeds")
    if LACKING in pyfuncitem.config.stash:
        seeds = pyfuncitem.config.stash[LACKING][function_of(pyfuncitem.nodeid)]
    seconds: Any = pyfuncitem.config.getoption("--seconds")
    names = pyfuncitem._fixtureinfo.argnames
    before = draws_so_far()
    result = yield
    # A test that draws nothing would repeat itself, and hypothesis repeats its tests
    # itself.
    same = draws_so_far() == before and "rng" not in names
    once = pyfuncitem.config.getoption("--seeds") == 1
    if once or same or hasattr(pyfuncitem.obj, "hypothesis"):
        return result
    # a second call would find the files of the first one in the folder
    if "tmp_path" in names:
        return result
    row, rows = pyfuncitem.stash[ROWS]
    share = -(-seeds // rows)
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    first, start, calls = os.environ[SEED_VARIABLE], processor_time(), 1
    try:
        while calls < share and processor_time() - start < seconds / rows:
            os.environ[SEED_VARIABLE] = str(int(first) + row * share + calls)
            torch.manual_seed(shifted_seed(5544))
            if "rng" in arguments:
                arguments["rng"] = new_generator(5544)
            try:
                pyfuncitem.obj(**arguments)
            except Exception as error:
                error.add_note(f"drawn with --seed {os.environ[SEED_VARIABLE]}")
                raise
            calls += 1
    finally:
        os.environ[SEED_VARIABLE] = first
    pyfuncitem.user_properties.append(("seeds", calls))
    return result


def draws_so_far() -> tuple[int, bytes]:
    """A value that changes when a test makes a generator or uses the global one."""
    return len(SEEDS_IN_USE), torch.get_rng_state().numpy().tobytes()


def processor_time() -> float:
    """Processor time of this process and of its finished children, in seconds."""
    return sum(os.times()[:4])


@pytest.fixture
def rng() -> torch.Generator:
    return new_generator(5544)


@pytest.fixture(autouse=True)
def seeded_layers() -> None:
    """Seed the global generator, from which layers initialize themselves."""
    torch.manual_seed(shifted_seed(5544))


@pytest.fixture(autouse=True)
def poisoned_empty() -> Iterator[None]:
    """Let `torch.empty` return NaN: reading uninitialized memory then fails a test."""
    # deterministic mode fills new memory, if `torch.utils.deterministic` says so (its
    # default)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def no_shape_hook(pytestconfig: pytest.Config) -> None:
    """Skip a test that compiles if `--shapes` is on.

    The suite without it runs the test.
    """
    if pytestconfig.getoption("--shapes"):
        pytest.skip("Dynamo cannot trace the hook of the shapes")
