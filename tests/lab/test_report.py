"""A report shows what the folders of runs contain, in whatever state they are."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from isometry.lab import write_report
from isometry.lab._cli import main
from tests.lab.fake_runs import fake_run


class Seen(HTMLParser):
    """Collects tags, attributes and text of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str | None]:
        return [value for key, value in self.attributes if key == name]


def edit(path: Path, **changes: object) -> None:
    """Change values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of runs from two experiments."""
    root = tmp_path_factory.mktemp("reports")
    for model, status in (("exprnn", "solved"), ("lstm", "diverged"), ("rgd", None)):
        fake_run(root / model, model=model, status=status)
    fake_run(root / "pixels", task="mnist", options={"permute": True}, hidden_size=170)
    write_report(
        [root / n for n in ("exprnn", "lstm", "rgd", "pixels")], root / "report"
    )
    return root


@pytest.fixture(scope="module")
def page(folder: Path) -> Seen:
    return Seen(folder / "report" / "report.html")


def test_figures_and_table_lie_beside_the_page(folder):
    """The figures show training loss, orthogonality, angles, and a test metric.

    The test metric is the accuracy for images, and the loss for the copying task.
    """
    usual = ("loss-iterations", "loss-seconds", "orthogonality", "angles")
    expected = {f"copying-1000-{name}" for name in (*usual, "loss-test")}
    expected |= {f"pmnist-{name}" for name in (*usual, "accuracy-test")}
    for suffix in ("svg", "png"):
        assert {p.stem for p in (folder / "report").glob(f"*.{suffix}")} == expected
    png = (folder / "report" / "pmnist-angles.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    tables = (folder / "report" / "results.md").read_text()
    assert "| ExpRNN | 190 |" in " ".join(tables.split())


def test_the_page_loads_nothing(page):
    """The page is complete in one file: links stay inside, and no tag fetches."""
    links = page.values("href") + page.values("src") + page.values("xlink:href")
    assert links
    assert [link for link in links if link is None or link[0] != "#"] == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(page.tags)
    assert page.tags.count("svg") == 10


def test_parts_of_different_figures_have_different_names(page):
    """All ids of a page differ; otherwise one figure would be clipped like another."""
    names = page.values("id")
    assert len(names) == len(set(names))


def test_every_reference_of_a_drawing_is_answered(page):
    """Every reference inside a drawing has a target; a wrong prefix would lose it."""
    names = {f"#{name}" for name in page.values("id")}
    used = set(page.values("xlink:href")) | set(page.values("href"))
    used |= {
        str(value).removeprefix("url(").removesuffix(")")
        for value in page.values("clip-path")
    }
    assert used <= names


def test_commands_and_the_environment_are_shown(page):
    for model in ("exprnn", "lstm", "rgd"):
        command = f"isometry train copying --model {model} --hidden-size 190"
        assert command in page.text
    assert "Fake CPU, 2 threads, torch 2.13.0" in page.text


def test_what_happened_to_a_run_is_shown(page):
    for status in ("solved", "diverged", "unfinished", "finished", "not run"):
        assert status in page.text


def test_the_same_runs_give_the_same_report(folder, tmp_path):
    """A report has no date and no random names, so equal runs give equal bytes."""
    one = write_report([folder / "rgd"], tmp_path / "one").parent
    two = write_report([folder / "rgd"], tmp_path / "two").parent
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes(), path.name


def test_a_cut_off_last_line_is_left_out(tmp_path):
    """If a run is killed while it writes, its last line is left out.

    The line may end in the middle of a character.
    """
    run = fake_run(tmp_path / "run", status=None, steps=9)
    before = write_report([run], tmp_path / "before").read_text()
    with (run / "metrics.jsonl").open("ab") as metrics:
        metrics.write('{"step": 401, "loss": 0.1, "note": "é'.encode()[:-1])
    assert write_report([run], tmp_path / "after").read_text() == before


@pytest.mark.errors
def test_a_damaged_line_inside_is_named(tmp_path):
    """A damaged line inside a file is an error: no kill does that, only an edit."""
    run = fake_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[6] = lines[6][:9]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"metrics\.jsonl` must hold .* in line 7\."):
        write_report([run], tmp_path / "report")


@pytest.mark.parametrize("files", [(), ("metrics.jsonl",)], ids=["nothing", "empty"])
def test_a_run_that_has_just_begun_is_reported(tmp_path, files):
    """A run without any record has no curve, but still a row."""
    run = fake_run(tmp_path / "run", status=None)
    (run / "metrics.jsonl").unlink()
    for name in files:
        (run / name).touch()
    page = Seen(write_report([run], tmp_path / "report"))
    assert "No run has measured anything yet." in page.text
    assert "unfinished" in page.text


@pytest.mark.errors
def test_a_folder_that_is_no_run_is_named(tmp_path):
    """A folder that is not a run is an error, and nothing is written."""
    run = fake_run(tmp_path / "run")
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match=r"other` must be the folder of a run"):
        write_report([run, tmp_path / "other"], tmp_path / "report")
    with pytest.raises(ValueError, match=r"none` must be .* got no such folder"):
        write_report([run, tmp_path / "none"], tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.errors
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "must name a task"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, text, message):
    run = fake_run(tmp_path / "run")
    (run / "config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.json` {message}"):
        write_report([run], tmp_path / "report")


@pytest.mark.errors
def test_no_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"`runs` must name at least one folder"):
        write_report([], tmp_path)


def test_text_of_a_run_is_not_taken_for_markup(tmp_path):
    """A network of the user's own may have any name."""
    run = fake_run(tmp_path / "run", model="<script>", steps=9)
    page = Seen(write_report([run], tmp_path / "report"))
    assert "script" not in page.tags
    assert "<script>" in page.text


def test_the_command_prints_the_page(tmp_path, capsys):
    """By default the report lies beside the runs."""
    run = fake_run(tmp_path / "run", steps=9)
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report' / 'report.html'}\n"


@pytest.mark.errors
def test_the_command_names_a_place_that_is_none(tmp_path, capsys):
    """A report cannot be written to a folder inside a file."""
    run = fake_run(tmp_path / "run", steps=9)
    assert main(["report", str(run), "--out", str(run / "config.json" / "x")]) == 2
    assert "config.json" in capsys.readouterr().err


@pytest.mark.errors
def test_the_command_names_what_is_no_run(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
