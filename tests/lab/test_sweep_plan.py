"""The plan of a sweep: its product, its names, and what it refuses."""

import pytest

from isometry.lab import RunError
from isometry.lab._cli import main
from isometry.lab._sweep.plan import expand, read_plan, with_known_names, write_plan
from isometry.lab._train.command import read
from tests.lab.small_sweeps import SMALL


def test_a_sweep_is_a_product():
    """A sweep is models x sizes x rates x seeds, the last ones fastest.

    The name of each run says which values it has.
    """
    values = SMALL | {
        "seed": [1, 2],
        "lr": [0.001, 0.1],
        "model": ["exprnn", "lstm"],
        "hidden_size": [6, 8],
    }
    runs = expand("copying", values)
    assert list(runs) == [
        f"copying-{model}-{n}-lr={lr}-seed={seed}"
        for model in ("exprnn", "lstm")
        for n in (6, 8)
        for lr in (0.001, 0.1)
        for seed in (1, 2)
    ]
    for name, config in runs.items():
        training = config.training
        assert name == (
            f"copying-{training.model}-{training.hidden_size}-lr={training.lr}"
            f"-seed={training.seed}"
        )
        assert config.task_options["lag"] == 3


def test_what_is_left_out_is_the_papers():
    """Size and seed default to the paper's, and threads to one on every machine."""
    runs = expand("copying", {"model": ["exprnn", "lstm"], "lag": 100})
    assert list(runs) == ["copying-exprnn-190-seed=5544", "copying-lstm-68-seed=5544"]
    assert {config.training.threads for config in runs.values()} == {1}


def test_options_of_the_network_take_several_values():
    options = {"rebase_every": [1, 100], "retraction": "cayley"}
    runs = expand("copying", {"model_options": options})
    assert [config.training.model_options for config in runs.values()] == [
        {"rebase_every": k, "retraction": "cayley"} for k in (1, 100)
    ]
    assert "rebase_every=100" in list(runs)[1]


def test_options_of_the_network_keep_their_place():
    """Options vary, and are named, in the order in which the user wrote them.

    Those of the network used to come last, so an extended sweep got two spellings.
    """
    values = {
        "lr": [0.1, 0.2],
        "model_options": {"rebase_every": [1, 2], "retraction": "cayley"},
        "batch_size": [4, 8],
    }
    assert list(expand("copying", values)) == [
        f"copying-exprnn-190-lr={lr}-rebase_every={every}-batch_size={size}-seed=5544"
        for lr in (0.1, 0.2)
        for every in (1, 2)
        for size in (4, 8)
    ]


def test_a_cell_is_the_run_of_isometry_train():
    """A run of a sweep has the config of `isometry train` with the same options."""
    (swept,) = expand("copying", SMALL | {"seed": [7]}).values()
    config, _ = read({"task": "copying", "threads": 1, "seed": 7, **SMALL})
    assert (swept.task_options, swept.training) == (
        config.task_options,
        config.training,
    )


def test_the_file_says_the_same_as_the_line(tmp_path, capsys):
    """A file has lists for several values; the command line wins over the file."""
    file = tmp_path / "sweep.toml"
    file.write_text(
        'task = "copying"\nmodels = ["exprnn", "lstm"]\nlag = [3, 5]\nseeds = [1]\n'
    )
    out = ["--out", str(tmp_path / "out"), "--dry-run"]
    assert main(["sweep", "--config", str(file), *out]) == 0
    from_file = capsys.readouterr().out
    line = ["--models", "exprnn", "lstm", "--lag", "3", "5", "--seeds", "1"]
    assert main(["sweep", "copying", *line, *out]) == 0
    from_line = capsys.readouterr().out
    assert sorted(from_file.splitlines()) == sorted(from_line.splitlines())
    assert len(from_file.splitlines()) == 4
    assert main(["sweep", "copying", "--config", str(file), "--lag", "7", *out]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    # a dry run leaves no file
    assert not (tmp_path / "out").exists()


def test_a_plan_is_extended(tmp_path):
    """A run keeps its name when the plan is extended, though more options vary."""
    first = expand("copying", SMALL | {"lr": 0.001})
    write_plan(tmp_path, with_known_names(tmp_path, first))
    more = with_known_names(tmp_path, expand("copying", SMALL | {"lr": [0.001, 0.1]}))
    assert list(more) == [*first, "copying-exprnn-6-lr=0.1-seed=5544"]
    write_plan(tmp_path, more)
    assert read_plan(tmp_path) == more


@pytest.mark.errors
def test_a_run_keeps_its_options(tmp_path):
    write_plan(tmp_path, with_known_names(tmp_path, expand("copying", SMALL)))
    before = (tmp_path / "sweep.json").read_bytes()
    with pytest.raises(RunError, match="must keep its options; got lag 5 instead"):
        with_known_names(tmp_path, expand("copying", SMALL | {"lag": 5}))
    assert (tmp_path / "sweep.json").read_bytes() == before


@pytest.mark.errors
def test_names_of_runs_differ():
    """Names must differ after unsafe characters have been replaced by underscores."""
    with pytest.raises(ValueError, match="must differ in letters and digits"):
        expand("copying", {"model_options": {"retraction": ["a/b", "a b"]}})


@pytest.mark.errors
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    runs = expand("copying", SMALL)
    (tmp_path / next(iter(runs))).mkdir()
    with pytest.raises(RunError, match=r"exists, but is not in .*sweep\.json"):
        with_known_names(tmp_path, runs)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["copying"], "`--out` must name the folder of the sweep; got none"),
        (["copying", "--models", "exprnn", "rnn"], "`--model` must be one of exprnn"),
        (["copying", "--lag", "3", "0"], "`--lag` must be at least 1; got 0"),
        (
            ["--config", "{file}"],
            "got lagg. Did you mean lag? `isometry train copying --help`",
        ),
        (["--config", "{empty}"], "`seed` must have at least one value"),
        ([], "`task` must be one of copying"),
        (["copying", "--jobs", "0"], "`--jobs` must be at least 1; got 0"),
        (["copying", "--address", "x:1"], "Leave it out, or add `--engine ray`."),
        (["copying", "--out", "{file}"], "File exists"),
        (["--resume", "{out}"], "must be the folder of a sweep; it has no sweep.json"),
        (
            ["--resume", "{out}", "copying", "--lag", "3"],
            "`--resume` cannot be combined with options of the runs; got copying, --l",
        ),
        # `--out` used to be ignored
        (
            ["--resume", "{out}", "--out", "{file}"],
            "with options of the runs; got --out. To add runs, give `--out {out}`",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told_before_anything_runs(line, message, tmp_path, capsys):
    """A mistake is reported before anything runs: exit code 2, and no folder."""
    file, empty, out = (tmp_path / name for name in ("a.toml", "b.toml", "out"))
    file.write_text('task = "copying"\nlagg = 3\n')
    empty.write_text('task = "copying"\nseeds = []\n')
    line = [word.format(file=file, empty=empty, out=out) for word in line]
    if line != ["copying"] and not {"--resume", "--out"} & set(line):
        line += ["--out", str(out)]
    assert main(["sweep", *line]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("isometry sweep: ")
    assert message.format(out=out) in output.err
    assert not out.exists()


@pytest.mark.errors
@pytest.mark.parametrize("text", ["{", "[]", '{"runs": {"a": {}}}'])
def test_a_damaged_plan_is_told(text, tmp_path):
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(RunError, match="must be the plan of a sweep; got"):
        read_plan(tmp_path)
