"""`kfp-tfjob run`: the whole pipeline on this machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

import click

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.options.parameter_masking import still_masked
from kfp_tfjob.options.parameters import RunParameters

from ..local.home import DEFAULT, TICK, Home
from ..local.home import PARAMETERS as PARAMETERS_FILE
from .output import show
from .parameters import parameters_of, with_parameters
from .terminal import is_live, with_verbose


@click.command()
@with_parameters()
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT,
    show_default=True,
    help="folder for the embedded store, logs and reports",
)
@click.option(
    "--run-id", metavar="ID", help="continue this run; parameters that you omit keep its values"
)
@click.option(
    "--tick",
    metavar="TIME",
    help="the time for {date} and {hour}, for example 2026-11-22T03:00:00Z [default: now]",
)
@with_verbose
def run(home: Path, run_id: str | None, tick: str | None, verbose: bool, **arguments: Any) -> None:
    """Run the whole pipeline on this machine.

    On a terminal, each step has one line with its progress, and the log is the file `run.log` in
    the run's folder. With --verbose, NO_COLOR, CI or without a terminal, every line is printed.

    The chief and the workers run as processes. They store their output in an S3 server that starts
    and stops with the run, or in the store of --endpoint, with your AWS environment.

    Exit codes: 0 the run is complete, blessed or not; 2 wrong parameters, credentials or model
    code; 3 wrong data; 6 another run was promoted first; 128+N stopped by signal N; any other
    code: another failure. The last lines give the reason.
    """
    from kfp_tfjob.components.preflight.plan import RunPlan
    from kfp_tfjob.registry.run_folder import full_id

    from ..local.run import run as run_here

    place = Home(home.absolute())
    with place.translate_errors():
        if run_id:
            run_id = full_id(run_id, (path.name for path in place.run("x").parent.glob("*")))
        earlier = _read_parameters(place, run_id) if run_id else None
    # The environment of today must not change a run of yesterday.
    values = parameters_of(arguments, earlier, environment={} if earlier else os.environ).values
    RunPlan.parse(values)
    ConfigurationError.raise_if(_missing_secrets(values))
    embedded = not values["storage_endpoint"]
    _require("tensorflow", *(["swift"] if embedded else []))
    run_tick = _tick(place, run_id, tick)
    name = run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"
    sys.exit(run_here(values, place, name, embedded, show, run_tick, is_live(verbose)))


def _require(*packages: str) -> None:
    """Raise an error for missing packages that only the run's other processes load.

    They would otherwise fail in the middle of the run.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def _read_parameters(home: Home, run_id: str) -> RunParameters:
    """Return the original parameters of a continued run."""
    path = home.run(run_id) / PARAMETERS_FILE
    try:
        text = "" if "/" in run_id else path.read_text()
        parameters = json.loads(text)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # or the disk was full
        run_ids = [folder.name for folder in path.parents[1].glob("*") if folder.is_dir()]
        raise ConfigurationError(
            Problem(
                "there is no run with this id to continue",
                received=run_id,
                expected=f"one of {', '.join(sorted(run_ids)[-5:]) or 'none yet'}",
                fix="correct --run-id or --home, or omit --run-id to start a new run",
                name="run-not-found",
            )
        ) from None
    return parameters


def _tick(home: Home, run_id: str | None, option: str | None) -> Tick:
    """Return the tick of a run.

    Args:
        home: The folder of local runs.
        run_id: The run to continue, which keeps its tick; None for a new run.
        option: The time in --tick; None for the current time.
    """
    requested = Tick.parse(option, "--tick") if option else None
    path = home.run(run_id) / TICK if run_id else None
    if not (path and path.exists()):
        return requested or Tick(datetime.now(UTC))
    tick = Tick.parse(path.read_text(), str(path))
    if requested and str(requested) != str(tick):
        raise ConfigurationError(
            Problem(
                "a run keeps its tick when it is continued",
                received=f"--tick {option}",
                expected=str(tick),
                fix="omit --tick, or omit --run-id to start a new run",
            )
        )
    return tick


def _missing_secrets(values: RunParameters) -> Iterable[Problem]:
    """Yield a problem for each secret of a continued run, because secrets are not saved."""
    for name, value in values.items():
        for path in still_masked(value, name):
            yield Problem(
                f"{path} has no value, because values whose names look like secrets are not saved",
                expected="the value with which the run started",
                fix=f"pass {path} again when you continue the run",
                path=path,
            )
