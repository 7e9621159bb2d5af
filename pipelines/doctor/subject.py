"""What the doctor examines: a job in a namespace of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.manifests import STANDALONE
from kfp_tfjob.components.launch_tfjob.manifest import Identity, build_job
from kfp_tfjob.components.launch_tfjob.spec import JobSpec
from kfp_tfjob.components.preflight.step_jobs import asked_for
from kfp_tfjob.components.step_job import StepJob

_RUN_ID = "doctor"


@dataclass(frozen=True)
class Subject:
    """A job that is never created.

    Attributes:
        api: The cluster, from the namespace of the runs.
        account: The service account of the runs.
        spec: The job.
    """

    api: ClusterClient
    account: str
    spec: JobSpec

    @property
    def jobs(self) -> list[StepJob]:
        """The Jobs of steps that the run asks for."""
        return asked_for(self.spec.pod, self.spec.storage_secret)

    @property
    def job(self) -> dict[str, Any]:
        """The manifest of the job."""
        return build_job(self.spec, Identity(_RUN_ID, 1))

    @property
    def install(self) -> str:
        """The command that gives the account its rights."""
        other = self.account != STANDALONE
        account = f" --service-account {self.account}" if other else ""
        return f"kfp-tfjob install --namespace {self.api.namespace}{account} --apply"
