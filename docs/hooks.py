"""What the site derives from its files: the navigation, and links for citations."""

import re
from pathlib import Path

# folders whose pages are listed by themselves, with the heading of each
FOLDERS = {"tutorials": "Tutorials", "theory": "Theory", "api": "API"}


def on_config(config):
    docs = Path(config.docs_dir)
    nav: list[object] = [{"Home": "index.md"}, "results.md"]
    for folder, heading in FOLDERS.items():
        pages = sorted(docs.glob(f"{folder}/*.md"))
        if pages:
            nav.append({heading: [f"{folder}/{page.name}" for page in pages]})
    config.nav = [*nav, "bibliography.md"]
    return config


def on_page_content(html, page, config, files):
    """Link `[LM19]` to its entry; tests/test_docs.py checks that the entry exists."""
    target = files.get_file_from_path("bibliography.md").url_relative_to(page.file)

    def link(key: re.Match[str]) -> str:
        return f'<a href="{target}#{key[1].lower()}">{key[0]}</a>'

    return re.sub(r"\[([A-Z][A-Za-z]+\d{2}[a-z]?)\]", link, html)
