"""Evaluate a model during training on a device written in Python, instead of a card.

Like a card, the device refuses an operation if one of the tensors is on the CPU.
"""

import functools
import json
import os
import sys
import traceback

import torch

from isometry.lab import Config, Training, evaluate
from isometry.lab._process import Ranks
from isometry.lab._train.experiment import build
from isometry.lab._train.loop import RunState, Trainer
from isometry.lab._train.recorder import Recorder
from tests.backend.remote import DEVICE, Remote

CPU = torch.device("cpu")


def main(task: str) -> None:
    """Print the means of both splits on the CPU, and then on the device."""
    training = Training(model="lstm", hidden_size=6, batch_size=4, iterations=1)
    experiment = build(Config(task, {"held_out": 6}, training), CPU)
    recorder = Recorder(experiment, None, {})
    for device in (CPU, DEVICE):
        if device == DEVICE:
            experiment.model._apply(Remote)
        trainer = Trainer(experiment, RunState(), Ranks(0, 1, device), recorder)
        means = trainer.on_splits(functools.partial(evaluate, experiment.task))
        sys.stdout.write(json.dumps(means) + "\n")


if __name__ == "__main__":
    code = 0
    try:
        main(sys.argv[1])
    except Exception:  # noqa: BLE001 - os._exit does not print it
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # autograd's thread for this device would crash in an orderly exit
    os._exit(code)
