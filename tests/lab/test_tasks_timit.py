"""The task of speech prediction."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from isometry.lab import evaluate
from isometry.lab._data import speech as speakers
from isometry.lab._data.speech import log_power, read_recording
from isometry.lab.paper.networks import recipe_for
from isometry.lab.task import Split
from isometry.lab.tasks import TimitTask
from tests.lab.small_data import riff, speech, sphere, write_files

SPLITS: tuple[Split, ...] = ("validation", "test")
REAL = os.environ.get("ISOMETRY_TEST_DATA")


@pytest.fixture
def root(tmp_path) -> str:
    """Recordings of five speakers, with different lengths."""
    for speaker in range(5):
        write = sphere if speaker % 2 else riff
        files = {
            f"u{i}.wav": write(speech(0.1 + 0.05 * speaker + 0.1 * i, 10 * speaker + i))
            for i in range(3)
        }
        write_files(tmp_path / f"s{speaker}", files)
    return str(tmp_path)


def byspeakers(root: str, **options: str) -> TimitTask:
    return TimitTask(root=root, split="speakers", **options)  # pyright: ignore[reportArgumentType]


def test_next_frame_is_wanted(root):
    """x_t = f_t and y_t = f_(t+1); after the last frame, silence."""
    task = byspeakers(root, target="next")
    batch = next(task.evaluation("validation", 1))
    path = task._splits.core[0]
    frames = log_power(read_recording(Path(root) / path))
    F = len(frames)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [F]
    assert_close(batch.x[:F, 0], frames, rtol=0, atol=0)
    assert_close(batch.y[: F - 1, 0], frames[1:], rtol=0, atol=0)
    assert (batch.x[F:] == -50).all()
    assert (batch.y[F - 1 :] == -50).all()


def test_paper_wants_the_frame_before(root):
    """The paper's target is the frame before: "next" with x and y exchanged.

    This is a copy with a delay of one step.
    """
    for ahead, paper in zip(
        byspeakers(root, target="next").evaluation("test", 2),
        byspeakers(root, target="previous").evaluation("test", 2),
        strict=True,
    ):
        assert_close(paper.x, ahead.y, rtol=0, atol=0)
        assert_close(paper.y, ahead.x, rtol=0, atol=0)
        # the target is the input of one step before
        assert_close(paper.y[1:], paper.x[:-1], rtol=0, atol=0)


def test_paper_is_the_default():
    task = TimitTask()
    assert (task.target, task.validation, task.split) == ("previous", "core", "timit")


def test_core_and_development_change_places(root):
    first, second = (
        byspeakers(root, validation=name) for name in ("core", "development")
    )
    core, development = (next(first.evaluation(s, 9)).x for s in SPLITS)
    assert_close(next(second.evaluation("test", 9)).x, core)
    assert_close(next(second.evaluation("validation", 9)).x, development)
    assert not torch.equal(core, development)


def test_both_errors_by_their_definitions(root, rng):
    """Both errors by their definitions, frame by frame.

    `mse` is the mean over valid frames, `padded_mse` the mean over all frames after
    padding to the longest recording.
    """
    task = byspeakers(root)
    batch = next(task.evaluation("test", 3))
    outputs = torch.randn(batch.y.shape, generator=rng)
    assert batch.lengths is not None
    total, frames = 0.0, 0
    for i, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            total += (outputs[t, i] - batch.y[t, i]).double().square().sum().item()
            frames += 1
    metrics = task.metrics(outputs, batch)
    # float32 sums; 1.3e-7 at most over 100 seeds
    assert metrics["mse"] == pytest.approx(total / frames / 129, rel=3e-7)
    expected = total / (3 * task._longest) / 129
    assert metrics["padded_mse"] == pytest.approx(expected, rel=3e-7)
    assert task.loss(outputs, batch).item() == pytest.approx(metrics["mse"], rel=3e-7)


def test_padded_error_is_the_masked_one_times_the_mean_length(root):
    """Over a split, padded = masked x mean(length) / longest, whatever the batches."""
    task = byspeakers(root)
    lengths = [
        n
        for batch in task.evaluation("test", 2)
        if batch.lengths is not None
        for n in batch.lengths.tolist()
    ]
    metrics = evaluate(task, torch.zeros_like, "test", 2)
    factor = sum(lengths) / len(lengths) / task._longest
    # the same sums, joined in float64
    assert metrics["padded_mse"] == pytest.approx(metrics["mse"] * factor, rel=1e-14)


def test_parts_of_a_batch_are_padded_alike(root):
    """Parts of a batch have equal padding.

    Otherwise the padded error would depend on the number of processes.
    """
    task = byspeakers(root)
    parts = [task.batch(0, size=4, seed=1, rank=r, ranks=2) for r in range(2)]
    lengths = [part.lengths.max() for part in parts if part.lengths is not None]
    assert lengths[0] != lengths[1]
    whole = task.batch(0, size=4, seed=1)
    assert_close(torch.cat([p.x for p in parts], 1), whole.x, rtol=0, atol=0)
    assert_close(torch.cat([p.y for p in parts], 1), whole.y, rtol=0, atol=0)


def test_padding_is_not_learned(root, rng):
    """A network's outputs after the end change neither loss nor gradient."""
    task = byspeakers(root)
    batch = task.batch(0, size=3, seed=1)
    assert batch.lengths is not None
    outputs = torch.randn(batch.y.shape, generator=rng).requires_grad_()
    task.loss(outputs, batch).backward()
    assert outputs.grad is not None
    for i, length in enumerate(batch.lengths.tolist()):
        assert (outputs.grad[length:, i] == 0).all()
        assert (outputs.grad[:length, i] != 0).all()


@pytest.mark.parametrize("name", ["exprnn", "rgd", "explstm", "lstm"])
@pytest.mark.parametrize("target", ["previous", "next"])
def test_padding_is_as_if_it_were_not_there(name, target, root, rng):
    """Loss and gradient are those of packed sequences, which end with the recording.

    Padded batches are used for training, since they are twice as fast.
    """
    task = byspeakers(root, target=target)
    batch = task.batch(0, size=4, seed=1)
    assert batch.lengths is not None
    assert batch.lengths.min() < batch.lengths.max()
    model = recipe_for(name, task, 6).make_model(generator=rng)
    padded, G = gradient(task.loss(model(batch.x), batch), model)
    packed = pack_padded_sequence(batch.x, batch.lengths, enforce_sorted=False)
    outputs, _ = pad_packed_sequence(model(packed), total_length=len(batch.x))
    expected, expected_G = gradient(task.loss(outputs, batch), model)
    # twice the worst over 20 seeds, 1.4e-7 and 3.5e-7
    assert padded == pytest.approx(expected, rel=2.8e-7)
    assert (G - expected_G).norm() <= 7e-7 * expected_G.norm()


def gradient(loss: torch.Tensor, model: nn.Module) -> tuple[float, torch.Tensor]:
    """The loss, and its derivatives with respect to all parameters."""
    trained = [p for p in model.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss, trained)
    real = [torch.view_as_real(g) if g.is_complex() else g for g in parts]
    return loss.item(), torch.cat([g.flatten() for g in real])


def test_held_out_recordings_are_padded_to_the_longest_of_both_splits(root):
    task = byspeakers(root)
    steps = {
        batch.x.shape[0] for split in SPLITS for batch in task.evaluation(split, 1)
    }
    assert steps == {task._longest}


def test_a_task_that_was_used_can_be_pickled(root):
    """The spectra that a task remembers used to be in a function without a name."""
    task = byspeakers(root)
    batch = task.batch(0, size=2, seed=1)
    copy = pickle.loads(pickle.dumps(task))
    assert_close(copy.batch(0, size=2, seed=1).x, batch.x, rtol=0, atol=0)


def test_corpus_in_its_own_layout(tmp_path, monkeypatch):
    """In the corpus's own layout, TRAIN and TEST in upper case give the splits."""
    monkeypatch.setattr(speakers, "COUNTS", {"train": 3, "development": 2, "core": 1})
    for i, name in enumerate(
        (
            "TRAIN/DR1/FCJF0/SA1.WAV",
            "TRAIN/DR1/FCJF0/SI648.WAV",
            "TRAIN/DR1/FCJF0/SX37.WAV",
            "TRAIN/DR2/MARC0/SX18.WAV",
            "TRAIN/DR5/FSAG0/SX153.WAV",
            "TEST/DR1/FAKS0/SA2.WAV",
            "TEST/DR1/FAKS0/SI943.WAV",
            "TEST/DR1/FAKS0/SX43.WAV",
            "TEST/DR1/MDAB0/SX49.WAV",
            "TEST/DR3/MMAB0/SX12.WAV",
        )
    ):
        path = tmp_path / name
        write_files(path.parent, {path.name: sphere(speech(0.1 * (i + 1), i))})
    task = TimitTask(root=str(tmp_path))
    assert task.epoch(1) == 3
    sizes = [
        sum(batch.x.shape[1] for batch in task.evaluation(split, 9)) for split in SPLITS
    ]
    assert sizes == [1, 2]
    # padded to the longest of the TEST folder, 1 s, which is in no split here
    assert next(task.evaluation("test", 2)).x.shape[0] == -(-8000 // 128) + 3


@pytest.mark.errors
@pytest.mark.parametrize("root", [None, "missing"])
def test_without_a_corpus_the_message_says_where_to_get_it(root):
    with pytest.raises(ValueError, match=rf"`root` must be .* got {root}\. .*LDC93S1"):
        TimitTask(root=root).batch(0, size=1, seed=0)


@pytest.mark.errors
def test_another_folder_needs_another_split(root):
    with pytest.raises(ValueError, match=r"must hold TIMIT.*--split speakers"):
        TimitTask(root=root).epoch(4)


@pytest.mark.skipif(REAL is None, reason="ISOMETRY_TEST_DATA names no folder of data")
def test_sample_of_the_corpus():
    """The sample has 16 speakers with 8 sentences, and losses like published ones."""
    task = byspeakers(str(Path(str(REAL)) / "timit-sample"))
    assert task.epoch(1) == 12 * 8
    batch = task.batch(0, size=96, seed=1)
    # first losses of published runs are 1,500 to 1,800 dB²
    assert 1500 < task.loss(torch.zeros_like(batch.y), batch).item() < 1800
    # repeating the input is one step off: much better, but far from zero
    assert 30 < evaluate(task, lambda x: x, "test", 8)["mse"] < 60
