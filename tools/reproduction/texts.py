"""The texts of the page, which are the .md files of this folder."""

from pathlib import Path


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.md").read_text().strip()


INTRODUCTION = _text("introduction")

RULES = _text("rules")

PIXELS = _text("pixels")

SPEECH = _text("speech")

CHEAPNESS = _text("cheapness")

CAYLEY = _text("cayley")

RETRACTIONS = _text("retractions")

DOMAIN = _text("domain")

REMARKS = _text("remarks")

BEYOND = _text("beyond")

DISCREPANCIES = _text("discrepancies")

RUNS = _text("runs")
