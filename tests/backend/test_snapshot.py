"""A snapshot notices every changed byte, with C and without."""

import ctypes
import platform
import subprocess
import tempfile
import warnings
from functools import cache

import pytest
import torch

from isometry._backend import build, memory, watch
from isometry._backend.memory import is_block, watch_bytes

# Numbers of 4-byte entries on both sides of a block, a round and a piece, and of the
# size from which threads share the work.
SIZES = [1, 3, 4, 17, 127, 128, 129, 16384, 16385, 131071, 131072, 200003]


# compiler options that disable instructions which bytes.c uses; None for no C at all
STEPS = {
    "C": (),
    "C, AES": ("-mno-vaes",),
    "C, no AES": ("-mno-vaes", "-mno-aes"),
    "Python": None,
}


@cache
def library_with(options: tuple[str, ...]) -> ctypes.CDLL:
    """Compile bytes.c as for a processor with fewer instructions."""
    source = build._SOURCES / "bytes.c"
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/bytes.so"
        flags = [*build.compiler_options(), "-O3", "-march=native", "-fopenmp"]
        flags += ["-shared", "-fPIC", *options]
        subprocess.run(["cc", *flags, str(source), "-o", out], check=True)
        return ctypes.CDLL(out)


@pytest.fixture(params=STEPS, autouse=True)
def step(request, monkeypatch):
    options = STEPS[request.param]
    connect = watch.c_watch
    if options is None:
        monkeypatch.setattr(memory, "c_watch", lambda: None)
    elif options:
        if platform.machine() != "x86_64":
            pytest.skip("other processors have no such options")
        library = library_with(options)
        monkeypatch.setattr(watch, "c_library", lambda: library)
        other = connect.__wrapped__()
        monkeypatch.setattr(memory, "c_watch", lambda: other)
    else:
        assert connect() is not None


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
def test_one_bit_of_any_entry_is_seen(size, threads):
    """A change of one entry is noticed, and undoing it counts as no change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        X = torch.zeros(size, dtype=torch.int32)
        same = watch_bytes(torch.zeros(3), X)
        for entry in {0, size // 3, size // 2, size - 1}:
            assert same()
            X[entry] = 1
            assert not same()
            X[entry] = 0
        assert same()
    finally:
        torch.set_num_threads(before)


def test_every_swap_of_two_is_seen(rng):
    X = torch.randperm(9, generator=rng).view(3, 3).double()
    same = watch_bytes(X)
    flat = X.view(-1)
    for i in range(9):
        for j in range(i):
            flat[[i, j]] = flat[[j, i]]
            assert not same()
            flat[[i, j]] = flat[[j, i]]
    assert same()


@pytest.mark.parametrize("kind", ["signs", "numbers"])
def test_a_swap_within_one_lane_is_seen(kind, rng):
    """Swapping two entries of a column is noticed, in spite of the digest's lanes.

    The digest takes in the entries of a column one after the other.
    """
    X = torch.randn(256, 128, generator=rng)
    if kind == "signs":
        X = X.sign()
    same = watch_bytes(X)
    for i in (0, 1, 100):
        for distance in (1, 2, 3, 4, 5, 8, 64, 127):
            j = i + distance
            columns = (X[i] != X[j]).nonzero().flatten().tolist()
            for column in columns[:8]:
                pair = X[[i, j], column]
                X[[j, i], column] = pair
                assert not same()
                X[[i, j], column] = pair
    assert same()


def test_every_bit_is_seen(rng):
    X = torch.randint(-(2**31), 2**31, (150,), generator=rng, dtype=torch.int32)
    same = watch_bytes(X)
    memory = X.numpy().view("uint8")
    for place in range(memory.size):
        for bit in range(8):
            memory[place] ^= 1 << bit
            assert not same()
            memory[place] ^= 1 << bit
    assert same()


def test_a_question_after_another_asks_both():
    for dtype in (torch.float32, torch.complex64):
        X, Y = torch.ones(3, 3), torch.ones(2, dtype=dtype)
        same = watch_bytes(Y, after=watch_bytes(X))
        for tensor in (X, Y):
            assert same()
            tensor.neg_()
            assert not same()
            tensor.neg_()
        assert same()


def test_a_question_holds_the_tensors():
    """A snapshot keeps its tensors alive; otherwise C would read freed memory."""
    same = watch_bytes(torch.ones(1000), torch.zeros(3, 4))
    assert all(same() for _ in range(3))


def test_bytes_are_compared_not_values():
    X = torch.tensor([0.0, torch.nan])
    same = watch_bytes(X)
    assert same()
    X.neg_()
    assert not same()


@pytest.mark.parametrize("shape", [(0,), (0, 3), ()], ids=str)
def test_nothing_and_single_numbers(shape):
    assert watch_bytes(torch.ones(shape))()


def test_other_memory_shape_or_order_is_a_change():
    """Other memory, shape or strides count as a change.

    An assignment to `.data` may leave every byte where it is.
    """
    for new in (lambda X: X.clone(), lambda X: X.view(2, 8), lambda X: X.t()):
        X = torch.nn.Parameter(torch.ones(4, 4))
        same = watch_bytes(X)
        X.data = new(X.data)
        assert not same()


def test_what_is_one_block_of_memory():
    X = torch.ones(4, 6)
    assert all(map(is_block, (X, X.t(), X[1:3], X.view(2, 2, 6).permute(1, 2, 0))))
    assert not any(map(is_block, (X[:, :3], X[::2], X[:1].expand(4, 6), X.to("meta"))))
    Z = torch.ones(3, dtype=torch.complex64)
    assert is_block(Z)
    assert not any(map(is_block, (Z.conj(), Z.conj().imag)))
    index = torch.zeros(2, 1, dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(index, Z[:1], (3, 3), check_invariants=True)
    assert not is_block(sparse)
    # two numbers of this dtype share a byte: `nbytes` is 12, but there are 6
    ones, zeros = torch.ones(2), torch.zeros(2)
    with warnings.catch_warnings(action="ignore"):
        half = torch.quantize_per_channel(X[:2], ones, zeros, 0, torch.quint4x2)
    assert half.nbytes == 2 * half.untyped_storage().nbytes()
    assert not is_block(half)


DTYPES_OF_ALL_SIZES = [
    *(torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.int32, torch.int64),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.uint16, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES_OF_ALL_SIZES, ids=str)
def test_the_last_entry_of_any_dtype_is_seen(dtype):
    """Python tells C how many bytes a tensor has.

    C used to ask torch for the size of the dtype, and torch 2.7 cannot tell it. So
    dtypes that were not in a table, such as uint16, were not compared by bytes.
    """
    X = torch.zeros(129, dtype=dtype)
    assert is_block(X)
    same = watch_bytes(X)
    assert same()
    X[-1] = 1
    assert not same()
    X[-1] = 0
    assert same()
