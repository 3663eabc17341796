"""The texts of the page, which are the .md files of this folder."""

from pathlib import Path


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.md").read_text().strip()


INTRODUCTION = _text("introduction")

SPEECH = _text("speech")

DISCREPANCIES = _text("discrepancies")

CHEAPNESS = _text("cheapness")

CAYLEY = _text("cayley")

DOMAIN = _text("domain")

REMARKS = _text("remarks")

BEYOND = _text("beyond")
