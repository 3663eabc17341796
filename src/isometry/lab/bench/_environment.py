"""Where it is measured."""

from importlib.metadata import version
from typing import Any

import torch

from isometry.lab.bench._names import PEERS, installed
from isometry.lab.train._environment import environment


def device_of(name: str, threads: int | None) -> torch.device:
    """The device, with as many threads of torch as are wanted.

    Args:
        name: cpu or cuda.
        threads: of torch; its own number if None.

    Returns:
        The device.

    Raises:
        ValueError: if there is no such device.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "`--device` must be one that torch can use; got cuda, and torch finds no "
            "card. Leave it out for cpu."
        )
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.device(name)


def surroundings(device: torch.device) -> dict[str, Any]:
    """The environment of a run, the device, and the versions of the peers.

    Args:
        device: where it is measured.

    Returns:
        Names and values.
    """
    found = environment(ranks=1)
    found["versions"] |= {peer: version(peer) for peer in PEERS if installed(peer)}
    cuda = device.type == "cuda"
    return found | {"device": torch.cuda.get_device_name(device) if cuda else "cpu"}
