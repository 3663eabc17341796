"""Small data files in the formats of MNIST and TIMIT."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isometry.lab._data.catalogue import Dataset, File, Mirror, Package
from tests.helpers import new_generator

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def idx(array: Tensor) -> bytes:
    """An array of bytes in the idx format."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, 8, array.ndim)) + lengths + array.numpy().tobytes()


def images(train: int = 23, test: int = 7) -> dict[str, bytes]:
    """Files of random images in the format of MNIST."""
    rng = new_generator(1)
    files: dict[str, bytes] = {}
    for name in NAMES:
        number = train if name.startswith("train") else test
        shape = (number, 28, 28) if "images" in name else (number,)
        high = 256 if "images" in name else 10
        drawn = torch.randint(high, shape, generator=rng, dtype=torch.uint8)
        files[name] = idx(drawn)
    return files


def dataset(files: dict[str, bytes], *mirrors: str, system: str = "npm") -> Dataset:
    """An entry of the catalogue that describes these files."""
    assert system in ("npm", "debian")
    return Dataset(
        tuple(
            File(name, len(content), hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        ),
        (*map(Mirror, mirrors), Package(system, "small-data", "package/data/")),
    )


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def sphere(samples: np.ndarray, rate: int = 16000) -> bytes:
    """16-bit samples in the NIST SPHERE format, as TIMIT has them."""
    header = (
        "NIST_1A\n   1024\n"
        f"channel_count -i 1\nsample_count -i {len(samples)}\n"
        f"sample_rate -i {rate}\nsample_n_bytes -i 2\nsample_byte_format -s2 01\n"
        "sample_sig_bits -i 16\nsample_coding -s3 pcm\nend_head\n"
    )
    quantized = np.round(samples * 32767).astype("<i2")
    return header.encode().ljust(1024) + quantized.tobytes()


def riff(samples: np.ndarray, rate: int = 16000) -> bytes:
    """16-bit samples of one channel in the RIFF format."""
    data = np.round(samples * 32767).astype("<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def speech(seconds: float, seed: int, rate: int = 16000) -> np.ndarray:
    """Noise with an envelope, of the loudness of speech."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal(int(seconds * rate))
    return 0.1 * np.sin(np.linspace(0, 9, len(samples))) * np.tanh(samples)
