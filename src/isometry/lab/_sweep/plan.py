"""The plan of a sweep, in `sweep.json`: one run for each combination of options."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from isometry.lab import _files as files
from isometry.lab._errors import RunError
from isometry.lab._options import spell
from isometry.lab._train.command import read
from isometry.lab._train.config import Config, Training

PLAN = "sweep.json"

# options that the name of a run always shows
_NAMED = ("model", "hidden_size", "seed")

# the configs of the runs of a sweep, keyed by the names of their folders
Plan = dict[str, Config]


def expand(task: str | None, values: Mapping[str, Any]) -> Plan:
    r"""Runs for all combinations of the values of the options.

    $$ \{\text{models}\} \times \{\text{sizes}\} \times \dots \times \{\text{seeds}\} $$

    Models change slowest and seeds fastest, so that a sweep that is cut short has
    finished whole rows of its table. If no size is given, a network has its default
    size, which is the paper's size if the paper has one. If no number of threads is
    given, a run uses one thread, so that its results do not depend on the number of
    cores.

    Args:
        task: name of the task. None raises an error that lists all tasks.
        values: options of `isometry train`, keyed by name. A list holds several values.
            The options of the network are in `model_options`.

    Returns:
        The runs, each with a name that shows the options that vary.

    Raises:
        ValueError: if no task is named, a task, network or option is unknown, a value
            is invalid, a list is empty, or two runs would get the same name.
    """
    values = {"model": "exprnn", "hidden_size": None, "threads": 1, **values}
    # move the seed to the end, since the last option varies fastest
    values["seed"] = values.pop("seed", Training.seed)
    network = dict(values.get("model_options", {}))
    runs: Plan = {}
    for options in _combinations(values | {"model_options": _combinations(network)}):
        config = _config(task, options)
        seed = f"seed={config.training.seed}"
        parts = [config.short_name, *_varied(values, options), seed]
        name = files.for_file_name("-".join(parts))
        if runs.setdefault(name, config) != config:
            raise ValueError(
                f"values must differ in letters and digits, since these name the runs; "
                f"got two runs called {name}. Use a separate sweep for one of them."
            )
    return runs


def with_known_names(out: Path, runs: Plan) -> Plan:
    """Give runs the names that they already have in the plan of a folder.

    Args:
        out: folder of a sweep, which may have no plan yet.
        runs: the runs to train.

    Returns:
        The runs, in the same order. A run that is already in the plan of the folder
        gets its name and command from there.

    Raises:
        RunError: if a name already belongs to another run, or to a folder that is not
            part of this sweep, or if the plan is damaged.
    """
    known = _known(out)
    return dict(_with_known_name(out, *run, known) for run in runs.items())


def _with_known_name(
    out: Path, name: str, config: Config, known: Plan
) -> tuple[str, Config]:
    for other, other_config in known.items():
        if _options(other_config) == _options(config):
            return other, other_config
    if name in known:
        old, new = _options(known[name]), _options(config)
        option = next(n for n in old | new if old.get(n) != new.get(n))
        raise RunError(
            f"{out / name} must keep its options; got {option} {new.get(option)} "
            f"instead of {old.get(option)}. Choose another `--out`, or sweep over both."
        )
    if (out / name).exists():
        raise RunError(
            f"{out / name} exists, but is not in {out / PLAN}. Choose another "
            f"`--out`, or move that folder."
        )
    return name, config


def _options(config: Config) -> dict[str, Any]:
    """The task and all options of a run, to compare it with another run."""
    return {"task": config.task, **config.task_options, **asdict(config.training)}


def write_plan(out: Path, runs: Plan) -> Plan:
    """Add runs to the plan of a folder.

    Args:
        out: folder of a sweep, which may have no plan yet.
        runs: the runs that `with_known_names` returned.

    Returns:
        The new plan of the folder.
    """
    plan = _known(out) | runs
    content = {name: json.loads(config.to_json()) for name, config in plan.items()}
    files.write_atomically(out / PLAN, files.as_json({"runs": content}))
    return plan


def _known(out: Path) -> Plan:
    """The plan of a folder; empty if the folder has no plan yet."""
    return read_plan(out) if (out / PLAN).exists() else {}


def read_plan(out: Path) -> Plan:
    """Read the plan of a folder.

    Args:
        out: folder of a sweep.

    Returns:
        The runs of the plan.

    Raises:
        RunError: if there is no plan, or it is damaged.
    """
    try:
        runs = json.loads((out / PLAN).read_bytes())["runs"]
        for name in runs:
            # refuse a name that is a path, since it could lead out of the folder
            if not files.is_file_name(name):
                raise ValueError(f"the name {name!r}")  # noqa: TRY301 - caught below
        return {n: Config.from_json(json.dumps(run)) for n, run in runs.items()}
    except FileNotFoundError:
        raise RunError(
            f"{out} must be the folder of a sweep; it has no {PLAN}. Give the folder "
            f"that was the `--out` of `isometry sweep`."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{out / PLAN} must be the plan of a sweep; got {error!r}. Remove it and "
            f"the runs, or choose another `--out`."
        ) from error


def check_trust(runs: Plan, *, trust: bool) -> None:
    """Raise if a plan from a file names classes that must not be imported.

    Args:
        runs: the runs.
        trust: whether classes that the plan names may be imported.

    Raises:
        ValueError: if a class is unknown, or is not registered and `trust` is False.
    """
    from isometry.lab.paper.networks import NETWORKS
    from isometry.lab.tasks import TASKS

    for config in runs.values():
        TASKS.find(config.task, trust=trust)
        NETWORKS.find(config.training.model, trust=trust)


def _combinations(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All ways to choose one value for each option. A list holds several values."""
    for name, value in values.items():
        if value == []:
            raise ValueError(
                f"`{name}` must have at least one value; got an empty list. Leave "
                f"it out to use the default."
            )
    axes = (v if isinstance(v, list) else [v] for v in values.values())
    return [dict(zip(values, point, strict=True)) for point in product(*axes)]


def _varied(values: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    """The parts of a run's name that show which of several values it has."""
    parts: list[str] = []
    for name, value in values.items():
        if name == "model_options":
            parts += _varied(value, options[name])
        elif isinstance(value, list) and len(value) > 1 and name not in _NAMED:
            parts.append(f"{name}={options[name]}")
    return parts


def _config(task: str | None, options: Mapping[str, Any]) -> Config:
    """The config that `isometry train` makes, with an explicit `hidden_size`.

    Raises if the network is unknown.
    """
    from isometry.lab._train.experiment import check_model, make_task
    from isometry.lab.paper.networks import recipe_for

    # leave out options that are None, so that they get their defaults
    values = {name: value for name, value in options.items() if value is not None}
    config, _ = read({"task": task, **values})
    training = config.training
    check_model(training, trust=True)
    instance = make_task(config, trust=True)
    size = recipe_for(training.model, instance, training.hidden_size).hidden_size
    if training.hidden_size == size:
        return config
    words = [config.command, *spell("hidden_size", size)]
    training = replace(training, hidden_size=size)
    return replace(config, training=training, command=" ".join(words))
