"""What a run prints while it trains."""

import io
from types import SimpleNamespace

from isometry.lab._train.recorder import Progress
from tests.lab.fake_runs import Terminal

MEANS = {
    "validation": {"loss": 0.25, "accuracy": 0.5},
    "test": {"loss": 0.75, "accuracy": 0.125},
}


def output_of(stream: io.StringIO) -> str:
    """The output of a run of four steps."""
    progress = Progress(4, 0, stream)
    for step in (1, 2):
        progress.shown = -1.0
        progress.step(step, 0.5)
    progress.evaluation(MEANS, {"largest_angle": 1.5})
    return stream.getvalue()


def test_an_evaluation_is_one_line(monkeypatch):
    """An evaluation is one line, for validation and test together.

    The clock says that two of four steps took a second.
    """
    clock = SimpleNamespace(monotonic=lambda: 1.0)
    monkeypatch.setattr("isometry.lab._train.recorder.time", clock)
    stream = io.StringIO()
    progress = Progress(4, 0, stream)
    progress.start = 0.0
    progress.step(2, 0.5)
    progress.evaluation(MEANS, {"orthogonality": 1e-7})
    assert stream.getvalue() == (
        "2/4  2.00 steps/s  0:00:01 left  validation loss 0.25  accuracy 0.5;  "
        "test loss 0.75  accuracy 0.125;  orthogonality 1e-07\n"
    )


def test_progress_on_a_terminal_is_a_bar_with_the_loss():
    """The bar is redrawn in its line, and the evaluation replaces it."""
    bars, line = output_of(Terminal()).rsplit("\r", 1)
    assert [bar.count("█") for bar in bars.split("\r")] == [0, 5, 10]
    assert bars.count("loss 0.5\x1b[K") == 2
    assert "\n" not in bars
    assert line.endswith("largest angle 1.5\x1b[K\n")


def test_progress_elsewhere_is_plain_lines():
    text = output_of(io.StringIO())
    assert text.startswith("2/4")
    assert text.count("\n") == 1
    assert not {"\r", "\x1b", "█"} & set(text)


def test_a_split_without_sequences_is_not_mentioned():
    stream = io.StringIO()
    Progress(4, 0, stream).evaluation({"validation": {}}, {})
    assert "validation" not in stream.getvalue()
