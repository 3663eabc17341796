"""Compare the speed and memory of two checkouts in one interleaved run.

python -m benchmarks.versions OLD NEW              # two folders with a `src` each
python -m benchmarks.versions OLD NEW --only reads # cases whose names start with reads
python -m benchmarks.versions OLD NEW --record records/versions.json

Three processes take turns: two of the old version, and one of the new. The ratio of the
two old processes is the noise. A row is marked as slower if the new version takes over
5 % longer, and more than the noise explains. Consider a suite slower if the geometric
mean of its ratios is above 1.02.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.records import environment
from benchmarks.version_cases import CASES

# approximate seconds of a sample; shorter samples are noisy, longer ones waste time
_SECONDS = 0.06


class Version:
    """A process that times cases with the library of one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src")}
        # torch's profiler fills stderr, which is needed only if the process fails
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until `close`
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.version_cases"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )

    def ask(self, **question: object) -> float:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps(question), file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(
                f"{self._errors.read()}\nA version's process ended at {question}."
            )
        return json.loads(line)

    def close(self) -> None:
        # the process ends when its input ends; the `with` statement closes all pipes
        with self._child, self._errors:
            assert self._child.stdin is not None
            self._child.stdin.close()


def best_times(case: str, versions: list[Version], rounds: int) -> list[float]:
    """The shortest time of a call in each version."""
    first = [version.ask(case=case, calls=1) for version in versions]
    calls = max(1, round(_SECONDS / max(min(first), 1e-7)))
    best = [math.inf] * len(versions)
    for i in range(rounds):
        # Begin each round with the next version. If every second round went backwards
        # instead, the last version of one round would also be the first of the next
        # round, and find its data in the caches.
        for k in range(len(versions)):
            j = (i + k) % len(versions)
            best[j] = min(best[j], versions[j].ask(case=case, calls=calls))
    return best


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def compare(old: Path, new: Path, *, only: str, rounds: int) -> dict[str, object]:
    """Compare two checkouts in every case whose name starts with `only`.

    Prints and returns the ratios for each case, and their geometric means for each
    suite.
    """
    versions = [Version(old), Version(old), Version(new)]
    suites: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = []
    print(f"{'case':28} {'old':>10} {'old / old':>10} {'new / old':>10}  memory")
    for case in CASES:
        if not case.startswith(only):
            continue
        first, again, ours = best_times(case, versions, rounds)
        noise, ratio = again / first, ours / min(first, again)
        before, after = (versions[i].ask(case=case, memory=True) for i in (0, 2))
        memory = after / before if before else 1.0
        mark = "slower" if ratio > max(1.05, noise, 1 / noise) else ""
        print(
            f"{case:28} {1e6 * first:8.1f}us {noise:10.3f} {ratio:10.3f}  "
            f"{memory:6.3f} {mark}",
            flush=True,
        )
        suites[case.split(":")[0]].append((noise, ratio))
        rows.append({"case": case, "noise": noise, "ratio": ratio, "memory": memory})
    means = {
        suite: {
            "noise": geometric_mean([noise for noise, _ in pairs]),
            "ratio": geometric_mean([ratio for _, ratio in pairs]),
        }
        for suite, pairs in suites.items()
    }
    for suite, mean in means.items():
        print(f"{suite:28} {'':10} {mean['noise']:10.3f} {mean['ratio']:10.3f}")
    for version in versions:
        version.close()
    return {"rows": rows, "suites": means}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare two checkouts.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", help="cases that begin with this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", type=Path, help="append the ratios to this file")
    options = parser.parse_args()
    ratios = compare(options.old, options.new, only=options.only, rounds=options.rounds)
    if options.record is not None:
        commits = {"old": revision(options.old), "new": revision(options.new)}
        record = commits | environment(rounds=options.rounds) | ratios
        earlier = (
            json.loads(options.record.read_text()) if options.record.exists() else []
        )
        records = [*earlier, rounded(record)]
        options.record.write_text(json.dumps(records, indent=1) + "\n")


def revision(checkout: Path) -> str:
    """The commit of a checkout, marked if there are changes that are not committed."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.strip()


def rounded(value: Any) -> Any:
    """A copy of nested lists and dictionaries, with floats rounded to four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
