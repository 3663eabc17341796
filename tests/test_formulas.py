"""Formulas of pages and docstrings become MathML on the site."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.formulas import mathml
from tests.helpers import ROOT, relative_path

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LATEX = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>\S[^$]*?)\$", re.DOTALL)


def prose(path: Path) -> str:
    """The text of a page, or all docstrings of a module, without code."""
    text = path.read_text()
    if path.suffix == ".py":
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        text = "\n\n".join(ast.get_docstring(node) or "" for node in nodes)
    return CODE.sub("", text)


def understood(formula: str) -> bool:
    """Whether latex2mathml knew all commands; it copies unknown ones to its output."""
    text = "".join(ET.fromstring(formula).itertext())
    return text != "" and not set(text) & set("\\&")


@pytest.mark.parametrize("source", [*PAGES, *SOURCES], ids=relative_path)
def test_every_formula_converts(source):
    for formula in LATEX.finditer(prose(source)):
        latex = formula["block"] or formula["inline"]
        assert understood(mathml(latex, display=formula["block"] is not None)), latex


def test_a_command_that_is_unknown_is_noticed():
    assert not understood(mathml(r"\arg z", display=False))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> list[Path]:
    """The pages of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    # the theme announces its successor on every build
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=ROOT, env=environment, check=True, capture_output=True)
    return sorted(folder.rglob("*.html"))


def test_the_site_shows_formulas_without_a_script(site):
    """Every formula is MathML; scripts are the theme's, and ours for the search."""
    text = {page: page.read_text() for page in site}
    formulas = [f for t in text.values() for f in re.findall(r"<math .*?</math>", t)]
    # there were 808 in November 2026
    assert len(formulas) > 500
    assert all(map(understood, formulas))
    for page, html in text.items():
        assert "arithmatex" not in html, page
        for script in re.findall(r'<script[^>]* src="([^"]*)"', html):
            known = ("assets/javascripts/bundle", "assets/offline.js")
            assert any(name in script for name in known), (page, script)


def test_the_site_can_be_read_and_searched_from_a_disk(site):
    """The site can be read and searched from a disk.

    Links name files, and the index of the search is a script beside the theme's. Links
    used to name folders, which a browser lists instead of opening their pages.
    """
    (home,) = (page for page in site if page.name == "404.html")
    index = home.parent / "search" / "search_index.js"
    assert index.read_text().startswith("var __index = {")
    for page in site:
        # the 404 page is for a server, and has absolute links
        if page == home:
            continue
        for link in re.findall(r'<a [^>]*href="([^":#]+)"', page.read_text()):
            assert (page.parent / link).is_file(), (page, link)


def operators(latex: str) -> list[tuple[str | None, str | None]]:
    """Each operator of a formula with its form."""
    formula = ET.fromstring(mathml(latex, display=False))
    return [(mo.text, mo.get("form")) for mo in formula.iter() if mo.tag.endswith("mo")]


def test_a_sign_belongs_to_what_follows():
    """In `A = -A - B` the first minus is a prefix, and the second is not."""
    minus = [form for text, form in operators("A = -A - B") if text == "−"]
    assert minus == ["prefix", None]


@pytest.mark.parametrize(
    "latex", [r"|x| \, |y|", r"\lVert x \rVert_2 \lVert y \rVert", r"a|x|^2 + b|{-y}|"]
)
def test_bars_open_and_close(latex):
    forms = [form for text, form in operators(latex) if text in {"|", "‖"}]
    assert forms == ["prefix", "postfix"] * 2


def test_a_function_keeps_its_distance():
    """`2 sin x` has thin spaces around the function, `sin(x)` has none."""
    assert mathml(r"2 \sin x", display=False).count("mspace") == 2
    assert mathml(r"\sin(x)", display=False).count("mspace") == 0


def test_letters_are_those_of_mathml_core():
    """Fraktur has its own characters, and capitals are upright as in TeX."""
    assert "𝔰" in mathml(r"\mathfrak{so}(n)", display=False)
    assert "ℱ" in mathml(r"\mathcal F", display=False)
    assert '<mi mathvariant="normal">Ω</mi>' in mathml(r"\Omega", display=False)
