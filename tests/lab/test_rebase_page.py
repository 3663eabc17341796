"""The page on rebasing shows the numbers of its record."""

import json
from pathlib import Path

import pytest
import torch

from tools.reproduction import __main__ as command
from tools.reproduction import experiments, rebase, rebase_page

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / experiments.FOLDER / "rebase.json").read_text())


def test_the_table_is_generated():
    """The page is what `python -m tools.reproduction page` writes, byte by byte."""
    page = (ROOT / command.DOCS / "how-to" / "rebase.md").read_text()
    assert rebase_page.updated(page, RECORD) == page
    assert page.count(rebase_page.BEGIN) == page.count(rebase_page.END) == 1


@pytest.mark.parametrize(
    ("moving", "word"),
    [
        ([1.0, 1.5, 9.0], "better"),
        ([1.0, 3.0, 9.0], "even"),
        ([1.0, 5.0, 9.0], "worse"),
    ],
)
def test_the_median_is_compared_with_the_range(moving, word):
    assert rebase_page.verdict([2.0, 3.0, 4.0], moving) == word


def test_the_figure_has_a_panel_for_each_problem(tmp_path):
    path = tmp_path / "rebase.svg"
    rebase_page.draw(RECORD, path)
    text = path.read_text()
    assert all(f"{name}, n = " in text for name in rebase.PROBLEMS)


@pytest.mark.parametrize("name", ["Procrustes", "deep network", "copying"])
def test_both_bases_start_alike(name):
    """With both bases losses have the same bits until a base moves after ten steps."""
    (make, (n, _), _) = rebase.PROBLEMS[name]
    curves = []
    for every in (None, 10):
        torch.manual_seed(1)
        model, loss = make(n, 1, every)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(12):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()
            # after the step, and after the base has moved if it does
            losses.append(loss(step).item())
        curves.append(losses)
    fixed, moving = curves
    assert fixed[:9] == moving[:9]
    assert fixed != moving
