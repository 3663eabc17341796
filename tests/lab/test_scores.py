"""How predicted speech sounds: SegSNR, STOI and PESQ."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch

from isometry.lab import Config, RunError, Training, resume, train
from isometry.lab._data.speech import log_power, spectra, waveform
from isometry.lab.tasks import TimitTask, scores
from isometry.lab.tasks.scores import judge, pesq, segmental_snr, stoi
from tests.lab.small_data import riff, speech, write_files

# pesq is compiled when it is installed, which not every machine can do
needs_pesq = pytest.mark.skipif(
    importlib.util.find_spec("pesq") is None,
    reason="pesq is not installed; `pip install pesq` needs a C compiler",
)
SCORES = [segmental_snr, stoi, pytest.param(pesq, marks=needs_pesq)]


@pytest.fixture(scope="module")
def voice() -> np.ndarray:
    """A second of noise like speech, at 8 kHz."""
    return speech(1.0, 3, 8000)


@pytest.fixture
def root(tmp_path) -> str:
    """Recordings of three speakers, with different lengths."""
    for speaker in range(3):
        files = {"u.wav": riff(speech(0.6 + 0.1 * speaker, speaker))}
        write_files(tmp_path / "speech" / f"s{speaker}", files)
    return str(tmp_path / "speech")


@pytest.fixture
def without_pesq(monkeypatch) -> None:
    """Only the scores that can be computed on every machine."""
    measures = {name: m for name, m in scores.MEASURES.items() if name != "pesq"}
    monkeypatch.setattr(scores, "MEASURES", measures)
    monkeypatch.setattr(scores, "SCORE_PACKAGES", ("pystoi",))


@pytest.mark.parametrize("samples", [1, 127, 128, 1000])
def test_magnitudes_and_phases_are_the_recording(samples, rng):
    """Magnitudes and phases give back the recording, at both ends too."""
    s = torch.randn(samples, generator=rng, dtype=torch.float64)
    X = spectra(s.numpy())
    result = waveform(20 * X.abs().log10(), X, samples)
    # twice the worst over 100 seeds, 3.1e-15
    assert (result - s).abs().max() < 6.2e-15


def test_log_power_is_the_recording_up_to_its_floor(voice):
    """A perfect prediction sounds right: its noise is the floor, 10^-5 per bin."""
    result = waveform(log_power(voice), spectra(voice), len(voice)).numpy()
    noise = 10 * math.log10(np.square(voice).sum() / np.square(result - voice).sum())
    # 72.5 dB at least over 10 seeds
    assert noise > 70


def test_segmental_snr_by_hand():
    """Noise of a tenth is 20 dB, noise of the full size 0 dB: 10 dB in the mean."""
    reference = np.ones(160)
    estimate = np.concatenate((np.full(80, 0.9), np.zeros(80)))
    assert segmental_snr(reference, estimate) == pytest.approx(10.0, rel=1e-12)


def test_segmental_snr_has_limits():
    """The limits are 35 dB without noise, and -10 dB for a hundredfold energy."""
    reference = np.ones(160)
    assert segmental_snr(reference, reference) == 35
    assert segmental_snr(reference, 11 * reference) == -10


def test_segmental_snr_is_that_of_speech_alone():
    """A segment 41 dB below the loudest is a pause, and one 39 dB below is not."""
    estimate = np.concatenate((np.full(80, 0.9), np.zeros(80)))
    for level, expected in ((-41.0, 20.0), (-39.0, 10.0)):
        reference = np.concatenate((np.ones(80), np.full(80, 10 ** (level / 20))))
        assert segmental_snr(reference, estimate) == pytest.approx(expected)


def test_a_recording_is_intelligible_to_itself(voice):
    assert stoi(voice, voice) == pytest.approx(1.0, abs=1e-12)


@needs_pesq
def test_a_recording_has_the_best_quality(voice):
    """A recording compared with itself has the raw score 4.5.

    P.862.1 maps it to listeners' opinions by a logistic curve.
    """
    best = 0.999 + 4 / (1 + math.exp(-1.4945 * 4.5 + 4.6607))
    # the package computes in float32
    assert pesq(voice, voice) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_more_noise_has_a_lower_score(score, voice):
    noise = np.random.default_rng(1).standard_normal(len(voice)) * voice.std()
    values = [score(voice, voice + 10 ** (-snr / 20) * noise) for snr in (30, 10, -10)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[2] + 0.2


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("samples", [40, 4000])
def test_silence_has_no_score(score, samples):
    """Silence and sound that is too short have no score.

    A number would move the mean.
    """
    assert score(np.zeros(samples), np.ones(samples)) is None
    assert score(np.zeros(samples), np.zeros(samples)) is None
    if samples == 40:
        assert score(np.ones(samples), np.ones(samples)) is None


def test_a_word_in_a_long_silence_is_too_short(voice):
    """A word in a long silence has no score.

    pystoi would warn, and return 1e-5.
    """
    word = np.concatenate((voice[:1600], np.zeros(6400)))
    assert stoi(word, word) is None


@pytest.mark.parametrize("target", ["previous", "next"])
def test_a_perfect_network_is_heard_as_the_recording(target, root, without_pesq):
    """A perfect network has the best scores, with either target.

    A frame too early or too late would be noise.
    """
    task = TimitTask(root=root, split="speakers", target=target)
    answers = iter([batch.y for batch in task.evaluation("test", 2)])
    result = judge(task.predicted(lambda _: next(answers), "test", 2))
    assert result["segsnr"] > 30
    assert result["stoi"] > 0.99
    constant = judge(task.predicted(lambda x: torch.full_like(x, -30.0), "test", 2))
    assert constant["segsnr"] < 10


def small(root: str) -> Config:
    options = {"root": root, "split": "speakers", "scores": True}
    training = Training(hidden_size=4, batch_size=2, iterations=2, threads=1)
    return Config("timit", options, training)


def test_the_summary_has_the_scores(root, without_pesq, tmp_path):
    """The summary has the scores of both splits, for the weights at the end."""
    outcome = train(small(root), tmp_path / "run")
    result = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert result == outcome.summary
    assert result["scores"].keys() == {"validation", "test"}
    assert result["scores"]["test"].keys() == {"segsnr", "stoi"}


def test_interrupted_while_listening(root, without_pesq, tmp_path, monkeypatch):
    """A run interrupted after its last step can be resumed to compute its scores."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TimitTask, "final_scores", interrupt)
        assert train(small(root), tmp_path / "run").summary["status"] == "interrupted"
    again = resume(tmp_path / "run").summary
    assert again["status"] == "finished"
    whole = train(small(root), tmp_path / "two").summary
    assert again.get("scores") == whole.get("scores", "none")


@pytest.mark.errors
def test_packages_that_are_not_installed(root, tmp_path, monkeypatch):
    """A missing package is reported before the first step, not after the last."""
    monkeypatch.setattr(scores, "SCORE_PACKAGES", ("pystoi", "no_such_package"))
    message = r"installed: no_such_package\. .*`pip install pystoi no_such_package` "
    with pytest.raises(RunError, match=message):
        train(small(root), tmp_path / "run")
    assert not (tmp_path / "run").exists()
