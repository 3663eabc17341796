"""Tables and a figure from a record of measurements."""

import io
from typing import TYPE_CHECKING, Any

from isometry.lab import bench
from isometry.lab._report.figures import STYLE
from isometry.lab._report.table import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def page(record: dict[str, Any]) -> str:
    """The content of `table.md`: the machine, the tables and the figure."""
    return f"{summary(record)}\n\n![time against size](figure.svg)\n"


def summary(record: dict[str, Any]) -> str:
    """A description of the machine, and the tables.

    Args:
        record: the content of `record.json`.

    Returns:
        Markdown that is also readable as plain text.
    """
    here = record["environment"]
    packages = {k: v for k, v in here["versions"].items() if v is not None}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    machine = f"{here['cpu']}, {here['threads']} threads, {here['blas']}"
    lines = [
        f"{machine}, device {here['device']}.",
        f"Python {here['python']}, {versions}.",
        f"Contenders take turns; times are the best of {record['rounds']} rounds.",
    ]
    lines += [left_out(peer) for peer in record["missing"]]
    return "\n\n".join(["# Isometry and its peers", "\n".join(lines), tables(record)])


def left_out(peer: str) -> str:
    """A message that says that a peer is not installed, and how to install it."""
    return f"{peer} is left out: it is not installed. To add it: pip install {peer}"


def tables(record: dict[str, Any]) -> str:
    """A table for each suite, with times in ms and as multiples of our time."""
    return "\n\n".join(
        f"## {part['suite'].capitalize()}: {part['title']}\n\n{part['note']}\n\n"
        f"{_table(part)}"
        for part in record["suites"]
    )


def _table(part: dict[str, Any]) -> str:
    rows, ours = part["rows"], part["ours"]
    header = [f"ms (multiple of {ours})", *(f"n = {row['n']}" for row in rows)]

    def cell(seconds: dict[str, float], name: str) -> str:
        ratio = seconds[name] / seconds[ours]
        return f"{short(1e3 * seconds[name], 3)} ({short(ratio, 2)}x)"

    names = rows[0]["seconds"]
    body = [[name, *(cell(row["seconds"], name) for row in rows)] for name in names]
    return aligned(header, body)


def short(value: float, digits: int) -> str:
    """A number as text, with `digits` significant digits and no exponent.

    The number must be at least 1e-4. If it has more than `digits` digits before the
    decimal point, it is rounded to a whole number.
    """
    if value >= 10 ** (digits - 1):
        return f"{value:.0f}"
    # the flag `#` keeps trailing zeros; it also keeps a decimal point at the end, which
    # `rstrip` removes
    return f"{value:#.{digits}g}".rstrip(".")


# How the line of each contender is drawn. All colours except grey and yellow are from
# B. Wong's palette (Nature Methods, 2011), which colour-blind readers can tell apart.
# Our own lines all have the same colour, which stands out.
OUR_COLOUR = "#d55e00"
LOOKS: dict[str, dict[str, Any]] = {
    bench.OURS: {"color": OUR_COLOUR, "lw": 2.6, "marker": "o", "zorder": 5},
    "isometry, exp": {"color": OUR_COLOUR, "lw": 2.6, "marker": "o", "zorder": 5},
    bench.OUR_CAYLEY: {"color": OUR_COLOUR, "ls": "--", "marker": "o"},
    "isometry, cayley": {"color": OUR_COLOUR, "ls": "--", "marker": "s"},
    bench.OUR_HOUSEHOLDER: {"color": OUR_COLOUR, "ls": ":", "marker": "o"},
    "isometry, qr": {"color": OUR_COLOUR, "ls": ":", "marker": "D"},
    bench.TORCH_MATRIX_EXP: {"color": "#0072b2", "marker": "s"},
    bench.TORCH_EXP: {"color": "#0072b2", "marker": "v", "ls": ":"},
    bench.GEOTORCH: {"color": "#009e73", "marker": "^", "ls": "--"},
    "geoopt, canonical": {"color": "#009e73", "marker": "^", "ls": "--"},
    "geoopt, euclidean": {"color": "#009e73", "marker": "v"},
    bench.TORCH_HOUSEHOLDER: {"color": "#999999", "marker": "D"},
    bench.TORCH_CAYLEY: {"color": "#cc79a7", "marker": "P"},
    bench.TORCH_RNN: {"color": "#999999", "marker": "D"},
    bench.UNCONSTRAINED: {"color": "#000000", "ls": "-.", "marker": "."},
    bench.BARE: {"color": "#000000", "ls": ":", "lw": 1.0, "marker": "_"},
    "SciPy": {"color": "#e6b800", "marker": "x"},
    "one product": {"color": "#000000", "ls": "-.", "lw": 1.0},
}


def draw(record: dict[str, Any]) -> dict[str, bytes]:
    """Draw a panel for each suite.

    Args:
        record: the content of `record.json`.

    Returns:
        The contents of the files, keyed by file name: the figure as PNG and as SVG.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    parts = record["suites"]
    columns = min(2, len(parts))
    rows = -(-len(parts) // columns)
    files = {}
    # avoid pyplot, which would keep global state, open windows and hold on to memory
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6 * columns, 4.8 * rows))
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        for position, part in enumerate(parts, 1):
            _panel(figure.add_subplot(rows, columns, position), part)
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            # leave the date out, so that the same record gives the same file
            figure.savefig(buffer, format=kind, dpi=160, metadata={"Date": None})
            files[f"figure.{kind}"] = buffer.getvalue()
    return files


def _panel(axes: "Axes", part: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator

    rows = part["rows"]
    sizes = [row["n"] for row in rows]
    for name in rows[0]["seconds"]:
        times = [1e3 * row["seconds"][name] for row in rows]
        axes.loglog(sizes, times, label=name, ms=5, **LOOKS[name])
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_xlim(sizes[0] / 1.2, sizes[-1] * 1.2)
    # a short axis may contain only one power of ten, so add ticks at 3, 30, ...
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.set(xlabel="n", ylabel="milliseconds")
    axes.set_title(f"{part['suite']}: {part['title']}", fontsize=10)
    # put the legend below the axes, where it does not cover a line
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8.5)
