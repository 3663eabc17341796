"""The HTML page of a report: one file without scripts, readable offline."""

import re
from collections.abc import Sequence
from html import escape, unescape

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from isometry.lab._report import table as tables
from isometry.lab._report.experiments import ReportedExperiment
from isometry.lab._report.figures import GRID, INK, PAGE, Figure, text_width
from isometry.lab._report.looks import DARK, LIGHT, looks
from isometry.lab._report.runs import Run
from isometry.lab.paper.tables import SOURCE

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
    # `autoescape` escapes every text that is not `Markup`
    environment = Environment(
        loader=PackageLoader("isometry.lab", "_report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html").render(
        parts=parts,
        title=parts[0][0].task.title if len(parts) == 1 else "Report of experiments",
        origin=_origin([run for experiment, _ in parts for run in experiment.runs]),
        light=LIGHT,
        dark=DARK,
        source=SOURCE,
        tables=tables,
        headline=headline,
        inline=inline,
        looks=looks,
        zip=zip,
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
    score, name, place = experiment.comparison
    value = tables.spread(top.values(score))
    steps = f"{max(run.steps for run in top.counted):,}"
    label = looks(groups)[groups.index(top)].label
    best = label if len(groups) == 1 else f"Best is {label}"
    text = f"{best}: {name} {value} {place.format(steps)}."
    baseline = experiment.baseline_of_metric
    if baseline is not None:
        text += f" The trivial solution gets {tables.small(baseline)}."
    return text


def inline(figure: Figure) -> Markup:
    """The `<svg>` element of a figure, in the colours and the font of the page."""
    text = figure.svg.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    for colour, variable in COLOURS.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # prefix all ids and references, so that they differ from those of other figures
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{figure.svg.stem}-", text)
    # let the style sheet of the page determine the width, the height and the font
    text = re.sub(r' (width|height)="[^"]*"', "", text, count=2)
    text = re.sub(r'<text style="font-size: ([\d.]+)px.*?>([^<]*)', _keep_width, text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    # screen readers read `aria-label` aloud
    label = f'role="img" aria-label="{escape(figure.caption)}"'
    return Markup(text.replace("<svg", f"<svg {label}", 1))


def _keep_width(text: re.Match) -> str:
    """The start of a `<text>` element, with an attribute that fixes its width.

    Matplotlib has laid out the figure for the font DejaVu Sans. A browser may use a
    wider font; without this attribute, texts would then overlap.
    """
    width = text_width(unescape(text[2]), float(text[1]))
    fixed = f'<text textLength="{width:.2f}" lengthAdjust="spacingAndGlyphs"'
    return text[0].replace("<text", fixed, 1)
