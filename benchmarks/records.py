"""Records of measurements, one for each processor."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from isometry.lab._process import machine

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "records" / "benchmarks"

Record = dict[str, Any]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def reached(holds: bool) -> str:
    """The word for a requirement in tables: "yes" if it is met, else "no" in bold."""
    return "yes" if holds else "**no**"


def environment(rounds: int) -> Record:
    """The machine, its software and the number of rounds, to be stored with numbers."""
    return machine() | {"rounds": rounds}


def slug(processor: str) -> str:
    """File name for a processor: "Intel(R) Xeon(R) CPU" becomes intel-xeon-cpu."""
    plain = re.sub(r"\((r|tm|c)\)", " ", processor.lower())
    return "-".join(re.findall(r"[a-z0-9.]+", plain)) or "unknown"


def load(folder: Path = FOLDER) -> dict[str, Record]:
    """All records, keyed by the names of their files without `.json`."""
    files = sorted(folder.glob("*.json"))
    return {file.stem: json.loads(file.read_text()) for file in files}


def add(part: Record, folder: Path = FOLDER) -> None:
    """Add measurements to the record of this processor, or replace older ones."""
    if not part:
        return
    path = folder / f"{slug(machine()['processor'])}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record | part, indent=1) + "\n")


def where(record: Record) -> Record:
    """The environment of a whole record or, if it has none, of its first part."""
    if "processor" in record:
        return record
    return next(part for part in record.values() if "processor" in part)
