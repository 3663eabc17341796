"""Time against size, drawn by matplotlib without a window."""

import io
from typing import TYPE_CHECKING, Any

from isometry.lab.bench._names import (
    BARE,
    GEOTORCH,
    OUR_CAYLEY,
    OUR_HOUSEHOLDER,
    OURS,
    PLAIN,
    TORCH_CAYLEY,
    TORCH_EXP,
    TORCH_HOUSEHOLDER,
    TORCH_MATRIX_EXP,
    TORCH_RNN,
)
from isometry.lab.report._figures import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# colours that colour-blind readers can tell apart [Wong 2011]; ours stands out
OUR_COLOUR = "#d55e00"
LOOKS: dict[str, dict[str, Any]] = {
    OURS: {"color": OUR_COLOUR, "lw": 2.6, "marker": "o", "zorder": 5},
    "isometry, exp": {"color": OUR_COLOUR, "lw": 2.6, "marker": "o", "zorder": 5},
    OUR_CAYLEY: {"color": OUR_COLOUR, "ls": "--", "marker": "o"},
    "isometry, cayley": {"color": OUR_COLOUR, "ls": "--", "marker": "s"},
    OUR_HOUSEHOLDER: {"color": OUR_COLOUR, "ls": ":", "marker": "o"},
    "isometry, qr": {"color": OUR_COLOUR, "ls": ":", "marker": "D"},
    TORCH_MATRIX_EXP: {"color": "#0072b2", "marker": "s"},
    TORCH_EXP: {"color": "#0072b2", "marker": "v", "ls": ":"},
    GEOTORCH: {"color": "#009e73", "marker": "^", "ls": "--"},
    "geoopt, canonical": {"color": "#009e73", "marker": "^", "ls": "--"},
    "geoopt, euclidean": {"color": "#009e73", "marker": "v"},
    TORCH_HOUSEHOLDER: {"color": "#999999", "marker": "D"},
    TORCH_CAYLEY: {"color": "#cc79a7", "marker": "P"},
    TORCH_RNN: {"color": "#999999", "marker": "D"},
    PLAIN: {"color": "#000000", "ls": "-.", "marker": "."},
    BARE: {"color": "#000000", "ls": ":", "lw": 1.0, "marker": "_"},
    "SciPy": {"color": "#e6b800", "marker": "x"},
    "one product": {"color": "#000000", "ls": "-.", "lw": 1.0},
}


def draw(record: dict[str, Any]) -> dict[str, bytes]:
    """One panel a suite.

    Args:
        record: what `record.json` holds.

    Returns:
        The figure by name of its file, as PNG and SVG.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    parts = record["suites"]
    columns = min(2, len(parts))
    lines = -(-len(parts) // columns)
    files = {}
    # a figure of its own, outside pyplot: no state, no window, no memory kept
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6 * columns, 4.8 * lines))
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.12)
        for place, part in enumerate(parts, 1):
            _panel(figure.add_subplot(lines, columns, place), part)
        for kind in ("png", "svg"):
            room = io.BytesIO()
            # without the date the same record gives the same file
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(room, format=kind, dpi=160, metadata=metadata)
            files[f"figure.{kind}"] = room.getvalue()
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
    # a decade may have but one power of ten to read from
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.set_xlabel("n")
    axes.set_ylabel("milliseconds")
    axes.set_title(f"{part['suite']}: {part['title']}", fontsize=10)
    # below, where it covers nothing
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=8.5)
