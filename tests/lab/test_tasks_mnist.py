"""Images pixel by pixel."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from isometry.lab import Batch, evaluate
from isometry.lab._data import catalogue
from isometry.lab.tasks import MnistTask
from isometry.lab.tasks.mnist import load_images, permutation
from tests.lab.small_data import dataset, images, write_files

REAL = os.environ.get("ISOMETRY_TEST_DATA")


@pytest.fixture
def root(tmp_path, monkeypatch) -> str:
    """23 training images and 7 test images."""
    files = images()
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(catalogue.CATALOGUE, name, dataset(files))
    return str(write_files(tmp_path / "images", files))


def test_pixels_come_row_by_row(root):
    """x[28 i + j] is pixel (i, j) over 255, and nothing else is done to it."""
    content = images()["t10k-images-idx3-ubyte"]
    batch = next(MnistTask(root=root).evaluation("test", 7))
    assert batch.x.shape == (784, 7, 1)
    for number, i, j in ((0, 0, 0), (3, 5, 27), (6, 27, 27)):
        byte = content[16 + 784 * number + 28 * i + j]
        # the nearest float32 to byte / 255
        assert batch.x[28 * i + j, number, 0].item() == pytest.approx(byte / 255, 6e-8)


def test_labels_are_those_of_the_file(root):
    content = images()["t10k-labels-idx1-ubyte"]
    batch = next(MnistTask(root=root).evaluation("test", 7))
    assert batch.y.tolist() == list(content[8:])


@pytest.mark.parametrize("validation", [0, 1, 5])
def test_the_first_images_are_for_validation(root, validation):
    """The first images are for validation; the others train, each with its label."""
    labels = list(images()["train-labels-idx1-ubyte"][8:])
    task = MnistTask(root=root, validation=validation)
    held = [y for b in task.evaluation("validation", 2) for y in b.y.tolist()]
    assert held == labels[:validation]
    count = task.epoch(100)
    assert count == 1
    assert sorted(task.batch(0, size=100, seed=1).y.tolist()) == sorted(
        labels[validation:]
    )


def test_images_keep_their_labels(root):
    """Shuffling moves images and labels together."""
    content = images()
    pairs = {
        content["train-images-idx3-ubyte"][16 + 784 * i : 16 + 784 * (i + 1)]: label
        for i, label in enumerate(content["train-labels-idx1-ubyte"][8:])
    }
    batch = MnistTask(root=root, validation=0).batch(1, size=9, seed=2)
    pixels = (batch.x[..., 0].T * 255).round().to(torch.uint8)
    for image, label in zip(pixels, batch.y.tolist(), strict=True):
        assert pairs[image.numpy().tobytes()] == label


def test_permutation_is_that_of_the_literature():
    """The permutation is RandomState(92916).permutation(784), as in the literature."""
    order = permutation()
    assert order[:6].tolist() == [319, 576, 323, 107, 355, 716]
    assert sorted(order.tolist()) == list(range(784))


def test_permuted_pixels_are_the_same_in_another_order(root):
    """x'[t] = x[perm[t]], in training and in both splits."""
    three: list[list[Batch]] = []
    for permute in (False, True):
        task = MnistTask(root=root, validation=5, permute=permute)
        held = [next(task.evaluation(split, 4)) for split in ("validation", "test")]
        three.append([task.batch(0, size=4, seed=1), *held])
    for plain, permuted in zip(*three, strict=True):
        assert_close(permuted.x, plain.x[permutation()], rtol=0, atol=0)
        assert_close(permuted.y, plain.y)


def test_permuted_pixels_have_a_recipe_of_their_own():
    assert MnistTask().settings_of == "mnist"
    assert MnistTask(permute=True).settings_of == "pmnist"


def test_fashion_is_read_in_the_same_way(root):
    first, second = (
        MnistTask(root=root, validation=5, dataset=name).batch(0, size=4, seed=1)
        for name in ("mnist", "fashion-mnist")
    )
    assert_close(first.x, second.x)


def test_each_file_is_read_once(root, monkeypatch):
    """Each file is read and verified once, where it used to be twice."""
    names: list[str] = []
    original = catalogue.verified

    def noted(file: catalogue.File, *rest: Any) -> bytes:
        names.append(file.name)
        return original(file, *rest)

    monkeypatch.setattr(catalogue, "verified", noted)
    next(MnistTask(root=root).evaluation("test", 1))
    assert sorted(names) == sorted(images())


@pytest.mark.errors
def test_a_folder_that_is_not_there_is_named_as_the_argument(root):
    """The error named `root`, but the argument was called `folder`."""
    with pytest.raises(ValueError, match=r"`root` must be a folder; got .*missing"):
        load_images("mnist", root=f"{root}/missing")


def test_baseline_is_the_loss_of_no_opinion(root):
    task = MnistTask(root=root)
    batch = next(task.evaluation("test", 7))
    loss = task.loss(torch.zeros(7, 10), batch).item()
    # ln 10 is rounded to float32; the measured error is 1.2e-7
    assert loss == pytest.approx(task.baseline, rel=2e-7)
    assert task.baseline == math.log(10)


def test_accuracy_counts_what_is_named_rightly(root):
    task = MnistTask(root=root)
    batch = next(task.evaluation("test", 7))
    outputs = torch.nn.functional.one_hot(batch.y, 10).float()
    outputs[0] = outputs[0].roll(1)
    assert task.metrics(outputs, batch)["accuracy"] == pytest.approx(6 / 7)


@pytest.mark.errors
@pytest.mark.parametrize("validation", [-1, 60000])
def test_validation_leaves_images_to_train_on(validation):
    with pytest.raises(ValueError, match=rf"`validation` must be .* got {validation}"):
        MnistTask(validation=validation)


@pytest.mark.skipif(REAL is None, reason="ISOMETRY_TEST_DATA names no folder of data")
def test_real_images():
    """The mean pixel is .1307, as is well known; 5421 training images are fives."""
    root = str(Path(str(REAL)) / "mnist")
    task = MnistTask(root=root, validation=0)
    batch = task.batch(0, size=60000, seed=1)
    assert batch.x.mean().item() == pytest.approx(0.1307, abs=5e-5)
    assert (batch.y == 5).sum() == 5421
    # the most frequent class of the test images is 1, 1135 times
    ones = torch.nn.functional.one_hot(torch.tensor(1), 10).float()
    metrics = evaluate(task, lambda x: ones.expand(x.shape[1], 10), "test", 999)
    assert metrics["accuracy"] == pytest.approx(0.1135)
