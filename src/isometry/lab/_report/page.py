"""The HTML page of a report: one file without scripts, readable offline."""

import re
from collections.abc import Mapping, Sequence
from html import escape, unescape
from importlib.resources import files
from typing import Any

from isometry.lab._report import table as tables
from isometry.lab._report.experiments import ReportedExperiment
from isometry.lab._report.figures import GRID, INK, PAGE, Figure, text_width
from isometry.lab._report.looks import DARK, LIGHT, looks
from isometry.lab._report.runs import Run
from isometry.lab._report.table import RESULT, Table, TableRow
from isometry.lab.paper.tables import SOURCE

# A second line of defence, in case a text is not escaped: with this policy, a browser
# runs no scripts and fetches nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# for each colour in a drawing, the CSS variable that replaces it on the page
COLOURS = {INK: "--ink", GRID: "--grid", PAGE: "--page"} | {
    colour: f"--c{number}" for number, colour in enumerate(LIGHT)
}


def page(parts: Sequence[tuple[ReportedExperiment, Sequence[Figure]]]) -> str:
    """The whole HTML page of a report.

    Args:
        parts: each experiment with its figures.

    Returns:
        The text of the HTML file.
    """
    title = parts[0][0].title if len(parts) == 1 else "Report of experiments"
    runs = [run for experiment, _ in parts for run in experiment.runs]
    items = "".join(
        f'<li><a href="#{escape(e.key)}">{escape(e.title)}</a></li>' for e, _ in parts
    )
    contents = f"<nav><ul>{items}</ul></nav>" if len(parts) > 1 else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>Isometry: {escape(title)}</title>
<style>{_style()}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p class="note">{escape(_origin(runs))}</p>{contents}</header>
<main>
{"".join(_section(*part, alone=len(parts) == 1) for part in parts)}
</main>
</body>
</html>
"""


def _style() -> str:
    """The style sheet, with the figures' palettes for light and dark mode."""

    def variables(palette: Sequence[str]) -> str:
        return " ".join(f"--c{n}: {colour};" for n, colour in enumerate(palette))

    sheet = (files("isometry.lab._report") / "page.css").read_text(encoding="utf-8")
    return (
        f":root {{ {variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}\n"
        f"{sheet}"
    )


def _origin(runs: Sequence[Run]) -> str:
    """How many runs there are, and on which machines they ran."""
    count = f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}"
    machines = sorted({_machine(run) for run in runs} - {""})
    return f"{count}, {'; '.join(machines)}." if machines else f"{count}."


def _machine(run: Run) -> str:
    """The processor, threads, torch and BLAS of a run, as far as known."""
    machine, versions = run.environment, run.environment.get("versions") or {}
    threads = machine.get("threads")
    facts = (
        (machine.get("cpu"), "{}"),
        (threads, "{} thread" if threads == 1 else "{} threads"),
        (versions.get("torch"), "torch {}"),
        (machine.get("blas"), "{}"),
    )
    return ", ".join(form.format(value) for value, form in facts if value is not None)


def _section(
    experiment: ReportedExperiment, figures: Sequence[Figure], *, alone: bool
) -> str:
    each, paper = tables.runs_table(experiment), experiment.paper
    pairs = zip(experiment.runs, looks(experiment.singles), strict=True)
    parts = [
        # if there is only one experiment, the title of the page already names it
        "" if alone else f"<h2>{escape(experiment.title)}</h2>",
        f'<p class="lead">{escape(headline(experiment))}</p>',
        _table(tables.results_table(experiment)),
        each and f"<details><summary>Each run</summary>{_table(each)}</details>",
        paper
        and f'<p class="note"><b>The paper, {escape(paper.where)}.</b> '
        f"{escape(paper.words())} <cite>{escape(SOURCE)}.</cite></p>",
        f'<div class="figures">{"".join(map(_figure, figures))}</div>',
        "<h3>Commands</h3>",
        *(_command(run, look.label) for run, look in pairs),
    ]
    body = "\n".join(filter(None, parts))
    return f'<section id="{escape(experiment.key)}">\n{body}\n</section>\n'


def headline(experiment: ReportedExperiment) -> str:
    """One or two sentences that name the best network and its result.

    Args:
        experiment: the runs to compare.

    Returns:
        Plain text.
    """
    groups = experiment.groups
    top = tables.best_group(experiment, groups)
    if top is None:
        if all(run.status == "diverged" for run in experiment.runs):
            return "Every run diverged."
        return "No run has measured anything yet."
    value = tables.spread(top.values(experiment.compared))
    label = looks(groups)[groups.index(top)].label
    metric = experiment.metric
    word = tables.word_for(metric)
    name = label if len(groups) == 1 else f"Best is {label}"
    steps = tables.count_text(max(run.steps for run in top.counted))
    place = "at the best validation in" if experiment.has_validation else "after"
    text = f"{name}: test {word} {value} {place} {steps} steps."
    if metric == "loss":
        text = f"{name}: final training loss {value} after {steps} steps."
    elif experiment.selects_on_test:
        text = (
            f"{name}: best test {word} {value} in {steps} steps, selected on the test "
            f"set as in the paper."
        )
    baseline = experiment.baseline_of_metric
    if baseline is not None:
        text += f" The trivial solution gets {tables.small(baseline)}."
    return text


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    body = "\n".join(_row(row) for row in table.rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="results"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: TableRow) -> str:
    name, *cells = [escape(cell) for cell in row.cells]
    if row.best:
        cells[RESULT - 1] = f"<b>{cells[RESULT - 1]}</b>"
    key, kind = "", ' class="paper"'
    if row.look is not None:
        colour = f"background: var(--c{row.look.colour})"
        key, kind = f'<span class="key" style="{colour}"></span>', ""
    rest = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr{kind}><th scope="row">{key}{name}</th>{rest}</tr>'


def _figure(figure: Figure) -> str:
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    return f"<figure>{inline(figure)}{caption}</figure>"


def inline(figure: Figure) -> str:
    """The `<svg>` element of a figure, in the colours and the font of the page."""
    text = figure.svg.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    for colour, variable in COLOURS.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # prefix all ids and references, so that they differ from those of other figures
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{figure.svg.stem}-", text)
    # let the style sheet of the page determine the width, the height and the font
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'<text style="font-size: ([\d.]+)px.*?>([^<]*)', _keep_width, text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    # screen readers read `aria-label` aloud
    label = f'role="img" aria-label="{escape(figure.caption)}"'
    return text.replace("<svg", f"<svg {label}", 1)


def _keep_width(text: re.Match) -> str:
    """The start of a `<text>` element, with an attribute that fixes its width.

    Matplotlib has laid out the figure for the font DejaVu Sans. A browser may use a
    wider font; without this attribute, texts would then overlap.
    """
    width = text_width(unescape(text[2]), float(text[1]))
    fixed = f'<text textLength="{width:.2f}" lengthAdjust="spacingAndGlyphs"'
    return text[0].replace("<text", fixed, 1)


def _command(run: Run, label: str) -> str:
    command = run.config.get("command") or "The command was not recorded."
    facts = _facts(run.environment)
    return f"""<div class="run"><p><b>{escape(label)}</b>
<span class="note">{escape(run.status)}, folder {escape(run.path.name)}</span></p>
<pre><code>{escape(str(command))}</code></pre>
{f"<details><summary>Environment</summary><dl>{facts}</dl></details>" if facts else ""}
</div>
"""


def _facts(environment: Mapping[str, Any]) -> str:
    return "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(_plain(value))}</dd>"
        for name, value in environment.items()
        if value is not None
    )


def _plain(value: object) -> str:
    """A value, or the entries of a mapping, as text on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return str(value)
