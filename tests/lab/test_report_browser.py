"""The page in a real browser: it fits, it can be read, and it fetches nothing."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from isometry.lab import write_report
from tests.lab.fake_runs import fake_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here; .ci/run installs it"
)

# This script measures what a reader sees inside the page, and appends the result to it.
PROBE = """
addEventListener('load', async () => {
  const page = document.querySelector('iframe').contentDocument;
  // under load the first layout may be with another font
  await page.fonts.ready;
  const style = element => page.defaultView.getComputedStyle(element);
  const inside = svg => [...svg.querySelectorAll('text')].map(text => {
    const a = text.getBoundingClientRect(), b = svg.getBoundingClientRect();
    return Math.max(b.left - a.left, a.right - b.right,
                    b.top - a.top, a.bottom - b.bottom);
  });
  const svgs = [...page.querySelectorAll('svg')];
  const lines = svgs.flatMap(svg => [...svg.querySelectorAll('[id*=line2d] > path')]);
  const found = {
    width: page.documentElement.scrollWidth,
    figures: svgs.map(svg => svg.getBoundingClientRect().width),
    left: svgs.map(svg => svg.getBoundingClientRect().left),
    text: svgs.map(svg => svg.querySelectorAll('text').length),
    outside: svgs.flatMap(inside),
    smallest: Math.min(...svgs.flatMap(svg => [...svg.querySelectorAll('text')].map(
      text => text.getBoundingClientRect().height))),
    page: style(page.body).backgroundColor,
    ink: style(page.body).color,
    soft: style(page.querySelector('.note')).color,
    strokes: [...new Set(lines.map(line => style(line).stroke))],
    grid: style(page.querySelector('td')).borderBottomColor,
    loaded: page.defaultView.performance.getEntriesByType('resource').length,
    quirks: page.compatMode,
  };
  const out = document.createElement('pre');
  out.id = 'probe';
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
"""


def look(page: Path, *, width: int, dark: bool) -> dict:
    """Measure a page in the browser at this width."""
    assert CHROMIUM is not None
    frame = f'<iframe width="{width}" height="900" srcdoc="{{}}"></iframe>'
    outer = page.with_name(f"probe-{width}-{dark}.html")
    outer.write_text(
        '<!doctype html><meta name="color-scheme" content="light dark">'
        f"<style>iframe {{ border: 0 }}</style><script>{PROBE}</script>"
        + frame.format(html.escape(page.read_text()))
    )
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
        # time for promises to be fulfilled before the page is read
        "--virtual-time-budget=10000",
        # containers have a small /dev/shm
        "--disable-dev-shm-usage",
        f"--user-data-dir={page.with_name('profile')}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        outer.as_uri(),
    ]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120
    )
    match = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert match, done.stderr
    return json.loads(html.unescape(match[1]))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("browser")
    runs = [
        fake_run(root / model, model=model, hidden_size=n, status=status, end=end)
        for model, n, status, end in (
            ("exprnn", 190, "solved", 1e-4),
            ("scornn", 190, "finished", 1e-3),
            ("lstm", 68, "finished", 2e-2),
            ("urnn", 470, "diverged", 2e-2),
            ("rgd", 128, None, 1e-2),
            ("scurnn", 130, "interrupted", 1e-2),
            ("eurnn", 512, "finished", 1e-2),
        )
    ]
    # Several sizes of one network, as in the paper's table, which differ by dashes
    # instead of colours; several seeds; and options whose label is longer than a
    # figure.
    pixels: dict[str, Any] = {"task": "mnist", "options": {"permute": True}}
    runs += [
        fake_run(root / f"{n}-{seed}", hidden_size=n, seed=seed, **pixels)
        for n, seed in ((170, 1), (360, 1), (512, 1), (512, 2), (512, 3))
    ]
    config = runs[-1] / "config.json"
    options = {"optimizer": "RiemannianRMSprop", "lr": 1.25e-4, "lr_ratio": 0.0625}
    config.write_text(json.dumps(json.loads(config.read_text()) | options))
    return write_report(runs, root / "report")


@pytest.fixture(scope="module")
def monospaced(page: Path) -> Path:
    """The page in a font wider than the one for which the drawings were made.

    A browser that has just started may lay out a page in such a font.
    """
    text = page.read_text()
    assert "system-ui, sans-serif" in text
    copy = page.with_name("monospaced.html")
    copy.write_text(text.replace("system-ui, sans-serif", "monospace"))
    return copy


@pytest.fixture(
    scope="module",
    params=[
        ("page", 1200, False),
        ("page", 1200, True),
        ("page", 360, False),
        ("monospaced", 1200, False),
    ],
)
def seen(request: pytest.FixtureRequest) -> dict:
    """Measurements of the page: light, dark, on a phone, and in a wide font."""
    name, width, dark = request.param
    page = request.getfixturevalue(name)
    return look(page, width=width, dark=dark) | {"asked": width, "dark": dark}


def rgb(text: str) -> list[float]:
    return [float(part) / 255 for part in re.findall(r"[\d.]+", text)[:3]]


def linear(c: float) -> float:
    return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4


def luminance(colour: list[float]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    weights = (0.2126, 0.7152, 0.0722)
    return sum(w * linear(c) for w, c in zip(weights, colour, strict=True))


def contrast(one: str, two: str) -> float:
    low, high = sorted(luminance(rgb(colour)) for colour in (one, two))
    return (high + 0.05) / (low + 0.05)


def test_nothing_sticks_out(seen):
    """The page does not scroll sideways; wide tables scroll in their own frames."""
    assert seen["width"] <= seen["asked"]
    assert all(0 < width <= seen["asked"] for width in seen["figures"])
    assert seen["quirks"] == "CSS1Compat"


def test_figures_stand_side_by_side_where_there_is_room(seen):
    """Figures stand in two columns on a desktop, and in one on a phone."""
    assert len(seen["figures"]) == 10
    columns = {round(left) for left in seen["left"]}
    assert len(columns) == (2 if seen["asked"] > 900 else 1)


def test_text_of_drawings_is_whole(seen):
    """No text of a drawing is cut off, though the browser uses another font."""
    assert min(seen["text"]) >= 8
    assert max(seen["outside"]) <= 1


def test_text_of_drawings_can_be_read(seen):
    """Text of drawings is at least 10 pixels high."""
    assert seen["smallest"] >= 10


def test_colours_can_be_told_from_the_page(seen):
    """Contrast is at least 4.5 for text and 3 for graphics, as WCAG 2 asks.

    This holds for the light and the dark page, which have different colours.
    """
    assert contrast(seen["ink"], seen["page"]) >= 7
    assert contrast(seen["soft"], seen["page"]) >= 4.5
    # seven colours of networks, and the colours of ink and ticks
    assert len(seen["strokes"]) >= 8
    lines = [s for s in seen["strokes"] if s not in ("none", seen["grid"])]
    assert [s for s in lines if contrast(s, seen["page"]) < 3] == []


def test_the_page_follows_light_and_dark(seen):
    assert (luminance(rgb(seen["page"])) < 0.5) == seen["dark"]


def test_the_browser_loads_nothing_else(seen):
    assert seen["loaded"] == 0
