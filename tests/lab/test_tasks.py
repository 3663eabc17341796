"""What every task promises, and the two tasks that are drawn at random."""

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isometry.lab import evaluate
from isometry.lab._data import catalogue
from isometry.lab.task import TEST, TRAIN, AbstractTask, Batch, Split, generator
from isometry.lab.tasks import TASKS, AddingTask, CopyingTask, MnistTask, TimitTask
from tests.helpers import shifted_seed
from tests.lab.small_data import dataset, images, speech, sphere, write_files

SPLITS: tuple[Split, ...] = get_args(Split)


@pytest.fixture(params=list(TASKS))
def task(request, tmp_path, monkeypatch) -> AbstractTask:
    """Each task, in a small size."""
    files = images()
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", dataset(files))
    for speaker in range(5):
        recordings = {
            f"u{i}.wav": sphere(speech(0.1 + 0.02 * i, 10 * speaker + i))
            for i in range(3)
        }
        write_files(tmp_path / "speech" / f"s{speaker}", recordings)
    root = str(write_files(tmp_path / "images", files))
    tasks: dict[str, AbstractTask] = {
        "copying": CopyingTask(lag=6, length=3, held_out=10),
        "adding": AddingTask(length=9, held_out=10),
        "mnist": MnistTask(validation=5, root=root),
        "timit": TimitTask(root=str(tmp_path / "speech"), split="speakers"),
    }
    return tasks[request.param]


def size_of(batch: Batch) -> int:
    return batch.x.shape[1]


def sequences(batch: Batch) -> list[bytes]:
    """The inputs of a batch one by one, without padding."""
    steps = [batch.x.shape[0]] * size_of(batch)
    if batch.lengths is not None:
        steps = batch.lengths.tolist()
    return [batch.x[:n, i].numpy().tobytes() for i, n in enumerate(steps)]


def test_registry_has_each_task_by_its_name():
    assert {name: cls.name for name, cls in TASKS.ours.items()} == {n: n for n in TASKS}


def test_commands_start_without_torch():
    """`isometry --help` and `isometry train --help` do not import torch."""
    code = (
        "import isometry.lab.tasks, isometry.lab._data.get, sys;"
        "slow = {'torch', 'numpy', 'scipy', 'matplotlib', 'soundfile'};"
        "sys.exit(', '.join(slow & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_options_survive_a_file(task):
    """Options survive JSON, in which a run records them."""
    assert type(task)(**json.loads(json.dumps(asdict(task)))) == task


# sizes of input and output in the literature, and whether only the last output counts
LITERATURE = {
    "copying": (10, 9, False),
    "adding": (2, 1, True),
    "mnist": (1, 10, True),
    "timit": (129, 129, False),
}


@pytest.mark.parametrize("name", list(TASKS))
def test_sizes_are_those_that_the_networks_were_trained_with(name):
    task = TASKS.find(name)()
    sizes = (task.input_size, task.output_size, task.last_only)
    assert sizes == LITERATURE[name]


def test_shapes_are_those_of_the_sizes(task):
    for batch in (task.batch(0, size=6, seed=1), next(task.evaluation("test", 6))):
        if batch.x.is_floating_point():
            assert batch.x.dtype == torch.float32
            assert batch.x.shape[2:] == (task.input_size,)
        else:
            assert batch.x.dtype == torch.int64
            assert batch.x.ndim == 2
            assert batch.x.max() < task.input_size
        leading = batch.y.shape[: 1 if task.last_only else 2]
        assert leading == batch.x.shape[1 if task.last_only else 0 : 2]
        if batch.y.is_floating_point():
            assert batch.y.shape[-1] == task.output_size
        else:
            assert batch.y.max() < task.output_size


def test_a_step_is_a_function_of_step_and_seed(task):
    """A batch depends only on step and seed, also in another process."""
    again = type(task)(**asdict(task))
    for step in (0, 1, 7):
        first, second = (t.batch(step, size=4, seed=5) for t in (task, again))
        assert_close(first.x, second.x, rtol=0, atol=0)
        assert_close(first.y, second.y, rtol=0, atol=0)


def test_steps_and_seeds_have_batches_of_their_own(task):
    batches = [
        task.batch(step, size=4, seed=seed).x for step in range(3) for seed in (0, 1)
    ]
    for i, x in enumerate(batches):
        assert not any(torch.equal(x, other) for other in batches[:i])


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_ranks_are_the_batch(task, ranks):
    """Processes that share a batch of 7 see together what one process sees."""
    whole = task.batch(0, size=7, seed=3)
    parts = [task.batch(0, size=7, seed=3, rank=r, ranks=ranks) for r in range(ranks)]
    # each part may be padded to a length of its own
    steps = [part.x.shape[0] for part in parts]
    assert max(steps) == whole.x.shape[0]
    sizes = [size_of(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part, columns in zip(parts, whole.x.split(sizes, 1), strict=True):
        assert_close(part.x, columns[: part.x.shape[0]], rtol=0, atol=0)
    targets = whole.y.split(sizes, 0 if task.last_only else 1)
    for part, columns in zip(parts, targets, strict=True):
        assert_close(part.y, columns[: part.y.shape[0]], rtol=0, atol=0)


class PaddedTask(AddingTask):
    """An endless task whose sequences have lengths of their own."""

    def draw(self, rng, size) -> Batch:
        x, y, _ = super().draw(rng, size)
        return Batch(x, y, torch.from_numpy(rng.integers(1, 9, size=size)))


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_endless_task_keeps_its_lengths(ranks):
    """Parts and splits of an endless task have its `lengths`; these used to be None."""
    task = PaddedTask(length=9, held_out=7)
    drawn = task.draw(generator(3, TRAIN, 0), 7).lengths
    held_out = task.draw(generator(0, TEST, 0), 7).lengths
    parts = [task.batch(0, size=7, seed=3, rank=r, ranks=ranks) for r in range(ranks)]
    for batches, lengths in ((parts, drawn), (task.evaluation("test", 3), held_out)):
        pieces = [batch.lengths for batch in batches if batch.lengths is not None]
        assert lengths is not None
        assert torch.cat(pieces).tolist() == lengths.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_of_ranks_add_up_to_that_of_the_batch(task, ranks, rng):
    """Weighted losses of the parts add up to the loss of the batch.

    The weights are the numbers of terms, as recordings differ in length.
    """
    whole = task.batch(0, size=6, seed=3)
    # The output is the same for every column, so that parts agree with the whole.
    bias = torch.randn(task.output_size, generator=rng)
    total = task.weights(whole)["loss"]
    joined = 0.0
    for rank in range(ranks):
        part = task.batch(0, size=6, seed=3, rank=rank, ranks=ranks)
        weight = task.weights(part)["loss"]
        joined += weight / total * task.loss(constant(task, bias)(part.x), part).item()
    expected = task.loss(constant(task, bias)(whole.x), whole).item()
    # float32 sums in another order; 2.4e-7 at most over 100 seeds
    assert joined == pytest.approx(expected, rel=6e-7)


def constant(task: AbstractTask, bias: Tensor) -> Any:
    """A model that always answers the same."""

    def model(x: Tensor) -> Tensor:
        steps = 1 if task.last_only else x.shape[0]
        return bias.expand(steps, x.shape[1], task.output_size)

    return model


@pytest.mark.parametrize("split", SPLITS)
def test_evaluation_does_not_depend_on_the_size_of_batches(task, split, rng):
    model = constant(task, torch.randn(task.output_size, generator=rng))
    first, second = (evaluate(task, model, split, size) for size in (1, 100))
    assert set(first) == {"loss", *task.metrics(*_any_outputs(task, model))}
    # float32 means in another order; 2.7e-7 at most over 100 seeds
    assert first == pytest.approx(second, rel=6e-7)


def _any_outputs(task: AbstractTask, model: Any) -> tuple[Tensor, Batch]:
    batch = task.batch(0, size=2, seed=0)
    return model(batch.x), batch


def test_main_metric_is_measured(task, rng):
    model = constant(task, torch.randn(task.output_size, generator=rng))
    assert task.metric in task.metrics(*_any_outputs(task, model))


def test_splits_are_strangers(task):
    """No held-out sequence is in the other split or in training."""
    seen: set[bytes] = set()
    kinds = [list(task.evaluation(split, 1)) for split in SPLITS]
    kinds.append([task.batch(step, size=1, seed=0) for step in range(9)])
    for batches in kinds:
        members = {x for batch in batches for x in sequences(batch)}
        assert not members & seen
        seen |= members


@pytest.mark.parametrize("task", ["adding", "mnist"], indirect=True)
def test_outputs_of_the_last_step_may_keep_the_axis_of_time(task, rng):
    """Outputs of the last step may have the shape (1, batch, k) of a network."""
    batch = task.batch(0, size=3, seed=0)
    outputs = torch.randn(3, task.output_size, generator=rng)
    assert_close(task.loss(outputs[None], batch), task.loss(outputs, batch))
    assert task.metrics(outputs[None], batch) == task.metrics(outputs, batch)


@pytest.mark.parametrize("task", ["mnist", "timit"], indirect=True)
def test_epochs_visit_every_example_once(task):
    """An epoch visits each of 18 images or 9 recordings once, in a new order.

    The last batch has what is left.
    """
    count = task.epoch(4)
    assert count == {"mnist": 5, "timit": 3}[task.name]
    epochs: list[list[bytes]] = []
    for epoch in range(2):
        batches = [task.batch(epoch * count + i, size=4, seed=1) for i in range(count)]
        assert [size_of(batch) for batch in batches[:-1]] == [4] * (count - 1)
        epochs.append([x for batch in batches for x in sequences(batch)])
        assert len(epochs[-1]) == {"mnist": 18, "timit": 9}[task.name]
        assert len(set(epochs[-1])) == len(epochs[-1])
    assert set(epochs[0]) == set(epochs[1])
    assert epochs[0] != epochs[1]


@pytest.mark.errors
def test_more_ranks_than_sequences_are_refused(task):
    with pytest.raises(ValueError, match="Use fewer processes or a larger batch"):
        task.batch(0, size=2, seed=0, rank=0, ranks=3)


class TestCopying:
    """In the copying task `x` shows a word, and `y` has it after the lag."""

    @pytest.mark.parametrize("answer", ["at-marker", "after-marker"])
    def test_word_lag_marker(self, answer):
        task = CopyingTask(lag=7, length=3, symbols=4, answer=answer)
        x, y, _ = task.batch(0, size=50, seed=shifted_seed(0))
        word, marker = x[:3], 10 if answer == "at-marker" else 9
        assert x.shape == y.shape == (7 + 2 * 3, 50)
        assert set(word.flatten().tolist()) == {1, 2, 3, 4}
        expected = torch.zeros_like(x)
        expected[:3], expected[marker] = word, 5
        assert_close(x, expected)
        expected = torch.zeros_like(y)
        expected[-3:] = word
        assert_close(y, expected)

    @pytest.mark.parametrize(("lag", "expected"), [(1000, 0.020387), (2000, 0.010294)])
    def test_baseline_of_the_paper(self, lag, expected):
        """The baseline is 10 ln 8 / (L + 20)."""
        assert CopyingTask(lag=lag).baseline == pytest.approx(expected, abs=5e-7)

    def test_baseline_is_the_loss_without_memory(self):
        """The baseline is the loss of sure blanks, then uniform guesses of symbols."""
        task = CopyingTask(lag=9)
        batch = task.batch(0, size=4, seed=shifted_seed(0))
        outputs = torch.zeros(task.steps, 4, task.output_size)
        outputs[:-10, :, 0] = 1e4
        outputs[-10:, :, 0] = -1e4
        # ln 8 in float32
        assert task.loss(outputs, batch).item() == pytest.approx(task.baseline, 1e-6)

    def test_accuracy_is_that_of_the_word(self):
        """Accuracy is measured on the word alone, since blanks are easy."""
        task = CopyingTask(lag=9)
        batch = task.batch(0, size=4, seed=shifted_seed(0))
        perfect = torch.nn.functional.one_hot(batch.y, task.output_size).float()
        assert task.metrics(perfect, batch) == {"accuracy": 1.0}
        blank = torch.zeros_like(perfect)
        blank[..., 0] = 1
        assert task.metrics(blank, batch) == {"accuracy": 0.0}

    def test_numbers_are_those_of_every_machine(self):
        """The first words of the paper's seed are the same on every machine.

        With other words, a run could not be compared with earlier ones.
        """
        x = CopyingTask().batch(0, size=128, seed=5544).x
        assert x[:10, 0].tolist() == [6, 2, 1, 1, 7, 4, 3, 7, 4, 7]

    def test_symbols_are_uniform(self):
        """A chi² test with 7 degrees of freedom over 80,000 symbols."""
        words = CopyingTask(lag=1).batch(0, size=8000, seed=shifted_seed(0)).x[:10]
        counts = torch.bincount(words.flatten(), minlength=9)[1:].double()
        chi2 = ((counts - 10000).square() / 10000).sum()
        # probability 1e-6 to exceed
        assert chi2 < 40.6

    @pytest.mark.errors
    @pytest.mark.parametrize("option", ["lag", "length", "symbols", "held_out"])
    def test_sizes_are_positive(self, option):
        with pytest.raises(ValueError, match=f"`{option}` must be at least 1; got 0"):
            replace(CopyingTask(), **{option: 0})


class TestAdding:
    """In the adding task `x` marks a number in each half, and `y` is their sum."""

    @pytest.mark.parametrize("length", [2, 9, 400])
    def test_one_marker_in_each_half(self, length):
        x, y, _ = AddingTask(length=length).batch(0, size=200, seed=shifted_seed(0))
        values, markers = x.unbind(-1)
        half = length // 2
        assert (markers[:half].sum(0) == 1).all()
        assert (markers[half:].sum(0) == 1).all()
        assert set(markers.flatten().tolist()) <= {0.0, 1.0}
        assert values.min() >= 0
        assert values.max() < 1
        assert_close(y[:, 0], (values * markers).sum(0))

    def test_markers_reach_every_step(self):
        x = AddingTask(length=9).batch(0, size=500, seed=shifted_seed(0)).x
        assert (x[..., 1].sum(1) > 0).all()

    def test_baseline_is_the_loss_of_one(self):
        """The baseline is the loss of answering 1: Var(u + v) = 1 / 6."""
        task = AddingTask(length=4)
        batch = task.batch(0, size=100000, seed=shifted_seed(0))
        loss = task.loss(torch.ones_like(batch.y), batch).item()
        # six standard deviations of the mean over 1e5: sqrt(E s⁴ - 1/36) / 316 = 6.2e-4
        assert loss == pytest.approx(task.baseline, abs=6 * 6.2e-4)
        assert math.isclose(task.baseline, 0.167, abs_tol=5e-4)

    @pytest.mark.errors
    def test_two_numbers_need_two_steps(self):
        with pytest.raises(ValueError, match=r"`length` must be at least 2.* got 1"):
            AddingTask(length=1)


def test_no_split_is_no_mean(tmp_path, monkeypatch):
    """Without images for validation, as in the paper, `evaluate` returns no mean."""
    files = images()
    monkeypatch.setitem(catalogue.CATALOGUE, "mnist", dataset(files))
    root = str(write_files(tmp_path, files))
    task = MnistTask(validation=0, root=root)
    assert evaluate(task, lambda x: x, "validation", 4) == {}
    assert task.epoch(4) == 6
