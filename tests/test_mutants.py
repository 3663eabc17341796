"""The tool that counts caught mutants."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tools.mutants import FOLDERS, has_failed, summary
from tools.mutations import draw

TESTS = {
    "positive": "assert signs.positive(1)\n    assert not signs.positive(0)",
    "negative": "assert signs.negative(-1)",
}


@pytest.fixture
def clone(tmp_path):
    """A repository whose only library code is in a folder inside linalg."""
    inner = tmp_path / "src" / "isometry" / "linalg" / "_inner"
    inner.mkdir(parents=True)
    for folder in (inner, *inner.parents[:2]):
        (folder / "__init__.py").touch()
    (inner / "signs.py").write_text(
        "LIMIT = {0: 0}[0]\n\n\n"
        "def positive(x):\n    return x > LIMIT\n\n\n"
        "def negative(x):\n    return x < LIMIT\n\n\n"
        "def unused(x):\n    return x == LIMIT\n"
    )
    for name in FOLDERS:
        (tmp_path / "tests" / name).mkdir(parents=True)
        (tmp_path / "tests" / name / f"test_{name}.py").write_text("")
    (tmp_path / "tests" / "linalg" / "test_linalg.py").write_text(
        "from isometry.linalg._inner import signs\n"
        + "".join(f"\n\ndef test_{k}():\n    {v}\n" for k, v in TESTS.items())
    )
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *author, *command], cwd=tmp_path, check=True)
    return tmp_path


def fates(clone: Path) -> dict[str, str]:
    """What becomes of each mutant of the clone."""
    process = subprocess.run(
        [sys.executable, "-m", "tools.mutants", str(clone), "linalg", "--count", "99"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = re.findall(r"(.*?)  +\S+:(\d+:\d+)  .*", process.stdout)
    return {place: fate for fate, place in lines}


def test_mutants_come_from_subfolders_too(clone, monkeypatch):
    """Files such as linalg/_expm/rotation.py used to have no mutants."""
    monkeypatch.chdir(clone)
    names = {mutant.path.name for mutant in draw("linalg", 99, seed=0)}
    assert names == {"signs.py"}


def test_what_exit_codes_mean():
    """Only the exit code 1 and those of signals, below 0, mean that a test failed."""
    assert [code for code in range(-15, 6) if has_failed(code)] == [*range(-15, 0), 1]


def test_the_share_is_of_the_mutants_that_were_made():
    """The divisor is the number of mutants that were decided.

    It used to be the number that the user asked for.
    """
    fates = Counter({"caught": 3, "survived": 1, "not executed": 1, "undecided": 2})
    assert summary("nn", fates) == "nn: 3 of 5 caught, 2 undecided"
    assert summary("nn", Counter(caught=2)) == "nn: 2 of 2 caught"


@pytest.mark.soak
def test_a_mutant_is_caught_by_tests_and_not_by_a_broken_suite(clone):
    """A mutant is undecided, not caught, if the tests cannot be run without it either.

    The constant in the first line is executed on import. Its mutants break the import
    or a test, so they are caught. Then the file of tests gets an error of its own, and
    the same mutants are undecided.
    """
    before = fates(clone)
    assert {place: fate for place, fate in before.items() if fate != "caught"} == {
        "9:14": "survived",
        "13:5": "not executed",
        "13:14": "not executed",
    }
    assert before["1:16"] == "caught"
    path = clone / "tests" / "linalg" / "test_linalg.py"
    path.write_text("import nothing_of_this_name\n" + path.read_text())
    after = fates(clone)
    assert after.keys() == before.keys()
    assert {after[place] for place in before if before[place] == "caught"} == {
        "undecided"
    }
