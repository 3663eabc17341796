"""What the package promises to an installer, as far as one Python can check it."""

import ast
import sys
import tomllib
import warnings
from collections.abc import Iterator

import pytest

from tests.helpers import ROOT, relative_path

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# modules that were removed from the standard library in 3.12, 3.13 or 3.14
REMOVED = {
    *("asynchat", "asyncore", "distutils", "imp", "smtpd"),
    *("aifc", "audioop", "cgi", "cgitb", "chunk", "crypt", "imghdr", "lib2to3"),
    *("mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "sndhdr", "spwd"),
    *("sunau", "telnetlib", "uu", "xdrlib"),
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Names of the modules that a file imports, up to the first dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_the_classifiers_are_the_versions_from_the_oldest_on():
    prefix = "Programming Language :: Python :: 3."
    names = [c for c in PROJECT["classifiers"] if c.startswith(prefix)]
    minors = [int(c.removeprefix(prefix)) for c in names]
    assert minors == [11, 12, 13, 14]
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"


@pytest.mark.parametrize("path", SOURCES, ids=relative_path)
def test_every_supported_python_reads_the_sources(path):
    """The syntax is that of 3.11, and no later version warns about it.

    Later versions warn about unknown escapes in strings (3.12) and jumps out of
    `finally` (3.14). In `make check`, pyright looks for names that they removed.
    """
    text = path.read_text()
    with warnings.catch_warnings(action="error"):
        tree = ast.parse(text, feature_version=(3, 11))
        compile(text, str(path), "exec")
    assert not REMOVED & set(imported(tree))
    jumps = (ast.Return, ast.Break, ast.Continue)
    ends = [n.finalbody for n in ast.walk(tree) if isinstance(n, ast.Try | ast.TryStar)]
    inside = [node for end in ends for part in end for node in ast.walk(part)]
    assert not any(isinstance(node, jumps) for node in inside)


def test_the_library_imports_what_it_declares():
    """The library, except for the laboratory, imports torch, numpy and Python only.

    jaxtyping is imported if it is installed; only the tests check shapes with it.
    """
    library = [p for p in SOURCES if "lab" not in p.relative_to(ROOT).parts]
    names = {n for p in library for n in imported(ast.parse(p.read_text()))}
    others = names - set(sys.stdlib_module_names) - {"isometry"}
    declared = {line.partition(">")[0] for line in PROJECT["dependencies"]}
    assert others - {"jaxtyping"} <= declared == {"torch", "numpy"}


def test_what_an_index_shows():
    """The index shows a license by its name, a page, and keywords."""
    assert PROJECT["license"] == "MIT"
    assert PROJECT["readme"] == "README.md"
    assert PROJECT["dynamic"] == ["version"]
    assert len(PROJECT["description"]) < 100
    assert {"urls", "keywords", "authors"} <= PROJECT.keys()
