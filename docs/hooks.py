"""What the site derives from its files: navigation, formulas, links for citations."""

import re
from html import unescape
from pathlib import Path

from formulas import mathml

# folders whose pages are listed by themselves, with the heading of each
FOLDERS = {"tutorials": "Tutorials", "theory": "Theory", "api": "API"}


def on_config(config):
    docs = Path(config.docs_dir)
    nav: list[object] = [{"Home": "index.md"}, "results.md", "reproduction.md"]
    for folder, heading in FOLDERS.items():
        pages = sorted(docs.glob(f"{folder}/*.md"))
        if pages:
            nav.append({heading: [f"{folder}/{page.name}" for page in pages]})
    config.nav = [*nav, "bibliography.md"]
    return config


# what arithmatex makes of $...$ and $$...$$, in pages and in docstrings
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL
)


def convert(formula: re.Match[str]) -> str:
    element, latex = formula[1], unescape(formula[2]).strip()
    if element == "span":
        return mathml(latex, display=False)
    # a formula that is wider than the page scrolls by itself, in this box
    return f'<div class="formula">{mathml(latex, display=True)}</div>'


def on_page_content(html, page, config, files):
    """Write formulas as MathML, and link `[LM19]` to its entry.

    tests/test_docs.py checks that each formula converts and that each entry exists.
    """
    target = files.get_file_from_path("bibliography.md").url_relative_to(page.file)

    def link(key: re.Match[str]) -> str:
        return f'<a href="{target}#{key[1].lower()}">{key[0]}</a>'

    linked = re.sub(r"\[([A-Z][A-Za-z]+\d{2}[a-z]?)\]", link, html)
    return FORMULA.sub(convert, linked)
