"""What a run says while it runs."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TextIO


class Progress:
    """One line that is renewed on a terminal; elsewhere a line for each evaluation.

    Args:
        total: steps of the whole run.
        done: steps that were made before.
        stream: where to; standard error if None.
        quiet: say nothing, as the processes do that are not the first.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        *,
        stream: TextIO | None = None,
        quiet: bool = False,
    ) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live, self.quiet = self.stream.isatty(), quiet
        self.total, self.first = total, done
        self.begun = self.shown = time.monotonic()
        self.known: dict[str, Any] = {}

    def step(self, step: int, loss: float) -> None:
        """After each step: renew the line, a few times a second."""
        self.known |= {"step": step, "loss": loss}
        if self.live and not self.quiet and time.monotonic() - self.shown > 0.2:
            self.shown = time.monotonic()
            # \x1b[K clears what a longer line has left
            self.stream.write(f"\r{self.line()}\x1b[K")
            self.stream.flush()

    def record(self, record: Mapping[str, Any]) -> None:
        """A line of the metrics: those of the evaluations are said."""
        is_training = record["split"] == "train"
        name = "accuracy" if is_training else "orthogonality"
        self.known |= {name: record[name]} if name in record else {}
        if not is_training:
            values = "  ".join(
                f"{key} {value:.4g}"
                for key, value in record.items()
                if key not in ("step", "seconds", "split")
            )
            self.say(f"{self.place()}  {record['split']}: {values}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            end = "\x1b[K\n" if self.live else "\n"
            self.stream.write(f"{chr(13) if self.live else ''}{text}{end}")
            self.stream.flush()

    def line(self) -> str:
        """Where the run is, and the latest numbers."""
        values = [
            f"{name} {self.known[name]:.4g}"
            for name in ("loss", "accuracy", "orthogonality")
            if name in self.known
        ]
        return "  ".join([self.place(), *values])

    def place(self) -> str:
        """The step, the rate and the time that is left."""
        step = self.known.get("step", self.first)
        made = step - self.first
        if made == 0:
            return f"{step}/{self.total}"
        rate = made / max(time.monotonic() - self.begun, 1e-9)
        left = timedelta(seconds=round((self.total - step) / rate))
        return f"{step}/{self.total}  {rate:.2f} steps/s  {left} left"
