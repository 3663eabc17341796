"""The demo's report: one HTML page, which shows the figures beside it."""

import html
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem;
       margin: 2.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr.ours td { font-weight: 600; color: #b34e00; }
img { width: 100%; } .note { color: #666; font-size: .9rem; }
"""


def page(record: dict[str, Any]) -> str:
    """The whole page."""
    rows = record["peers"]
    last = rows[-1]
    ours, torch = (
        last["seconds"]["isometry"],
        last["seconds"]["torch.linalg.matrix_exp"],
    )
    errors = [row for row in record["accuracy"] if row["norm"] <= 3.15]
    worst = {who: max(r[who]["gradient"] for r in errors) for who in ("ours", "torch")}
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Isometry: the exponential</title>
<style>{STYLE}</style></head><body>
<h1>The exponential of a skew matrix, on this machine</h1>
<p>One forward and backward pass at n = {last["n"]} takes <b>{1e3 * ours:.1f} ms</b>,
<b>{torch / ours:.1f} times faster</b> than <code>torch.linalg.matrix_exp</code>
({1e3 * torch:.1f} ms). Up to norm π the worst error of its gradient is
<b>{worst["ours"]:.1e}</b> (torch: {worst["torch"]:.1e}).</p>
<img src="kernel.png" alt="time against size, gradient error against the norm">
<h2>Time of every peer, in milliseconds</h2>
{_table(rows)}
<p class="note">float32, spectral norm 3, cotangent of Frobenius norm 1; best of
{record["rounds"]} interleaved rounds. The Cayley map is not the exponential: it does
not reach the eigenvalue -1.</p>
<h2>Errors against double precision</h2>
<img src="accuracy.png" alt="errors of value, gradient and orthogonality">
<p class="note">{html.escape(record["processor"])}, torch {record["torch"]},
{record["threads"]} threads.</p>
</body></html>
"""


def _table(rows: list[dict[str, Any]]) -> str:
    names = sorted(rows[0]["seconds"], key=lambda name: name != "isometry")
    head = "".join(f"<th>n = {row['n']}</th>" for row in rows)
    lines = [f"<tr><th></th>{head}</tr>"]
    for name in names:
        cells = "".join(
            f"<td>{1e3 * row['seconds'][name]:.3g}</td>"
            if name in row["seconds"]
            else "<td></td>"
            for row in rows
        )
        mark = ' class="ours"' if name == "isometry" else ""
        lines.append(f"<tr{mark}><td>{html.escape(name)}</td>{cells}</tr>")
    return "<table>" + "\n".join(lines) + "</table>"
