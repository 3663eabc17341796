"""Recordings, their spectra and their splits."""

import math
from pathlib import PurePath

import numpy as np
import pytest
import soundfile
import torch
from scipy.signal import get_window
from torch.testing import assert_close

from isometry.lab._data.speech import (
    CORE,
    DEVELOPMENT,
    SAMPLE_RATE,
    frame_count,
    log_power,
    read_recording,
    recording_frames,
    recordings,
    speaker_splits,
    timit_splits,
)
from tests.lab.small_data import riff, speech, sphere

FORMATS = {"sphere": sphere, "riff": riff}


def tone(frequency: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


@pytest.mark.parametrize("form", FORMATS)
def test_samples_at_8_khz_come_as_they_are(form, tmp_path):
    """At 8 kHz nothing is resampled: samples are the 16-bit numbers over 32768."""
    samples = speech(0.1, 0, SAMPLE_RATE)
    path = tmp_path / "a.wav"
    path.write_bytes(FORMATS[form](samples, SAMPLE_RATE))
    expected = np.round(samples * 32767) / 32768
    np.testing.assert_array_equal(read_recording(path), expected)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("rate", [16000, 44100, 11025])
def test_resampling_keeps_a_tone(form, rate, tmp_path):
    """A tone of 1 kHz stays a tone of 1 kHz after resampling, away from the ends."""
    path = tmp_path / "a.wav"
    path.write_bytes(FORMATS[form](tone(1000, rate), rate))
    got = read_recording(path)
    assert len(got) == math.ceil(int(0.5 * rate) * SAMPLE_RATE / rate)
    inner = slice(100, len(got) - 100)
    # ripple of the filter: 4.4e-4 at most, measured at 11025 Hz
    np.testing.assert_allclose(
        got[inner], tone(1000, SAMPLE_RATE)[inner], rtol=0, atol=9e-4
    )


def test_resampling_removes_what_would_fold(tmp_path):
    """6 kHz is removed; taking every other sample would fold it to 2 kHz."""
    path = tmp_path / "a.wav"
    path.write_bytes(riff(tone(6000, 16000)))
    # twice what was measured, 2.7e-4
    assert np.abs(read_recording(path)[100:-100]).max() < 6e-4


def test_first_channel_of_many(tmp_path):
    left, right = tone(500, SAMPLE_RATE), tone(700, SAMPLE_RATE)
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack((left, right), 1), SAMPLE_RATE, subtype="DOUBLE")
    np.testing.assert_array_equal(read_recording(path), left)


@pytest.mark.errors
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("change", [-2000, -2, 2, 2000])
def test_recording_of_another_length_is_refused(form, change, tmp_path):
    """A recording shorter or longer than its header says is refused.

    libsndfile reads half a recording without an error.
    """
    content = FORMATS[form](speech(0.2, 0))
    content = content[:change] if change < 0 else content + bytes(change)
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"must be a whole recording.*header says"):
        read_recording(path)


@pytest.mark.errors
@pytest.mark.parametrize("content", [b"", b"NIST_1A\n", b"RIFF", b"x" * 2000])
def test_what_is_no_recording_is_refused(content, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    for read in (read_recording, recording_frames):
        with pytest.raises(ValueError, match=r"a\.wav` must be a whole recording"):
            read(path)


@pytest.mark.errors
@pytest.mark.parametrize("form", FORMATS)
def test_empty_recording_is_refused(form, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(FORMATS[form](np.zeros(0)))
    with pytest.raises(ValueError, match=r"a\.wav` must be a whole recording"):
        read_recording(path)


def test_recordings_are_found_in_either_case(tmp_path):
    names = ["TRAIN/DR1/A/SX1.WAV", "b/c.wav", "d.wav"]
    for name in [*names, "b/c.phn", "b/c.wav.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(path.as_posix() for path in recordings(tmp_path)) == names


def naive_log_power(samples: np.ndarray) -> np.ndarray:
    """Log power frame by frame, by the sum that defines the transform."""
    fill = (128 - len(samples) % 128) % 128
    padded = np.concatenate((np.zeros(256), samples, np.zeros(fill + 256)))
    window = get_window("hann", 256, fftbins=True)
    DFT = np.exp(-2j * np.pi * np.outer(np.arange(129), np.arange(256)) / 256)
    starts = range(0, len(padded) - 255, 128)
    X = np.stack([DFT @ (window * padded[i : i + 256]) for i in starts])
    return 10 * np.log10(1e-5 + np.abs(X) ** 2)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 1000, 4096])
def test_spectra_are_the_definition(length):
    samples = speech(1, 3, SAMPLE_RATE)[:length]
    got = log_power(samples)
    assert got.shape == (frame_count(length), 129)
    # float32 of numbers up to 50: 1.9e-6 at most over 50 seeds
    np.testing.assert_allclose(got, naive_log_power(samples), rtol=0, atol=4e-6)


def test_spectrum_of_a_tone():
    """a sin(2 pi k t / 256) has |X| = 64 a in bin k, and half of it in the next."""
    a, k = 0.5, 20
    samples = a * np.sin(2 * np.pi * k * np.arange(4096) / 256)
    middle = log_power(samples)[10]
    expected = 20 * math.log10(64 * a)
    # the measured error is 8.3e-7
    assert middle[k].item() == pytest.approx(expected, abs=2e-6)
    assert middle[k + 1].item() == pytest.approx(
        expected - 20 * math.log10(2), abs=2e-6
    )


def test_silence_is_the_floor():
    """Silence is at the floor, -50 dB; so are the ends of every recording."""
    assert_close(log_power(np.zeros(500)), torch.full((7, 129), -50.0))
    loud = log_power(speech(0.3, 1, SAMPLE_RATE))
    assert_close(loud[[0, -1]], torch.full((2, 129), -50.0))
    assert (loud[1:-1] > -50).any(1).all()


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_frames_are_known_from_the_header(rate, tmp_path):
    path = tmp_path / "a.wav"
    for samples in (1, 255, 256, 257, 5000):
        path.write_bytes(sphere(speech(1, 0, rate)[:samples], rate))
        assert recording_frames(path) == len(log_power(read_recording(path)))


def corpus(*, upper: bool) -> list[PurePath]:
    """Names of all recordings in a corpus of the size of TIMIT."""
    train = [f"m{i:03}" for i in range(455)] + [f"fsa{i}" for i in range(7)]
    test = [*CORE.split(), *DEVELOPMENT.split(), *(f"f{i:03}" for i in range(94))]
    sentences = [
        *(f"sa{i}" for i in (1, 2)),
        *(f"si{i}" for i in range(3)),
        *(f"sx{i}" for i in range(5)),
    ]
    names = [
        f"{part}/dr1/{speaker}/{sentence}.wav"
        for part, speakers in (("train", train), ("test", test))
        for speaker in speakers
        for sentence in sentences
    ]
    return [PurePath(name.upper() if upper else name) for name in reversed(names)]


@pytest.mark.parametrize("upper", [False, True])
def test_splits_of_timit_have_the_sizes_of_the_paper(upper):
    """Splits have 3640, 192 and 400 recordings.

    The fourth list has all 1680 test recordings; held-out batches are padded to the
    longest of them.
    """
    paths = corpus(upper=upper)
    assert len(paths) == 6300
    splits = timit_splits(paths)
    assert [len(paths) for paths in splits] == [3640, 192, 400, 1680]
    for paths in splits[:3]:
        assert not any(path.stem.lower() in ("sa1", "sa2") for path in paths)
    # the paper's rule also drops speakers whose names contain "sa"
    assert not any("fsa" in path.as_posix().lower() for path in splits.train)


def test_splits_do_not_depend_on_the_order_of_the_disk():
    paths = corpus(upper=True)
    assert timit_splits(paths) == timit_splits(paths[::-1])
    assert speaker_splits(paths) == speaker_splits(paths[::-1])


def test_speakers_of_timit_are_those_of_its_document():
    """TIMIT's document names 24 speakers for the core test, and 50 for development.

    In the core test set there is one woman for every two men.
    """
    core, development = set(CORE.split()), set(DEVELOPMENT.split())
    assert (len(core), len(development)) == (24, 50)
    assert sum(name.startswith("m") for name in core) == 16
    assert not core & development


@pytest.mark.errors
def test_part_of_timit_is_refused():
    with pytest.raises(ValueError, match=r"3640 train.*got 3639 train.*--split"):
        timit_splits(
            [p for p in corpus(upper=True) if p.stem != "SX0" or "M000" not in p.parts]
        )


def test_speakers_are_not_divided():
    """Each split has whole speakers: of 16, two for validation and two for test.

    The sentences sa1 and sa2 are left out of all three splits.
    """
    paths = [
        PurePath(f"s{speaker}/{name}.wav")
        for speaker in range(16)
        for name in ("sa1", "sa2", "si3", "sx4", "sample")
    ]
    splits = speaker_splits(paths)
    speakers = [{path.parent for path in chosen} for chosen in splits[:3]]
    assert [len(group) for group in speakers] == [12, 2, 2]
    assert len(set.union(*speakers)) == 16
    assert [len(chosen) for chosen in splits] == [36, 6, 6, 12]


def test_files_are_speakers_where_there_is_one_folder():
    splits = speaker_splits([PurePath(f"{i}.wav") for i in range(9)])
    assert [len(chosen) for chosen in splits] == [5, 2, 2, 4]


@pytest.mark.errors
def test_three_recordings_at_least():
    with pytest.raises(ValueError, match=r"at least 3 recordings .* got 2"):
        speaker_splits([PurePath("a.wav"), PurePath("b.wav")])
