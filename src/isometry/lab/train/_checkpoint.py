"""The state of a training as one file: tensors, and the rest as JSON in its header.

safetensors holds no code, unlike pickle. One file, because two cannot be replaced at
one moment.
"""

import json
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

KEY = "isometry"


def pack(
    model: nn.Module, optimizers: Iterable[Optimizer], state: dict[str, Any]
) -> bytes:
    """The content of a checkpoint.

    Args:
        model: its `state_dict`.
        optimizers: theirs, flattened: tensors by path, other values in the header.
        state: what JSON can say.

    Returns:
        A safetensors file.
    """
    from safetensors.torch import save

    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    plain = []
    for i, optimizer in enumerate(optimizers):
        packed = optimizer.state_dict()
        values: dict[str, dict[str, Any]] = {}
        for index, entries in packed["state"].items():
            values[str(index)] = {}
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{i}.{index}.{name}"] = value
                else:
                    values[str(index)][name] = value
        plain.append({"state": values, "param_groups": packed["param_groups"]})
    header = json.dumps({"state": state, "optimizers": plain})
    whole = {name: value.detach().contiguous() for name, value in tensors.items()}
    return save(whole, {KEY: header})


def unpack(
    data: bytes, model: nn.Module, optimizers: Iterable[Optimizer]
) -> dict[str, Any]:
    """Load what `pack` made.

    Args:
        data: a safetensors file.
        model: made as that one was.
        optimizers: made as those were.

    Returns:
        The state.
    """
    from safetensors.torch import load

    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
    tensors = load(data)
    model.load_state_dict(_under("model.", tensors))
    pairs = zip(optimizers, header["optimizers"], strict=True)
    for i, (optimizer, plain) in enumerate(pairs):
        found = _under(f"optimizer.{i}.", tensors)
        state: dict[int, dict[str, Any]] = {
            int(index): dict(values) for index, values in plain["state"].items()
        }
        for path, value in found.items():
            index, _, name = path.partition(".")
            state[int(index)][name] = value
        groups = [_tuples(group) for group in plain["param_groups"]]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    return header["state"]


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
    }


def _tuples(group: dict[str, Any]) -> dict[str, Any]:
    """Options that were tuples, such as betas, which JSON makes lists."""
    return {
        name: tuple(value) if isinstance(value, list) and name != "params" else value
        for name, value in group.items()
    }
