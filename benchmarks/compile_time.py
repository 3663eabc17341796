"""Compare the time that `torch.compile` takes for a layer in two checkouts.

python -m benchmarks.compile_time OLD NEW
python -m benchmarks.compile_time OLD NEW --record records/compile_time.json

Each measurement is a new process without any cache of torch's. It times the first
forward and backward pass of `nn.Linear(512, 512)`: plain, or orthogonal in one of the
checkouts. The four kinds take turns, and the old checkout takes two of them. The ratio
of its two medians is the noise.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks.records import environment
from benchmarks.versions import revision, rounded

_MEASUREMENT = """
import sys
import time
import torch
import isometry

torch.manual_seed(0)
layer = torch.nn.Linear(512, 512)
if sys.argv[1] == "orthogonal":
    layer = isometry.orthogonal(layer)
# an ordinary step first, which loads our C library
layer(torch.randn(64, 512)).sum().backward()
x = torch.randn(64, 512)
compiled = torch.compile(layer, fullgraph=True)
start = time.perf_counter()
compiled(x).sum().backward()
print(time.perf_counter() - start)
"""


def seconds(checkout: Path, kind: str) -> float:
    """The time of the first compiled pass, in a process of its own."""
    environment = os.environ | {
        "PYTHONPATH": str(checkout.resolve() / "src"),
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    # torch warns that its caches are off
    command = [sys.executable, "-W", "ignore", "-c", _MEASUREMENT, kind]
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    return float(output.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the time of torch.compile.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the medians to this file")
    options = parser.parse_args()
    kinds = {
        "plain": (options.new, "plain"),
        "old": (options.old, "orthogonal"),
        "old, again": (options.old, "orthogonal"),
        "new": (options.new, "orthogonal"),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(options.rounds):
        for name, kind in kinds.items():
            times[name].append(seconds(*kind))
            print(f"{name:12} {times[name][-1]:6.2f} s", flush=True)
    medians = {name: median(values) for name, values in times.items()}
    ratio = medians["new"] / min(medians["old"], medians["old, again"])
    print(f"medians: {rounded(medians)}; new / old: {ratio:.3f}")
    if options.record is not None:
        commits = {"old": revision(options.old), "new": revision(options.new)}
        record = commits | environment(rounds=options.rounds)
        record = rounded(record | {"seconds": medians, "ratio": ratio})
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
