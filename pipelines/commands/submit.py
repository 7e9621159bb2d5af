"""`kfp-tfjob submit`: start a run on Kubeflow Pipelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_tfjob.pipelines.commands.connection import with_connection
from kfp_tfjob.pipelines.commands.output import as_json, show, show_json
from kfp_tfjob.pipelines.commands.parameters import parameters_of, with_parameters
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.words import counted, sized

if TYPE_CHECKING:
    from kfp_tfjob.pipelines.kubeflow.connection import Connection
    from kfp_tfjob.pipelines.kubeflow.plan import Plan
    from kfp_tfjob.pipelines.kubeflow.runs import Run


@click.command()
@with_parameters(here=False)
@with_connection
@click.option("--run-name", default="", metavar="NAME", help="a name that no run has yet")
@click.option(
    "--pipeline",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="YAML that `kfp-tfjob compile` wrote [default: the pipeline of this version]",
)
@click.option("--pipeline-id", default="", metavar="ID", help="an uploaded pipeline, not a FILE")
@click.option(
    "--version", "version_id", default="", metavar="ID", help="its version [default: the newest]"
)
@click.option(
    "--service-account", default="", metavar="NAME", help="of the pods [default: the back end's]"
)
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--watch", "follows", is_flag=True, help="follow the run to its end")
@as_json
def submit(
    connection: Connection,
    run_name: str,
    pipeline: Path | None,
    pipeline_id: str,
    version_id: str,
    service_account: str,
    yes: bool,
    follows: bool,
    json_: bool,
    **given: Any,
) -> None:
    """Start a run on Kubeflow Pipelines.

    The parameters are checked first, as preflight checks them. Then the plan is shown: pods, GPUs,
    data, and an estimate from earlier runs.

    A parameter comes from --set, else its option, else KFP_TFJOB_<PARAMETER> of the environment,
    else --params FILE, else the pipeline. --endpoint is the store as the pods reach it; this
    machine uses AWS_ENDPOINT_URL if that is set.

    --model may be a path of this machine: the code is copied to the store, below --output.

    --run-name works as a key: a name that a run has is refused, so a repeated submit starts
    nothing.
    """
    from kfp_tfjob.pipelines.commands.watch import watch_run
    from kfp_tfjob.pipelines.kubeflow.client import Client
    from kfp_tfjob.pipelines.kubeflow.records import quiet

    quiet()
    if not (yes or (sys.stdin.isatty() and not json_)):
        raise ConfigurationError(
            Problem(
                "there is no terminal to ask whether to proceed",
                expected="a terminal, or --yes",
                fix="add --yes",
            )
        )
    if pipeline and pipeline_id:
        raise ConfigurationError(
            Problem("--pipeline and --pipeline-id exclude each other", fix="remove one of them")
        )
    client = Client.of(connection)
    package = client.package(pipeline or "", pipeline_id, version_id)
    found = parameters_of(given, package.defaults, here=False)
    plan = client.plan(found.values, package, found.sources)
    if not json_:
        show_plan(plan, client.back_end.host, client.back_end.namespace)
        if not yes and not click.confirm("Proceed?"):
            sys.exit(1)
    run = client.submit(found.values, package, run_name, service_account)
    if json_:
        show_json(run)
    else:
        _show_started(run)
    if follows:
        sys.exit(watch_run(client, run.run_id, json_))


def show_plan(plan: Plan, host: str, namespace: str = "") -> None:
    """Print what a run will take."""
    data = plan.data
    if plan.bytes is not None:
        data += f" ({counted(plan.files, 'file')}, {sized(plan.bytes)})"
    rows = {
        "back end": f"{host}{f', namespace {namespace}' if namespace else ''}",
        "pipeline": plan.pipeline,
        "model": plan.model,
        "data": data,
        **({"tick": f"{plan.tick}, in UTC, gives {{date}} and {{hour}}"} if plan.tick else {}),
        "output": plan.output,
        "pods": f"{counted(plan.replicas, 'replica')}; before and after, one pod for each step",
        "GPUs": str(plan.gpus or "none"),
        "requests": f"{plan.cpu:g} CPU, {plan.memory / 2**30:.4g} GiB of memory, all replicas"
        " together",
        "images": ", ".join(plan.images),
        "time": plan.estimate.words,
    }
    for name, text in rows.items():
        show(f"{name + ':':<10} {text}")
    if plan.given:
        show("parameters that you set:")
        for name, it in plan.given.items():
            show(f"  {name} = {it['value']}  ({it['source']})")
    for note in plan.notes:
        show(f"note: {note}")


def _show_started(run: Run) -> None:
    show(f"\nStarted {run.name}\nrun id:    {run.run_id}\nUI:        {run.page}")
    short = run.run_id[:8]
    show(
        f"next:      kfp-tfjob watch {short}   follow it\n"
        f"           kfp-tfjob why {short}     why it failed, waits, or published nothing\n"
        f"           kfp-tfjob cancel {short}  end it"
    )
