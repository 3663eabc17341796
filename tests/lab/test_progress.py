"""What a run says while it trains."""

import io
from types import SimpleNamespace

from isometry.lab._train.recorder import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(stream: io.StringIO) -> str:
    """What a run of four steps says."""
    progress = Progress(4, stream=stream)
    progress.shown = -1.0
    for step in (1, 2):
        progress.step(step, 0.5)
    progress.record({"step": 2, "loss": 0.25, "split": "validation"})
    return stream.getvalue()


def test_progress_tells_rate_time_and_numbers(monkeypatch):
    """Two of four steps in half a second each: a second is left."""
    clock = SimpleNamespace(monotonic=lambda: 1.0)
    monkeypatch.setattr("isometry.lab._train.recorder.time", clock)
    progress = Progress(4, quiet=True)
    progress.begun = 0.0
    progress.step(2, 0.5)
    place = {"step": 2, "seconds": 1.0}
    progress.record(place | {"accuracy": 0.25, "split": "train"})
    progress.record(place | {"orthogonality": 1e-7, "split": "test"})
    assert progress.line() == (
        "2/4  2.00 steps/s  0:00:01 left  loss 0.5  accuracy 0.25  orthogonality 1e-07"
    )


def test_progress_on_a_terminal_is_one_line():
    text = said(Terminal())
    assert text.startswith("\r1/4")
    assert text.count("\n") == 1


def test_progress_elsewhere_is_plain_lines():
    text = said(io.StringIO())
    assert text.startswith("2/4")
    assert text.endswith("left  validation: loss 0.25\n")
    assert "\r" not in text
    assert "\x1b" not in text
