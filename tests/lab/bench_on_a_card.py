"""Run `isometry bench --device cuda` on a device written in Python, instead of a card.

The times mean nothing. What is shown is that every contender runs in torch's operations
alone, with all of its tensors on the device, and what the table says about the card.
"""

import os
import sys
from importlib.util import find_spec

import torch

from isometry.lab import _cli, bench
from isometry.lab.bench import command, timing
from tests.backend.remote import DEVICE


def _installed(peer: str) -> bool:
    # Parameters of geoopt have a class of their own, and so have tensors on DEVICE. No
    # tensor can have both.
    return peer != "geoopt" and find_spec(peer) is not None


if __name__ == "__main__":
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_name = lambda _device: "Stand-in card"
    torch.version.cuda = "12.8"
    timing.device_of = lambda _name, _threads: DEVICE
    for module in (bench, command, timing):
        vars(module)["installed"] = _installed
    code = _cli.main(["bench", "--device", "cuda", *sys.argv[1:]])
    sys.stdout.flush()
    sys.stderr.flush()
    # autograd's thread for this device would crash in an orderly exit
    os._exit(code)
