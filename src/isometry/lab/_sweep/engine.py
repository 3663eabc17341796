"""Carries out a sweep: begins missing runs, resumes stopped runs, writes a table."""

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isometry.lab._report import table as report
from isometry.lab._report.experiments import ReportedExperiment, experiments
from isometry.lab._report.looks import network_label
from isometry.lab._report.runs import Group, Run, read_run
from isometry.lab._sweep.plan import SweepRun, fit, load, save
from isometry.lab._sweep.view import View
from isometry.lab._train.folder import divergence, locked, write_atomically

TABLE = "sweep.md"

# statuses of a run that has come to its end, so that its numbers can be averaged
WHOLE = ("finished", "solved")

# statuses of a run that is not resumed; a run that diverged would diverge again
DONE = (*WHOLE, "diverged")


@dataclass(frozen=True)
class Engine:
    """Where runs are made, and how many at a time.

    Attributes:
        engine: processes on this machine, or tasks of Ray
        address: address of a Ray cluster, as HOST:PORT; RAY_ADDRESS or this machine if
            it is left out
        jobs: runs at a time; if it is left out, a sweep makes as many as the cores
            allow, and `isometry reproduce` makes one
        budget: stop after this many hours; the same command resumes every run
    """

    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    jobs: int | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget > 0:
            raise ValueError(
                f"`budget` must be a positive number of hours; got {self.budget}. "
                f"Leave it out to run to the end."
            )
        if self.budget is not None and self.engine != "local":
            raise ValueError(
                f"`budget` must come with `--engine local`; got {self.budget} with "
                f"{self.engine!r}. Leave it out, and stop the command when you like: "
                f"the same command resumes every run."
            )
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(
                f"`jobs` must be at least 1; got {self.jobs}. Leave it out for as many "
                f"as there are cores."
            )
        if self.address is not None and self.engine != "ray":
            raise ValueError(
                f"`address` must come with `--engine ray`; got {self.address!r} "
                f"without. Leave it out, or add the other."
            )
        if self.address is not None and self.jobs is not None:
            raise ValueError(
                f"`jobs` must be left out with `--address`, where the cluster decides; "
                f"got {self.jobs}. Leave one of them out."
            )

    def at_a_time(self, cells: Sequence[SweepRun]) -> int:
        """How many runs this machine makes at a time.

        Args:
            cells: the runs.

        Returns:
            The option `jobs`, if the user gives it. Otherwise 1 if any run uses a
            graphics card, and as many as the cores allow if no run does.
        """
        if self.jobs is not None:
            return self.jobs
        if any(cell.config.training.device != "cpu" for cell in cells):
            return 1
        return max(1, cores() // threads(cells))


def status_of(folder: Path) -> str:
    """The status of a run.

    Args:
        folder: folder of the run, which need not exist yet.

    Returns:
        "missing" without a folder, "unfinished" without a summary, or the status in the
        summary.
    """
    return read_run(folder).status if folder.exists() else "missing"


def sweep(cells: Sequence[SweepRun], out: Path, engine: Engine) -> dict[str, str]:
    """Make the runs that are missing, then write the table and the report of all runs.

    The table also goes to stdout; all other messages go to stderr.

    Args:
        cells: the runs, in the order in which they are made.
        out: folder of the sweep.
        engine: where the runs are made, and how many at a time.

    Returns:
        For each run that did not come to its end, the reason, by name of the run.

    Raises:
        RunError: if the folder holds other runs with these names or is in use, or if
            the engine is not available.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped.
    """
    from isometry.lab._report.command import write_report

    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        cells = fit(out, cells)
        save(out, cells)
        failed = carry_out(cells, out, engine)
        bad = verdicts(cells, out, failed)
        # the table and the report also have the runs of earlier commands
        begun = [out / c.name for c in load(out) if (out / c.name).exists()]
        if begun:
            text = table([read_run(folder) for folder in begun])
            write_atomically(out / TABLE, text.encode())
            page = write_report(begun, out / "report")
            sys.stderr.write(f"table {out / TABLE}\nreport {page}\n")
            sys.stdout.write(text)
    sys.stderr.write(f"{len(cells) - len(bad)} of {len(cells)} runs are done.\n")
    return bad


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads(cells: Sequence[SweepRun]) -> int:
    """The largest number of threads that any of the runs uses."""
    return max((cell.config.training.threads or 1 for cell in cells), default=1)


def carry_out(cells: Sequence[SweepRun], out: Path, engine: Engine) -> dict[str, str]:
    """Make the runs that are not done yet.

    Args:
        cells: all runs.
        out: folder of the sweep.
        engine: where the runs are made, and how many at a time.

    Returns:
        For each run that failed, the reason, by name of the run.

    Raises:
        RunError: if Ray is asked for and is not installed or cannot be reached.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when every run has stopped.
    """
    status = {cell.name: status_of(out / cell.name) for cell in cells}
    missing = [cell for cell in cells if status[cell.name] not in DONE]
    if not missing:
        return {}
    done = sum(found in WHOLE for found in status.values())
    view = View(out, [c.name for c in missing], total=len(cells), done=done)
    jobs = engine.at_a_time(missing)
    try:
        if engine.engine == "ray":
            from isometry.lab._sweep import ray

            cpus = jobs * threads(missing)
            return ray.run(missing, out, view, address=engine.address, cpus=cpus)
        from isometry.lab._sweep import local

        seconds = math.inf if engine.budget is None else 3600 * engine.budget
        return local.run(missing, out, view, jobs=jobs, seconds=seconds)
    finally:
        view.close()


def verdicts(
    cells: Sequence[SweepRun], out: Path, failed: Mapping[str, str]
) -> dict[str, str]:
    """Messages about the runs that did not come to their end.

    Args:
        cells: all runs.
        out: folder of the sweep.
        failed: the reasons that `carry_out` returned.

    Returns:
        Messages by name of the run.
    """
    found: dict[str, str] = {}
    for cell in cells:
        status = status_of(out / cell.name)
        if status in WHOLE:
            continue
        message = failed.get(cell.name)
        if status == "diverged":
            steps = read_run(out / cell.name).steps
            message = (
                f"{divergence(out / cell.name, steps)}; sweep over smaller values of "
                f"`--lr`."
            )
        found[cell.name] = message or "interrupted. The same command resumes it."
    return found


# Entries of a config that never get their own column in the table: the table shows them
# elsewhere, or they do not change the results.
_KNOWN = (
    *("task", "task_options", "model", "hidden_size", "seed", "command"),
    *("format", "recipe", "about", "continued"),
)


def table(runs: Sequence[Run]) -> str:
    r"""The runs of a sweep in Markdown, a table for each task.

    Each score is given as $\bar m \pm s$: the mean of the scores $m_i$ over the $N$
    seeds whose runs came to their end, and their standard deviation $s$, where

    $$ s^2 = \frac{1}{N - 1} \sum_i (m_i - \bar m)^2. $$

    Args:
        runs: the runs, of any tasks, in the order of the rows.

    Returns:
        The text.
    """
    parts = []
    for experiment in experiments(runs):
        options = [_options(group) for group in experiment.groups]
        names = dict.fromkeys(name for mine in options for name in mine)
        varied = [n for n in names if len({repr(mine.get(n)) for mine in options}) > 1]
        rows = [_row(experiment, group, varied) for group in experiment.groups]
        lines = tuple(report.TableRow(tuple(row.values())) for row in rows)
        text = report.markdown(report.Table(tuple(rows[0]), lines, result=0))
        parts += [f"## {report.one_line(experiment.title)}", text]
    return "\n\n".join(parts) + "\n"


def _options(group: Group) -> dict[str, Any]:
    plain = {k: v for k, v in group.first.config.items() if k not in _KNOWN}
    return plain | (plain.pop("model_options", None) or {})


def _row(
    experiment: ReportedExperiment, group: Group, varied: Sequence[str]
) -> dict[str, str]:
    """The cells of a row by heading. Scores count only finished and solved runs."""
    metric, options = experiment.metric, _options(group)
    done = [run for run in group.runs if run.status in WHOLE]
    results = [experiment.result(run) for run in done]
    scores = {f"Test {metric} at best validation": [r.chosen for r in results]}
    records = (record for run in experiment.runs for record in run.records)
    if metric == "loss" and any("accuracy" in record for record in records):
        accuracies = [report.accuracy_of(run) for run in done]
        scores["Test accuracy at best validation"] = accuracies
    scores[f"Best test {metric}"] = [r.best for r in results]
    scores[f"Last test {metric}"] = [
        value for run in done for value in run.curve(metric, "test")[1][-1:]
    ]
    statuses = Counter(run.status for run in group.runs)
    return {
        "Network": network_label(group.first.model),
        "n": str(group.first.hidden_size or report.DASH),
        # an option that is None, which means the recipe's default, becomes a dash
        **{
            name.replace("_", " "): str(report.DASH if value is None else value)
            for name, value in ((name, options.get(name)) for name in varied)
        },
        "Seeds": str(len(done)),
        **{
            heading: report.spread([value for value in values if value is not None])
            for heading, values in scores.items()
        },
        "Parameters": report.parameters(group),
        "Per step": report.pace(done or group.runs),
        "Status": ", ".join(f"{n} {status}" for status, n in statuses.items()),
    }
