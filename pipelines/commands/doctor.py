"""`kfp-tfjob doctor`: whether a cluster, a back end and a store are ready for runs."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.common.errors import LABELS, ConfigurationError

from .parameters import parameters_of, with_parameters
from .shared_options import with_connection

if TYPE_CHECKING:
    from ..doctor import Report
    from ..kubeflow.connection import Connection

_COLOURS = {
    "ok": "green",
    "unknown": "yellow",
    "warning": "yellow",
    "waits": "yellow",
    "problem": "red",
}


@click.command()
@with_parameters(here=False, demands=False)
@with_connection
@click.option(
    "--pipeline",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="YAML that `kfp-tfjob compile` wrote, for its defaults [default: the pipeline of this"
    " version]",
)
@click.option(
    "--service-account",
    default="",
    metavar="NAME",
    help="the runs' service account [default: pipeline-runner, else default-editor]",
)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def doctor(
    connection: Connection,
    pipeline: Path | None,
    service_account: str,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Check from this machine whether a run can start, before anything is installed.

    It examines the cluster in your kubeconfig, the namespace of the runs, the back end and, with
    --output, the store. In the cluster, it makes only dry runs; in the store, it creates and
    deletes small objects. No run parameter is required; those that you pass describe the job to
    check. --endpoint is the store's address for the pods; this machine uses AWS_ENDPOINT_URL if it
    is set.

    Each line is ok, unknown (this machine cannot check it), warning, waits (pods would have to
    wait, for example for a node) or problem, with its fix.

    Exit codes: 0 no problem; 1 problems; 2 wrong run parameters.
    """
    began = time.monotonic()
    from kfp_tfjob.components.preflight.plan import job_spec

    from ..doctor import Request, examine
    from ..kubeflow.package import from_file

    logging.getLogger("kfp_tfjob").setLevel(logging.ERROR)  # every error is a finding
    package = from_file(pipeline) if pipeline else None
    values = parameters_of(arguments, package.defaults if package else None, here=False).values
    if package:
        ConfigurationError.raise_if(package.problems(values["train_image"]))
    report = examine(Request(connection, service_account, values, job_spec(values)))
    seconds = time.monotonic() - began
    if as_json:
        click.echo(json.dumps(_as_json(report, seconds), indent=1))
    else:
        _show(report, seconds)
    sys.exit(1 if _counts(report)["problem"] else 0)


def _counts(report: Report) -> dict[str, int]:
    counts = Counter(str(finding.status) for group in report.values() for finding in group)
    return {status: counts[status] for status in _COLOURS}


def _as_json(report: Report, seconds: float) -> dict[str, Any]:
    entries = [
        {"topic": topic, "status": str(finding.status), **finding.parts}
        for topic, group in report.items()
        for finding in group
    ]
    return {**_counts(report), "seconds": round(seconds, 1), "findings": entries}


def _show(report: Report, seconds: float) -> None:
    for topic, group in report.items():
        click.echo(topic)
        for finding in group:
            status = click.style(f"{finding.status:7}", fg=_COLOURS[finding.status])
            sentence, *details = (f"{LABELS[name]}{text}" for name, text in finding.parts.items())
            click.echo("\n           ".join([f"  {status}  {sentence}", *details]))
    counts = ", ".join(f"{number} {status}" for status, number in _counts(report).items())
    click.echo(f"{counts} in {seconds:.1f} s")
