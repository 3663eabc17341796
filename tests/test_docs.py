"""The documentation is true: its code runs, and its citations exist."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import isometry
from benchmarks import highlights, records, report
from isometry.groups import SO, SU
from isometry.optim import RiemannianAdam
from tests.helpers import ROOT, relative_path

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
KEY = re.compile(r"\[([A-Z][A-Za-z]+\d{2}[a-z]?)\]")


def code_of(page: Path) -> str:
    """The python blocks of a page, each at its own lines, so that tracebacks fit."""
    text = page.read_text()
    code = ""
    for block in BLOCK.finditer(text):
        code += "\n" * (text.count("\n", 0, block.start(1)) - code.count("\n"))
        code += block.group(1)
    return code


# torch's ONNX exporter warns about its own tree of arguments
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("page", [p for p in PAGES if code_of(p)], ids=relative_path)
def test_code_runs_as_printed(page):
    """The blocks of a page are one program, from top to bottom."""
    exec(compile(code_of(page), page, "exec"), {"__name__": "__main__"})


WANT = re.compile(r"^\| \[[^|]+\) \| `([^`]+)` \|$", re.MULTILINE)


LINES = WANT.findall((ROOT / "docs" / "index.md").read_text())


@pytest.mark.parametrize("line", LINES)
def test_the_lines_of_the_first_page_run(line):
    """Each line of "I want ..." is an expression that needs no other lines."""
    module = nn.Module()
    module.R = nn.Parameter(torch.eye(3))
    layer = nn.Linear(64, 64)
    names = {
        "isometry": isometry,
        "torch": torch,
        "nn": nn,
        "copy": copy,
        "SO": SO,
        "SU": SU,
        "RiemannianAdam": RiemannianAdam,
        "layer": layer,
        "model": layer,
        "module": module,
        "v": torch.zeros(3),
        "complex_layer": nn.Linear(4, 4, dtype=torch.complex64),
        "attention": nn.MultiheadAttention(8, 2),
        "checkpoint": layer.state_dict(),
        "Q": nn.Parameter(torch.eye(3)),
    }
    eval(line, names)


def test_the_first_page_answers_at_least_fifteen_wants():
    assert len(LINES) >= 15


def test_readme_has_code_that_runs():
    assert "isometry" in code_of(ROOT / "README.md")


@pytest.mark.parametrize(
    "source", [*PAGES, *sorted((ROOT / "src").rglob("*.py"))], ids=relative_path
)
def test_citations_are_in_the_bibliography(source):
    """Each key in brackets has a heading in docs/bibliography.md."""
    bibliography = (ROOT / "docs" / "bibliography.md").read_text()
    cited = set(KEY.findall(source.read_text()))
    assert cited <= set(re.findall(r"^## (\S+)$", bibliography, re.MULTILINE))


def test_results_are_those_of_the_records():
    """Results, ledger and the README's paragraph are generated from the records."""
    measured = records.load()
    page = (ROOT / "docs" / "results.md").read_text()
    assert page == highlights.results(measured)
    assert (ROOT / "docs" / "ledger.md").read_text() == report.ledger(measured)
    assert report.paragraph(measured) in (ROOT / "README.md").read_text()


def test_results_for_users_are_short():
    """The results page has figures and at most six tables, without our own goals."""
    page = highlights.results(records.load())
    assert page.count("\n| ---") <= 6
    assert "must" not in page
