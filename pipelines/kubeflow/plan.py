"""The plan of a run before it is submitted: pods, GPUs and memory, and possible obstacles.

A person sees the cost of a run before it starts, and Client.plan returns the same to programs.
Called by `kfp-tfjob submit` and the Python client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kfp_tfjob.checks.finding import Finding
from kfp_tfjob.components.preflight.plan import job_spec
from kfp_tfjob.options.address_fields import Tick, fill
from kfp_tfjob.options.parameter_masking import masked
from kfp_tfjob.options.parameters import RunParameters

from . import submit_checks
from .package import Package


@dataclass(frozen=True)
class Plan:
    """The resources and parameters of a run.

    Attributes:
        model: The run parameter model_name.
        data: data_uri as a run that starts now will read it.
        output: The run parameter output_uri.
        pipeline: The pipeline's origin.
        images: The images of the steps and of the replicas.
        replicas: The number of pods of the training job.
        gpus: The number of their GPUs.
        cpu: The CPU that they request together, in cores.
        memory: The memory that they request together, in bytes.
        given: The parameters that are not defaults, with their source; secret-looking values are
            masked.
        findings: Obstacles to the run's start, with their fix, and things that could not be
            checked. A missing Secret, or a pod that no node can hold now, has the status `waits`.
    """

    model: str
    data: str
    output: str
    pipeline: str
    images: Sequence[str]
    replicas: int
    gpus: int
    cpu: float
    memory: int
    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    findings: Sequence[Finding] = ()


def make_plan(
    values: RunParameters, package: Package, sources: Mapping[str, str], namespace: str
) -> Plan:
    """Return the plan of a run with checked parameters.

    Args:
        values: The run parameters.
        package: The pipeline.
        sources: The source of each parameter that is not a default.
        namespace: The namespace of the runs; empty for the kubeconfig's.
    """
    from kfp_tfjob.cluster import capacity
    from kfp_tfjob.jobs.job_identity import Identity
    from kfp_tfjob.jobs.manifest import build_job

    spec = job_spec(values)
    requests = capacity.of_job(build_job(spec, Identity("run", 1)))
    return Plan(
        model=str(values["model_name"]),
        data=fill(str(values["data_uri"]), Tick(datetime.now(UTC))),
        output=str(values["output_uri"]),
        pipeline=package.source,
        images=tuple(dict.fromkeys((*package.images, *spec.images))),
        replicas=sum(spec.counts.values()),
        gpus=spec.total_gpus,
        cpu=float(requests.get("cpu", 0)),
        memory=int(requests.get("memory", 0)),
        given={
            name: {"value": masked({name: values[name]})[name], "source": source}
            for name, source in sources.items()
        },
        findings=submit_checks.check_cluster(spec, namespace),
    )
