"""The program behind `make demo`."""

from types import SimpleNamespace

from tools import demo


def test_an_interrupted_demo_says_so(tmp_path, capsys, monkeypatch):
    """Ctrl-C before the last evaluation prints one line, where it raised a KeyError."""
    summary = {"status": "interrupted", "steps": 7, "final": {}}
    monkeypatch.setattr(
        "isometry.lab.train", lambda *_: SimpleNamespace(summary=summary)
    )
    assert demo.main(tmp_path / "demo") == 1
    assert capsys.readouterr().err == "exprnn: interrupted. Run the demo again.\n"
