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
        """A line of the metrics: evaluations are said."""
        names = ("accuracy", "orthogonality")
        self.known |= {k: record[k] for k in names if k in record}
        if record["split"] == "train":
            return
        values = [
            f"{name} {value:.4g}"
            for name, value in record.items()
            if name not in ("step", "seconds", "split")
        ]
        self.say(f"{record['split']:10} {', '.join(values)}; {self.line()}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            end = "\x1b[K\n" if self.live else "\n"
            self.stream.write(f"{chr(13) if self.live else ''}{text}{end}")
            self.stream.flush()

    def line(self) -> str:
        """Where the run is: step, rate, loss, time that is left."""
        step = self.known.get("step", self.first)
        made = step - self.first
        rate = made / max(time.monotonic() - self.begun, 1e-9)
        parts = [f"{step}/{self.total}"]
        if made:
            left = timedelta(seconds=round((self.total - step) / rate))
            parts += [f"{rate:.2f} steps/s", f"{left} left"]
        for name in ("loss", "accuracy", "orthogonality"):
            if name in self.known:
                parts.append(f"{name} {self.known[name]:.4g}")
        return "  ".join(parts)
