"""How many files of the laboratory a reader passes before the first training step."""

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import isometry.lab
from isometry.lab._cli import main
from isometry.lab._train.loop import begin_step

LAB = Path(isometry.lab.__file__).parent
WORDS = [
    "--lag=3",
    "--length=2",
    "--hidden-size=4",
    "--batch-size=2",
    "--iterations=1",
    "--held-out=2",
    "--threads=1",
]


def test_at_most_fourteen_files_before_the_first_step(tmp_path):
    """At most fourteen files of the lab are called before the first step.

    There used to be 25.
    """
    files: set[str] = set()
    begun = False

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal begun
        code = frame.f_code
        begun = begun or code is begin_step.__code__
        # bodies of modules and classes are not functions
        if event == "call" and not begun and code.co_flags & inspect.CO_OPTIMIZED:
            path = Path(code.co_filename)
            if path.is_relative_to(LAB):
                files.add(path.relative_to(LAB).as_posix())

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        assert main(["train", "copying", *WORDS, "--out", f"{tmp_path}/run"]) == 0
    finally:
        sys.setprofile(before)
    assert begun
    # the step itself is in loop.py, and its batch is drawn in the file of the task
    assert len(files) <= 14, sorted(files)
