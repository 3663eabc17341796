"""Ctrl-C and SIGTERM, which wait for the end of a step."""

import signal
import threading
from types import FrameType
from typing import Any, Self

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Remembers, while it is entered, that the process was asked to end.

    Attributes:
        came: whether it was.
    """

    def __init__(self) -> None:
        self.came = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # no other thread may; there the caller decides when to stop
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                self.before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True
