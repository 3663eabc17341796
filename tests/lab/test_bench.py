"""`isometry bench`: what is timed, what is written, and what is printed."""

import contextlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks import recurrent, training
from isometry.lab import _cli
from isometry.lab._train.experiment import build
from isometry.lab._train.recorder import unpack
from isometry.lab.bench import (
    GEOTORCH,
    OURS,
    PEERS,
    SUITE_NAMES,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_HOUSEHOLDER,
    UNCONSTRAINED,
    suites,
    timing,
)
from isometry.lab.bench.report import LOOKS, draw, page, short, summary, tables
from isometry.lab.bench.suites import bare
from isometry.lab.bench.timing import ProgressLine
from isometry.linalg import expm_skew
from tests.lab.fake_runs import Terminal
from tests.lab.small_runs import small, train

CPU = torch.device("cpu")
LEFT = "geotorch is left out: it is not installed. To add it: pip install geotorch"


def bench(*words: object) -> tuple[int, str, str]:
    """Run the command; return exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = _cli.main(["bench", *map(str, words)])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder and the output of all suites, at a size that takes seconds."""
    place = tmp_path_factory.mktemp("bench") / "out"
    code, out, err = bench(
        *("--sizes", 4, "--rounds", 1, "--threads", 1, "--out", place)
    )
    assert code == 0
    (place / "stdout").write_text(out)
    (place / "stderr").write_text(err)
    return place


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """A clock that moves only when a test says so, not during `sleep`."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda _seconds: None)

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def record(seconds: dict[str, float], *, missing: tuple[str, ...] = ()) -> dict:
    """A record of one suite at two sizes; the second takes ten times as long."""
    rows = [
        {"n": n, "seconds": {name: scale * t for name, t in seconds.items()}}
        for n, scale in ((64, 1), (128, 10))
    ]
    environment: dict[str, Any] = {"cpu": "a cpu", "threads": 2, "device": "cpu"}
    environment["blas"] = "a BLAS"
    environment |= {"python": "3", "versions": {"torch": "2.13", "numpy": None}}
    suite = {"suite": "layer", "title": "a step", "note": "A note.", "ours": OURS}
    return {
        "environment": environment,
        "rounds": 5,
        "missing": list(missing),
        "suites": [suite | {"rows": rows}],
    }


def test_the_folder_has_record_table_and_figures(folder):
    """Table and figures are made from the record, so that all agree."""
    contents = json.loads((folder / "record.json").read_text())
    assert [part["suite"] for part in contents["suites"]] == list(SUITE_NAMES)
    assert (folder / "table.md").read_text() == page(contents)
    assert (folder / "figure.svg").read_bytes() == draw(contents)["figure.svg"]
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert contents["environment"]["threads"] == 1
    assert contents["environment"]["versions"].keys() >= {"torch", "geotorch", "geoopt"}


def test_tables_and_folder_are_printed(folder):
    """Tables go to standard output.

    Progress goes to standard error, one line per size.
    """
    contents = json.loads((folder / "record.json").read_text())
    assert (folder / "stdout").read_text() == f"{summary(contents)}\n\n{folder}\n"
    lines = (folder / "stderr").read_text().splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        f"{i}/4 {name}: n = 4" for i, name in enumerate(SUITE_NAMES, 1)
    ]


def test_times_are_positive_and_all_contenders_can_be_drawn(folder):
    contents = json.loads((folder / "record.json").read_text())
    drawing = (folder / "figure.svg").read_text()
    for part in contents["suites"]:
        seconds = part["rows"][0]["seconds"]
        assert part["ours"] in seconds
        assert len(seconds) >= 6
        assert seconds.keys() <= LOOKS.keys()
        assert all(0 < t < math.inf for t in seconds.values())
        # the drawing has its text as text, not as outlines of letters
        assert all(f">{name}<" in drawing for name in seconds)


def test_the_names_of_the_line_are_the_suites():
    """The command line knows the names of the suites without importing torch."""
    assert tuple(suites.SUITES) == SUITE_NAMES


def weight_of(name: str) -> Tensor:
    layer: Any = suites.layer_at(6, name, norm=3.0)
    return layer.weight.detach()


@pytest.mark.parametrize(
    "name", [OURS, TORCH_EXP, TORCH_CAYLEY, TORCH_HOUSEHOLDER, GEOTORCH]
)
def test_contenders_of_a_layer_are_orthogonal(name):
    """Q^T Q = I for the weight Q of each contender."""
    Q = weight_of(name)
    # twice the worst, 1.2e-6 (torch's exponential)
    assert_close(Q.mT @ Q, torch.eye(6), atol=2.4e-6, rtol=0)


@pytest.mark.parametrize("name", [OURS, TORCH_EXP])
def test_exponentials_of_a_layer_are_the_same(name):
    """Q = B exp A: ours and torch's are timed at the same point."""
    B = suites.orthogonal_linear(6, 6, seed=0).weight.detach()
    A = timing.random_skew(6, norm=3.0, dtype=torch.float32, seed=0)
    # twice the worst, 5.4e-7 (ours)
    assert_close(weight_of(name), B @ torch.matrix_exp(A), atol=1.1e-6, rtol=0)


def test_passes_have_the_same_gradient():
    """g = (g' - g'^T) / 2: torch's gradient is ambient, ours is its skew part."""
    A = timing.random_skew(6, norm=3.0, dtype=torch.float32)
    G = timing.unit_cotangent(A)
    passes: Any = suites.both_passes
    (ours,), (theirs,) = passes(expm_skew, A, G)(), passes(torch.matrix_exp, A, G)()
    # twice the measured difference, 8.2e-8
    assert_close(ours, (theirs - theirs.mT) / 2, atol=1.7e-7, rtol=0)


@pytest.mark.parametrize("suite", SUITE_NAMES)
def test_peers_that_are_not_installed_are_left_out(suite, monkeypatch):
    """A peer that is not installed is left out, and all others stay."""
    contenders = suites.SUITES[suite].contenders
    everyone = contenders(4, CPU).keys()
    monkeypatch.setattr("isometry.lab.bench.installed", lambda _peer: False)
    gone = everyone - contenders(4, CPU).keys()
    assert gone
    assert all(name.startswith(PEERS) for name in gone)


def test_what_is_left_out_is_named_with_the_way_to_get_it(monkeypatch, tmp_path):
    """A peer that is left out is named with the command that installs it.

    This appears both during the run and in the table.
    """
    monkeypatch.setattr(
        "isometry.lab.bench.command.installed", lambda peer: peer != "geotorch"
    )
    monkeypatch.setattr(
        "isometry.lab.bench.timing.measure",
        lambda *_args, **_options: record({OURS: 1.0})["suites"],
    )
    code, _, err = bench("layer", "--out", tmp_path / "out")
    assert (code, err) == (0, f"{LEFT}\n")
    contents = json.loads((tmp_path / "out" / "record.json").read_text())
    assert contents["missing"] == ["geotorch"]
    assert LEFT in (tmp_path / "out" / "table.md").read_text()


def test_a_table_has_milliseconds_and_multiples_of_ours():
    text = tables(record({OURS: 0.002, TORCH_EXP: 0.0162, UNCONSTRAINED: 0.0001}))
    assert (
        text
        == """\
## Layer: a step

A note.

| ms (multiple of isometry) |         n = 64 |       n = 128 |
| ------------------------- | -------------: | ------------: |
| isometry                  |    2.00 (1.0x) |   20.0 (1.0x) |
| torch orthogonal, exp     |    16.2 (8.1x) |    162 (8.1x) |
| unconstrained             | 0.100 (0.050x) | 1.00 (0.050x) |"""
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0258, "0.0258"),
        (2.0, "2.00"),
        (99.96, "100"),
        (100.4, "100"),
        (12345, "12345"),
    ],
)
def test_numbers_are_short_and_have_no_exponent(value, text):
    assert short(value, 3) == text


def test_contenders_take_turns(clock):
    """The record has best and median of the rounds, in which contenders take turns."""
    calls: list[str] = []
    # Seconds of each call: first three calls, to warm up and to see how long a call
    # takes, then one call in each of three rounds.
    costs = {"a": iter([9.0] * 3 + [2.0, 1.0, 4.0]), "b": iter([9.0] * 3 + [5.0] * 3)}

    def contender(name: str) -> Callable[[], object]:
        def call() -> None:
            calls.append(name)
            clock(next(costs[name]))

        return call

    times = timing.interleave({name: contender(name) for name in "ab"}, rounds=3)
    assert calls[-6:] == ["a", "b"] * 3
    assert times["seconds"] == {"a": 1.0, "b": 5.0}
    assert times["median"] == {"a": 2.0, "b": 5.0}


def test_the_work_of_a_card_is_waited_for(clock, monkeypatch):
    """Timing waits for the work of a card, whose calls return at once.

    Work that was begun before is not counted.
    """
    queue = [7.0]

    def synchronize() -> None:
        clock(sum(queue))
        queue.clear()

    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    times = timing.interleave({"card": lambda: queue.append(0.001)}, rounds=1)
    assert times["seconds"]["card"] == pytest.approx(0.001)


def test_a_terminal_has_one_line_that_is_renewed():
    stream = Terminal()
    say = ProgressLine(2, stream)
    say("one")
    say("two")
    bar = "#" * 12 + "." * 12
    clear = "\r\x1b[K"
    assert stream.getvalue() == (f"{clear}[{bar}] 1/2 one{clear}[{'#' * 24}] 2/2 two\n")


@pytest.mark.parametrize(("sizes", "timed"), [([8, 4, 8], [4, 8]), ([], [3, 5])])
def test_sizes_are_in_order_and_once(sizes, timed, capsys):
    """The user's sizes are timed in order, or else the default sizes of each suite."""
    suite = timing.Suite("", "", lambda _n, _device: {OURS: int}, sizes=(3, 5))
    pair = {"one": suite, "two": suite}
    parts = timing.measure(pair, sizes, device=CPU, rounds=1)
    assert [[row["n"] for row in part["rows"]] for part in parts] == [timed, timed]
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"4/4 two: n = {timed[1]}")


def test_results_go_to_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / name)
    monkeypatch.setattr(
        "isometry.lab.bench.timing.measure",
        lambda *_args, **_options: record({OURS: 1.0})["suites"],
    )
    code, out, _ = bench("layer")
    new_folder = Path(out.splitlines()[-1])
    assert code == 0
    assert new_folder.parent == tmp_path / "isometry" / "bench"
    assert sorted(path.name for path in new_folder.iterdir()) == [
        *("figure.png", "figure.svg", "record.json", "table.md")
    ]


def test_an_interruption_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isometry.lab.bench.timing.measure", interrupted)
    code, out, err = bench("layer", "--out", tmp_path / "out")
    assert (code, out) == (130, "")
    assert "interrupted; nothing was written" in err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_does_not_lose_the_tables(tmp_path, monkeypatch):
    """If the disk is full, tables that took minutes to measure are still printed."""

    def full(*_args: object) -> None:
        raise OSError("no space left")

    small_record = record({OURS: 1.0})
    monkeypatch.setattr(
        "isometry.lab.bench.timing.measure",
        lambda *_args, **_options: small_record["suites"],
    )
    monkeypatch.setattr("isometry.lab.bench.command.create", full)
    code, out, err = bench("layer", "--out", tmp_path / "out")
    assert code == 2
    assert tables(small_record) in out
    assert "isometry bench: no space left" in err


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["speed"],
            "a suite must be one of exponential, layer, recurrent, optimizers; got",
        ),
        (["--sizes", "64", "1"], "`--sizes` must be at least 2; got 1"),
        (["--threads", "0"], "`--threads` must be at least 1; got 0"),
        (["--rounds", "0"], "`--rounds` must be at least 1; got 0"),
        (["--out", "."], "`--out` must not exist, as nothing is overwritten; got ."),
    ],
    ids=str,
)
def test_mistakes_are_told_before_anything_is_measured(words, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("isometry.lab.bench.timing.measure", None)
    code, out, err = bench(*words)
    assert (code, out) == (2, "")
    assert err.startswith("isometry bench: ")
    assert message in err


@pytest.mark.errors
def test_without_matplotlib_nothing_is_measured(monkeypatch):
    monkeypatch.setattr("isometry.lab.bench.command.installed", lambda _name: False)
    code, _, err = bench("exponential")
    assert code == 2
    assert "to draw the figure; it is not. Run: pip install matplotlib" in err


def test_the_step_that_is_timed_is_that_of_a_run(tmp_path):
    """`benchmarks.training` and `isometry train` make the same weights, bit by bit."""
    config = small(iterations=3)
    train(config, tmp_path / "run")
    timed, trained = (build(config, CPU) for _ in range(2))
    data = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()
    unpack(data, trained.model, trained.optimizers)
    step = training.training_step(timed)
    for _ in range(3):
        step()
    for name, value in timed.model.state_dict().items():
        assert torch.equal(value, trained.model.state_dict()[name]), name


@pytest.mark.parametrize("case", training.CASES[:1], ids=lambda case: case.task)
def test_the_bare_products_are_as_many_as_the_steps(case):
    """The bare products are 3 T products of (batch, n) with (n, n), as in the run.

    Only the first case is tested, since the images are not available in every test.
    """
    experiment = build(training.config_of(case, Path()), CPU)
    config = experiment.config.training
    batch = experiment.task.batch(0, size=config.batch_size, seed=config.seed)
    assert batch.x.shape == (case.steps, case.batch)
    assert config.hidden_size == case.n
    with torch.profiler.profile() as profile:
        bare(case.steps, 4, 2)()
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["aten::mm"] == 3 * case.steps


def test_the_benchmark_of_recurrent_layers_runs():
    """`measure_case` runs. It unpacks a scan's weights, which no type checker reads."""
    row = recurrent.measure_case(recurrent.Case(3, 4, batch=2), rounds=1)
    assert row["steps"] == 3
    assert all(seconds > 0 for seconds in row["seconds"].values())
