"""What the doctor examines: a job in a namespace of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.manifests import STANDALONE
from kfp_tfjob.components.step_pods import StepPod, asked_for, step_pods
from kfp_tfjob.jobs.manifest import Identity, build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.pipelines.step_resources import DEFAULTS

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
    def step_pods(self) -> list[StepPod]:
        """The pods of steps that `pod` describes, or else that of one step."""
        pods = step_pods(self.spec.pod, DEFAULTS)
        return asked_for(pods) or [pods["prepare_data"]]

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
