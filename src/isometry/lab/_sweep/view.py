"""The view of a sweep: how many runs are done, and how far the running runs are."""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from isometry.lab._errors import RunError
from isometry.lab._files import CONFIG, ENDED, METRICS, read_json, read_summary
from isometry.lab._sweep.worker import log_of

# seconds between two updates of the view, on a terminal and elsewhere
_LIVE, _PLAIN = 0.5, 60.0

# To find the last record of a metrics file, first read this many bytes at its end, and
# more only if the record is longer. The view reads the files of all running runs twice
# a second, perhaps over a network.
_TAIL = 4096


class View:
    """Shows all runs on standard error: in place on a terminal, else as new lines.

    Args:
        out: folder of the sweep.
        names: names of the runs that are not done yet.
        total: number of runs in the sweep.
        done: number of runs that are already done.

    Attributes:
        failed: for each run that failed or diverged, the reason, keyed by its name.
    """

    def __init__(
        self, out: Path, names: Iterable[str], *, total: int, done: int
    ) -> None:
        self.out = out
        self.total = total
        self.done = done
        self.running: list[str] = []
        self.failed: dict[str, str] = {}
        self.stream = sys.stderr
        self.live = sys.stderr.isatty()
        # number of lines of the view on the terminal, and when it was last updated
        self.height = 0
        self.shown = time.monotonic()
        # The logs may hold the output of earlier attempts. A run has begun, on this
        # machine or on another, when its log is larger than the size stored here.
        self.waiting = {name: self._log_size(name) for name in names}

    def refresh(self) -> None:
        """Find the runs that have begun, and update the view if an update is due."""
        for name, size in list(self.waiting.items()):
            if self._log_size(name) > size:
                del self.waiting[name]
                self.running.append(name)
                if not self.live:
                    self._write([f"{name} begins"])
        if time.monotonic() - self.shown > (_LIVE if self.live else _PLAIN):
            self.shown = time.monotonic()
            self._show()

    def end(self, name: str, message: str) -> None:
        """Print how a run has ended.

        Args:
            name: name of the run.
            message: why the run failed; empty if it did not.
        """
        if self.waiting.pop(name, None) is None:
            self.running.remove(name)
        summary = None
        # ignore a damaged summary: the run has failed, and `message` says why, but the
        # other runs must continue
        with contextlib.suppress(RunError):
            summary = read_summary(self.out / name)
        # a run that was told to stop before its training began has no summary
        status = summary["status"] if summary else "stopped"
        if message or status == "diverged":
            self.failed[name] = message or status
        self.done += status in ENDED
        text = f"{name} {'failed' if message else status}"
        if summary and not message:
            text += f" after {summary['steps']} steps, {summary['seconds']:.0f} s"
        self.close()
        self._write([f"{text}  ({self._counts()})"])

    def _show(self) -> None:
        self.close()
        lines = [self._counts(), *(self._line(name) for name in self.running)]
        if self.live:
            width, height = shutil.get_terminal_size()
            hidden = len(lines) - (height - 2)
            if hidden > 0:
                lines = [*lines[: -hidden - 1], f"... and {hidden + 1} more"]
            # cut each line, since a line that wraps would take up two lines
            lines = [line[: width - 1] for line in lines]
            self.height = len(lines)
        self._write(lines)

    def _counts(self) -> str:
        parts = [f"{self.done} of {self.total} done", f"{len(self.running)} running"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        return ", ".join(parts)

    def _line(self, name: str) -> str:
        record = _last_record(self.out / name / METRICS)
        if not record:
            return f"  {name}  begins"
        step, total = record["step"], read_json(self.out / name / CONFIG)["iterations"]
        left = timedelta(seconds=round((total - step) * record["seconds"] / step))
        keys = [k for k in ("loss", "accuracy", "orthogonality") if k in record]
        values = "  ".join(f"{key} {record[key]:.4g}" for key in keys)
        return f"  {name}  {step}/{total}  {left} left  {values}"

    def _log_size(self, name: str) -> int:
        path = log_of(self.out / name)
        return path.stat().st_size if path.exists() else 0

    def close(self) -> None:
        """Remove the view from the terminal. The next update draws it again."""
        if self.height:
            # move to the first line of the view, and clear everything from there
            self.stream.write(f"\x1b[{self.height}A\x1b[J")
            self.height = 0

    def _write(self, lines: Iterable[str]) -> None:
        self.stream.write("".join(f"{line}\n" for line in lines))
        self.stream.flush()


def _last_record(path: Path) -> dict[str, Any]:
    """The last complete record in a metrics file; empty if there is none."""
    # ignore these errors: a run that has just begun has no file or no complete line yet
    with contextlib.suppress(FileNotFoundError, ValueError), path.open("rb") as file:
        size, tail = path.stat().st_size, _TAIL
        while True:
            file.seek(max(0, size - tail))
            # leave out the text after the last newline, if any: an incomplete line
            lines, _, _ = file.read().rpartition(b"\n")
            _, newline, last = lines.rpartition(b"\n")
            # without a newline before it, the record may lack its beginning
            if newline or tail >= size:
                return json.loads(last)
            tail *= 8
    return {}
