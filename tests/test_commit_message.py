"""The check of commit messages."""

import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tools.commit_message import errors

KERNEL = "src/isometry/_backend/c/scan.c"


@pytest.mark.parametrize(
    "message",
    [
        "linalg: bound the angles of arrays\n\nOne function had two copies.\n",
        "nn, optim: pass the generator on\n",
        "_backend/c: bring the sizes together\n\nWhy.\n# Please enter the message\n",
        'Revert "nn: pass the generator on"\n',
        "tests: " + "x" * 65,
    ],
)
def test_a_good_message_has_no_errors(message):
    assert errors(message, ["README.md"]) == []


@pytest.mark.errors
@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("tests: " + "x" * 66, "at most 72 characters; got 73"),
        ("bound the angles", "`area: imperative`"),
        ("linalg: bound the angles.", "without a full stop"),
        ("linalg: bounded the angles", "imperative.*got 'bounded the angles'"),
        ("linalg: bounds the angles", "imperative.*got 'bounds the angles'"),
        ("# a comment\n", "got ''"),
    ],
)
def test_a_title_is_an_area_and_an_imperative(message, error):
    (sentence,) = errors(message, [])
    assert re.search(error, sentence)


@pytest.mark.errors
def test_a_commit_to_a_kernel_has_a_body():
    """The changes that `git commit --verbose` appends are no body."""
    title = "_backend: use one loop"
    scissors = "# ------------------------ >8 ------------------------\ndiff"
    (sentence,) = errors(f"{title}\n\n{scissors}", ["README.md", KERNEL])
    assert sentence.endswith(f"it changes {KERNEL}.")
    assert errors(f"{title}\n\nOne branch less.\n", [KERNEL]) == []
    assert errors(f"{title}\n", ["README.md"]) == []


@pytest.mark.errors
def test_a_body_has_short_lines():
    """`git log` does not wrap: some bodies were one line of 400 characters."""
    title = "tests: draw fewer numbers"
    (sentence,) = errors(f"{title}\n\n{'x' * 97}\nand more\n", [])
    assert sentence.endswith("at most 96 characters; got 97.")
    assert errors(f"{title}\n\n{'x' * 96}\n", []) == []


def test_the_hook_refuses_a_message(tmp_path):
    """Git's hook calls the program with the file that holds the message."""
    path = tmp_path / "message"
    path.write_text("No area\n")
    command = [sys.executable, "-m", "tools.commit_message", str(path)]
    process = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert process.returncode == 1
    assert "`area: imperative`" in process.stderr
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "entry: .venv/bin/python -m tools.commit_message\n" in config
