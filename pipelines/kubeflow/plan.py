"""What a run will take, before it is submitted: pods, GPUs, memory, bytes of data, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from kfp_tfjob.components.preflight.parameters import job_spec
from kfp_tfjob.jobs.secret_values import masked
from kfp_tfjob.options.fields import Tick, has_time
from kfp_tfjob.pipelines.kubeflow import nodes
from kfp_tfjob.pipelines.kubeflow.connection import BackEnd
from kfp_tfjob.pipelines.kubeflow.inputs import Inputs
from kfp_tfjob.pipelines.kubeflow.runs import Run, list_runs
from kfp_tfjob.storage.words import counted, minutes

if TYPE_CHECKING:
    from kfp_tfjob.components.step_job import StepJob

_LOOKED = 50  # runs of the model, for the estimate
# What decides how long a run takes, as far as parameters do.
_SIZE = ("data_uri", "train_workers", "train_gpus", "train_epochs", "train_batch_size")
_SIZE += ("model_code", "model_hyperparameters", "train_options", "pod")


@dataclass(frozen=True)
class Estimate:
    """How long a run may take.

    Attributes:
        seconds: The median of earlier runs; None if there are none to go by.
        runs: How many they are.
        words: The estimate as text.
    """

    seconds: float | None
    runs: int
    words: str


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        model: The run parameter model_name.
        data: data_uri as the run will read it.
        tick: The time for {date} and {hour}, in UTC; empty if nothing depends on it.
        output: The run parameter output_uri.
        pipeline: Where the pipeline comes from.
        images: The images of the steps and of the replicas.
        replicas: Pods of the training job.
        gpus: GPUs of all of them.
        cpu: CPU that they request together, in cores.
        memory: Memory that they request together, in bytes.
        own_pods: The pods for the work of steps, as text.
        files: Files of the data; None if the store cannot be listed from here.
        bytes: Their bytes; None likewise.
        estimate: How long the run may take.
        given: The parameters that are not defaults, with their source; secret-looking values are
            masked.
        warnings: What may keep the run from starting, with what to do.
        notes: What could not be found out, and why.
        waits: The warnings about pods that no node can hold now, and about missing Secrets.
    """

    model: str
    data: str
    tick: str
    output: str
    pipeline: str
    images: Sequence[str]
    replicas: int
    gpus: int
    cpu: float
    memory: int
    files: int | None
    bytes: int | None
    estimate: Estimate
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    own_pods: Sequence[str] = ()
    waits: Sequence[str] = ()


def make_plan(
    back_end: BackEnd,
    values: Mapping[str, Any],
    inputs: Inputs,
    pipeline: str = "",
    images: Sequence[str] = (),
    sources: Mapping[str, str] | None = None,
    tick: Tick | None = None,
) -> Plan:
    """Return what a run will take.

    Args:
        back_end: Where earlier runs are.
        values: Every run parameter, checked.
        inputs: What this machine sees in the store.
        pipeline: Where the pipeline comes from, as text.
        images: The images of its steps.
        sources: Where each given parameter comes from.
        tick: The tick of a schedule; None for a run that is submitted now.
    """
    from kfp_tfjob.cluster import capacity
    from kfp_tfjob.components.launch_tfjob.manifest import Identity, build_job
    from kfp_tfjob.components.preflight.step_jobs import asked_for
    from kfp_tfjob.components.prepare_data.executors.workers import workers_in

    spec = job_spec(values)
    requests = capacity.of_job(build_job(spec, Identity("run", 1)))
    tick = tick or Tick(datetime.now(UTC))
    moves = any(has_time(str(values[name])) for name in ("data_uri", "output_uri"))
    workers = workers_in(values["data_options"])
    compared = nodes.compare(spec, workers, back_end.namespace)
    waits = (*compared.waits, *compared.missing)
    return Plan(
        model=str(values["model_name"]),
        data=inputs.data,
        tick=str(tick) if moves else "",
        output=str(values["output_uri"]),
        pipeline=pipeline,
        images=tuple(dict.fromkeys((*images, spec.image))),
        replicas=sum(spec.counts.values()),
        gpus=spec.total_gpus,
        cpu=float(requests.get("cpu", 0)),
        memory=int(requests.get("memory", 0)),
        files=inputs.files,
        bytes=inputs.bytes,
        estimate=estimate(islice(list_runs(back_end, str(values["model_name"])), _LOOKED), values),
        given={
            name: {"value": masked({name: values[name]})[name], "source": source}
            for name, source in (sources or {}).items()
        },
        waits=waits,
        warnings=(*waits, *compared.warnings),
        notes=(*inputs.notes, *compared.notes),
        own_pods=tuple(map(_own_pod, asked_for(spec.pod, workers=workers))),
    )


def _own_pod(job: StepJob) -> str:
    settings, each = job.settings, "" if job.pods == 1 else " each"
    gpus = f", {counted(job.gpus, 'GPU')}" if job.gpus else ""
    return (
        f"{job.step}: {counted(job.pods, 'pod')}, {settings.cpu} CPU, {settings.memory} of"
        f" memory{gpus}{each}, as a Job"
    )


def estimate(runs: Any, values: Mapping[str, Any]) -> Estimate:
    """Return how long a run may take, from earlier runs that succeeded.

    Args:
        runs: Earlier runs of the model.
        values: The parameters of the new run.
    """
    done = [run for run in runs if run.state == "succeeded" and run.seconds]
    alike = [run for run in done if _size(run.parameters, values) == _size(values, values)]
    if alike:
        seconds = median(run.seconds for run in alike)
        return Estimate(
            seconds, len(alike), f"about {minutes(seconds)}, as {_runs(alike)} of this size took"
        )
    if done:
        low, high = min(run.seconds for run in done), max(run.seconds for run in done)
        span = (
            minutes(low) if minutes(low) == minutes(high) else f"{minutes(low)} to {minutes(high)}"
        )
        words = (
            f"unknown for this size; {_runs(done)} of this model with other settings took {span}"
        )
        return Estimate(None, len(done), words)
    return Estimate(None, 0, "unknown: no earlier run of this model has succeeded here")


def _runs(runs: Sequence[Run]) -> str:
    return "1 earlier run" if len(runs) == 1 else f"{len(runs)} earlier runs"


def _size(found: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides how long a run takes; a run says only what is not its default."""
    from kfp_tfjob.components.preflight.parameters import defaults

    known = defaults() | dict(found)
    return {name: masked(known[name]) for name in _SIZE}
