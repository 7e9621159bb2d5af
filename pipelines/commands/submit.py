"""`kfp-tfjob submit`: start a run on Kubeflow Pipelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.checks.finding import Status
from kfp_tfjob.common.formatting import counted

from .output import as_json, dry_run, proceed, show, show_json, without_asking
from .parameters import parameters_of, with_parameters
from .shared_options import open_client, with_connection, with_experiment, with_pipeline
from .terminal import with_verbose

if TYPE_CHECKING:
    from ..kubeflow.connection import Connection
    from ..kubeflow.plan import Plan
    from ..kubeflow.runs import Run


@click.command()
@with_parameters(here=False)
@with_experiment
@with_connection
@click.option("--run-name", default="", metavar="NAME", help="a unique name for the run")
@with_pipeline
@without_asking
@dry_run
@click.option("--watch", "follows", is_flag=True, help="follow the run until it ends")
@as_json
@with_verbose
def submit(
    connection: Connection,
    run_name: str,
    pipeline: Path | None,
    service_account: str,
    yes: bool,
    dry_run: bool,
    follows: bool,
    json_: bool,
    verbose: bool,
    **arguments: Any,
) -> None:
    """Start a run on Kubeflow Pipelines.

    The command checks the parameters and shows the plan: pods, GPUs and warnings. With --dry-run,
    it stops there. The run's first step checks the data and the store.

    A parameter's value comes from the first of these: --set, its option, the environment variable
    KFP_TFJOB_<PARAMETER>, --params FILE, the pipeline's default. --endpoint is the store's address
    for the pods; this machine uses AWS_ENDPOINT_URL if it is set.

    --model may be a local path; the code is then copied to the store, below --output.

    A --run-name must be new, so a repeated submit does not start a second run.
    """
    from .watch import watch_run

    client = open_client(connection)
    package = client.package(pipeline or "")
    parameters = parameters_of(arguments, package.defaults, here=False)
    plan = client.plan(parameters.values, package, parameters.sources, name=run_name)

    def show_run_plan() -> None:
        show_plan(plan, client.back_end.host, client.back_end.namespace)

    if not proceed(plan, show_run_plan, yes, dry_run, json_):
        return
    run = client.submit(parameters.values, package, run_name, service_account)
    if json_:
        show_json(run)
    else:
        _show_started(run)
    if follows:
        sys.exit(watch_run(client, run.run_id, json_, verbose))


def show_plan(plan: Plan, host: str, namespace: str = "") -> None:
    """Print the plan of a run: its parameters, pods, GPUs and warnings."""
    rows = {
        "back end": f"{host}{f', namespace {namespace}' if namespace else ''}",
        "pipeline": plan.pipeline,
        "model": plan.model,
        "data": plan.data or "none",
        "output": plan.output,
        "pods": f"{counted(plan.replicas, 'replica')}; before and after, one pod for each step",
        "GPUs": str(plan.gpus or "none"),
        "requests": f"{plan.cpu:g} CPU, {plan.memory / 2**30:.4g} GiB of memory, for all replicas"
        " together",
        "images": ", ".join(plan.images),
    }
    for name, text in rows.items():
        show(f"{name + ':':<10} {text}")
    if plan.given:
        show("parameters that you set:")
        for name, setting in plan.given.items():
            show(f"  {name} = {setting['value']}  ({setting['source']})")
    for finding in plan.findings:
        show(f"{'note' if finding.status is Status.UNKNOWN else 'warning'}: {finding}")


def _show_started(run: Run) -> None:
    show(f"\nStarted {run.name}\nrun id:    {run.run_id}\nUI:        {run.page}")
    short = run.run_id[:8]
    show(
        f"next:      kfp-tfjob watch {short}   follow it\n"
        f"           kfp-tfjob why {short}     why it failed, is waiting or published nothing\n"
        f"           kfp-tfjob cancel {short}  end it"
    )
