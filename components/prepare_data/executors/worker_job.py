"""Builds the Indexed Job of the workers of prepare_data, and the Secret with their certificate.

`data_options.workers` asks for it, and `pod.prepare` sizes its pods. A worker is of no use without
the scheduler in its step, so a new try of the step starts new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from typing import Any
from uuid import uuid4

from kfp_tfjob.cluster.capacity import quantity
from kfp_tfjob.components import images
from kfp_tfjob.components.prepare_data.executors import worker, worker_process
from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.code_version import code_version
from kfp_tfjob.components.step_job import StepJob
from kfp_tfjob.jobs.step_job import STEP_JOB, WORKER
from kfp_tfjob.options.pod import PodOptions

_FOLDER = "/etc/kfp-tfjob/certificate"
# Keys of the inputs of the Job.
_SCHEDULER, _SECRET = "scheduler", "certificate"


@dataclass(frozen=True)
class WorkerJob(StepJob):
    """The workers of prepare_data.

    Attributes:
        count: How many pods.
    """

    count: int = 1
    ttl_seconds = 60  # of workers that have ended because their step was killed

    @property
    def role(self) -> str:
        """The role of its pods."""
        return WORKER

    @property
    def asked_by(self) -> str:
        """The key that asks for it."""
        return "data_options.workers"

    @property
    def pods(self) -> int:
        """How many pods it has."""
        return self.count

    @property
    def processes(self) -> int:
        """The number of processes of a worker: one for each whole core."""
        cores = quantity(str(self.settings.cpu)).to_integral_value(ROUND_FLOOR)
        return max(1, int(cores))

    @property
    def program(self) -> str:
        """The module that runs in the pods."""
        return worker.__name__

    def values(self, inputs: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables of a worker."""
        return {
            worker_process.SCHEDULER: str(inputs.get(_SCHEDULER, "")),
            worker_process.CERTIFICATE_FOLDER: _FOLDER,
            worker.STEP_VERSION: code_version(),
            worker.PROCESSES: str(self.processes),
        }

    def references(self) -> list[dict[str, Any]]:
        """Return no more variables: Kubernetes sets the number of the worker."""
        return []

    def mounts(self) -> list[dict[str, Any]]:
        """Return the mount of the certificate."""
        return [{"name": "certificate", "mountPath": _FOLDER, "readOnly": True}]

    def volumes(self, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the volume of the certificate; a pod waits until its Secret is there."""
        secret = {"secretName": inputs.get(_SECRET, "certificate"), "defaultMode": 0o440}
        return [{"name": "certificate", "secret": secret}]


def worker_job(pod: PodOptions, workers: int, storage_secret: str) -> WorkerJob | None:
    """Return the Job of the workers; None without workers.

    Args:
        pod: The typed form of `pod`.
        workers: As in `data_options`.
        storage_secret: As in the form.
    """
    if not workers:
        return None
    settings = pod.own_pod("prepare", asked=True)
    assert settings
    return WorkerJob("prepare", settings, storage_secret.strip(), images.TOOLS, workers)


def inputs_of(scheduler: str) -> dict[str, str]:
    """Return the inputs of a Job, with a name for its Secret that no other Job has.

    Args:
        scheduler: The address of the scheduler.
    """
    return {_SCHEDULER: scheduler, _SECRET: f"prepare-worker-{uuid4().hex[:12]}"}


def secret_of(
    job: Mapping[str, Any], inputs: Mapping[str, str], certificate: Certificate
) -> dict[str, Any]:
    """Return the Secret of a Job that exists; it is deleted with the Job.

    Args:
        job: The Job as the cluster has it.
        inputs: The inputs of the Job.
        certificate: Its content.
    """
    metadata = job["metadata"]
    owner = {
        "apiVersion": STEP_JOB.api_version,
        "kind": STEP_JOB.name,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "immutable": True,
        "metadata": {
            "name": inputs[_SECRET],
            "labels": dict(metadata["labels"]),
            "ownerReferences": [owner],
        },
        "stringData": certificate.files,
    }
