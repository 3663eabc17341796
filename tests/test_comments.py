"""Comments and docstrings that point to another file are true."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT, relative_path

FILES = [
    path
    for folder in ("src", "tests", "tools", "docs", "benchmarks")
    for path in (ROOT / folder).rglob("*.*")
    if path.suffix in (".py", ".c", ".h", ".md")
]
SOURCES = [p for p in FILES if p.is_relative_to(ROOT / "src") and p.suffix != ".md"]

FILE = r"(?P<file>[\w/]+\.(?:py|c|h|md))\b`?"
# "`slots` in products.py", "LOG2_LOW of scan.c", "polynomial.py explains slots"
PLACES = rf"(?:`(?P<name>[\w.]+)`|(?P<bare>\w*_\w+)) (?:in|of) `?{FILE}"
EXPLAINS = rf"{FILE},?(?: which)? explains (?:the |a )?(?P<words>\w+(?: and \w+)?)"

# headers of torch, of Python and of the C library, and a file that a user makes
FOREIGN = {"torch/csrc/inductor/aoti_torch/c/shim.h", "methodobject.h", "malloc.h"}
FOREIGN |= {"table.md"}


def comments(path: Path) -> Iterator[str]:
    """The comments of a file, each on one line, and the docstrings if it is Python."""
    text = path.read_text()
    if path.suffix != ".py":
        for comment in re.findall(r"/\*(.*?)\*/", text, re.DOTALL):
            yield re.sub(r"\s*\n \*\s*", " ", comment)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield " ".join((ast.get_docstring(node) or "").split())
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = [t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT]
    yield " ".join(lines)


def paths_of(file: str) -> list[Path]:
    """The files whose paths end with `file`."""
    return [path for path in FILES if path.as_posix().endswith(f"/{file}")]


def opening(path: Path) -> str:
    """The docstring of a module, or the first comment of another file."""
    return next(iter(comments(path)), "")


def wrong_pointers(text: str) -> list[str]:
    """The parts of a comment that name a wrong file."""
    names = (match["file"] for match in re.finditer(FILE, text))
    wrong = [name for name in names if name not in FOREIGN and not paths_of(name)]
    for match in re.finditer(PLACES, text):
        name, paths = match["name"] or match["bare"], paths_of(match["file"])
        if not any(name in path.read_text() for path in paths):
            wrong.append(match[0])
    for match in re.finditer(EXPLAINS, text):
        paths = paths_of(match["file"])
        words = [word.removesuffix("s") for word in match["words"].split(" and ")]
        if not any(all(word in opening(path) for word in words) for path in paths):
            wrong.append(match[0])
    return wrong


@pytest.mark.parametrize("path", sorted(SOURCES), ids=relative_path)
def test_a_comment_points_to_the_right_place(path):
    """The file that a comment names exists and contains the name.

    If the file is said to explain a word, then the word is in its opening. Two comments
    used to say that operations.py explains slots; in fact polynomial.py does.
    """
    assert [line for text in comments(path) for line in wrong_pointers(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "see `no_such_function` in products.py",
        "nothing.py",
        "nothing.py explains slots",
        "operations.py, which explains slots and stages",
        "see NO_SUCH_NUMBER in scan.c",
    ],
)
def test_a_wrong_pointer_is_noticed(text):
    assert wrong_pointers(text)
