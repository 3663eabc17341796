"""Options of a network on the command line: what they accept and refuse."""

import pytest
import torch
from torch import Tensor, nn

from isometry.lab import _cli, register, resume, train
from isometry.lab._options import spell
from isometry.lab._pairs import pair
from isometry.lab._train.config import read_config
from isometry.lab._train.experiment import build
from isometry.nn import ExpRNN
from tests.lab.small_runs import small

TRAIN = ["train", "copying", "--lag", "5", "--length", "2", "--iterations", "1"]


def options(*pairs: str) -> list[str]:
    return [word for text in pairs for word in ("--model-options", text)]


@pytest.mark.errors
@pytest.mark.parametrize("model", ["exprnn", "lstm", "gru", "urnn"])
@pytest.mark.parametrize(
    "name", ["batch_first", "bidirectional", "proj_size", "last_only", "dtype"]
)
def test_the_layout_of_a_sequence_is_not_an_option(model, name, tmp_path, capsys):
    """Options that change the axes or sizes of outputs are refused.

    With batch_first=true, networks were trained over the wrong axis, silently.
    """
    words = [*TRAIN, "--model", model, *options(f"{name}=1")]
    assert _cli.main([*words, "--out", str(tmp_path / "run")]) == 2
    assert f"another option decides; got {name}." in capsys.readouterr().err


@pytest.mark.errors
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "urnn", *options("bias_bound=-1")], "options of urnn; got bias_b"),
        (["--model", "rgd", "--retraction", "foo"], "Change its options, or"),
        # the error used to spell them `hidden_size` and `device`, as in Python
        (options("hidden_size=3"), "`--hidden-size` and `--device` are options of th"),
    ],
    ids=str,
)
def test_a_bad_value_is_told_in_a_line(words, message, tmp_path, capsys):
    assert _cli.main([*TRAIN, *words, "--out", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.errors
def test_an_option_has_one_value(capsys):
    """Two values of one option are refused; the first one used to be ignored."""
    with pytest.raises(SystemExit, match="2"):
        _cli.main([*TRAIN, *options("chunk=2", "chunk=3")])
    assert "chunk must have one value; got 2 and 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", True), ("true", True), ("False", False), ("None", None), ("3", 3)],
)
def test_constants_of_python_are_understood(text, value):
    """`True`, `False` and `None` are read as constants; they used to be strings."""
    assert pair(f"x={text}") == ("x", value)


class Moody(nn.RNN):
    """A network with an option `mode`, which is no option of `nn.RNN`."""

    def __init__(self, input_size: int, hidden_size: int, mode: str = "fast") -> None:
        super().__init__(input_size, hidden_size)
        self.mood = mode


def test_all_options_of_ones_own_network_are_recorded():
    """Every option of a user's network is recorded; `mode` used to be left out."""
    register(Moody, name="moody")
    recipe = build(small(model="moody"), torch.device("cpu")).config.recipe
    assert recipe["options"] == {"mode": "fast"}


class Nested(nn.Module):
    """A network with its own output layer, whose recurrent part is called `network`."""

    def __init__(self, input_size: int, hidden_size: int, output_size: int) -> None:
        super().__init__()
        self.network = ExpRNN(input_size, hidden_size)
        self.head = nn.Linear(hidden_size, output_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.network(x)[0])


def test_a_network_of_ones_own_may_have_a_network_inside(tmp_path):
    """The options of the inner network were recorded as options of the outer one.

    A resumed run then failed: "unexpected keyword argument 'num_layers'".
    """
    register(Nested, name="nested")
    train(small(model="nested", iterations=2), tmp_path / "run")
    assert read_config(tmp_path / "run").recipe["options"] == {}
    assert resume(tmp_path / "run", iterations=4).summary["status"] == "finished"


@pytest.mark.errors
def test_all_options_of_ones_own_network_are_suggested():
    """A mistyped `mode` is recognized; the error used to say "It has no options"."""
    register(Moody, name="moody")
    with pytest.raises(
        ValueError, match=r"got moode\. Did you mean mode\? It has mode"
    ):
        build(small(model="moody", model_options={"moode": "x"}), torch.device("cpu"))


def test_a_string_that_looks_like_a_constant_survives():
    """A command spells strings so that they are read back as strings."""
    _, word = spell("model_options", {"x": "True"})
    assert pair(word) == ("x", "True")
