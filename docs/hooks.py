"""What the site derives from its files: navigation, formulas, citations, search."""

import re
from html import unescape
from pathlib import Path

from formulas import mathml

# The navigation, in the order of a reader's questions: headings, folders and pages.
# Pages that are not named here come at the end of the last section of their folder.
SECTIONS = {
    "How to: layers": (
        "how-to",
        "install convolution transformer recurrent adapter shared gain start groups",
    ),
    "How to: training": (
        "how-to",
        "optimizers lbfgs rebase maps averages half devices machines",
    ),
    "How to: in and out": ("how-to", "from-torch from-lstm export reads"),
    "How to: matrices": ("how-to", "riemannian problems rotations"),
    "Laboratory": ("laboratory", "experiments tasks own sweeps reports bench"),
    "Theory": ("theory", "groups expm_skew optimizers networks"),
    "Reference": ("api", "isometry nn optim groups rotations linalg testing lab"),
}
FIRST = ({"Home": "index.md"}, "first-steps.md")
LAST = (
    "reproduction.md",
    "results.md",
    "bibliography.md",
    {"For developers": ["ledger.md", "walk.md"]},
)


def on_config(config):
    docs = Path(config.docs_dir)
    sections = {
        heading: [f"{folder}/{name}.md" for name in names.split()]
        for heading, (folder, names) in SECTIONS.items()
    }
    last = {folder: heading for heading, (folder, _) in SECTIONS.items()}
    for folder, heading in last.items():
        pages = [
            f"{folder}/{page.name}" for page in sorted(docs.glob(f"{folder}/*.md"))
        ]
        placed = {page for section in sections.values() for page in section}
        sections[heading] += [page for page in pages if page not in placed]
    config.nav = [*FIRST, *({k: v} for k, v in sections.items()), *LAST]
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


def on_post_build(config):
    """Write the index of the search as a script, which `file://` pages can load.

    The theme looks for it there. Its own plugin for this loads code from another host.
    """
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}\n")
