"""What a measurement says while it runs."""

import sys
from typing import TextIO

_WIDTH = 24


class Steps:
    """One line that is renewed on a terminal; elsewhere a line a step.

    Args:
        total: steps of the whole measurement.
        stream: where to; standard error if None.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self.total, self.done = total, 0
        self.stream = sys.stderr if stream is None else stream

    def __call__(self, what: str) -> None:
        """Say what is measured next."""
        self.done += 1
        filled = _WIDTH * self.done // self.total
        bar = "#" * filled + "." * (_WIDTH - filled)
        live = self.stream.isatty()
        # \x1b[K clears what a longer line has left
        start = "\r\x1b[K" if live else ""
        end = "" if live and self.done < self.total else "\n"
        self.stream.write(f"{start}[{bar}] {self.done}/{self.total} {what}{end}")
        self.stream.flush()
