"""A record of measurements as text."""

from collections.abc import Sequence
from typing import Any


def page(record: dict[str, Any]) -> str:
    """The file `table.md`: where it was measured, the tables and the figure.

    Args:
        record: what `record.json` holds.

    Returns:
        Markdown, which reads as plain text too.
    """
    where, versions = record["environment"], record["environment"]["versions"]
    known = ", ".join(f"{name} {v}" for name, v in versions.items() if v is not None)
    place = f"{where['cpu']}, {where['threads']} threads, {where['blas']}"
    lines = [
        f"{place}, device {where['device']}.",
        f"Python {where['python']}, {known}.",
        f"Contenders take turns; times are the best of {record['rounds']} rounds.",
    ]
    lines += [left_out(peer) for peer in record["missing"]]
    parts = ["# Isometry and its peers", "\n".join(lines), tables(record)]
    return "\n\n".join([*parts, "![time against size](figure.svg)"]) + "\n"


def left_out(peer: str) -> str:
    """Which contender is missing, and how to get it."""
    return f"{peer} is not installed and left out; to have it: pip install {peer}"


def tables(record: dict[str, Any]) -> str:
    """One table a suite: milliseconds, and the multiple of ours."""
    return "\n\n".join(
        f"## {part['suite'].capitalize()}: {part['title']}\n\n{part['note']}\n\n"
        f"{_table(part)}"
        for part in record["suites"]
    )


def _table(part: dict[str, Any]) -> str:
    rows, ours = part["rows"], part["ours"]
    header = [f"ms (multiple of {ours})", *(f"n = {row['n']}" for row in rows)]
    body = []
    for name in rows[0]["seconds"]:
        times = [row["seconds"][name] for row in rows]
        ratios = [row["seconds"][name] / row["seconds"][ours] for row in rows]
        cells = [
            f"{short(1e3 * t, 3)} ({short(ratio, 2)}x)"
            for t, ratio in zip(times, ratios, strict=True)
        ]
        body.append([name, *cells])
    return aligned(header, body)


def short(value: float, digits: int) -> str:
    """A positive number to so many digits, never as a power of ten."""
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    # `#` keeps zeros at the end, and a point that nothing follows
    return f"{value:#.{digits}g}".rstrip(".")


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns stand below each other, numbers to the right."""
    columns = zip(header, *rows, strict=True)
    first, *rest = [max(map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        right = [cell.rjust(w) for cell, w in zip(cells[1:], rest, strict=True)]
        return "| " + " | ".join([cells[0].ljust(first), *right]) + " |"

    rule = ["-" * first, *("-" * (width - 1) + ":" for width in rest)]
    return "\n".join([line(header), line(rule), *map(line, rows)])
