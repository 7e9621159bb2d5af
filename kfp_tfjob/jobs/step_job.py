"""Describes the batch Job that does the work of one step in a pod of its own.

It is not a kind of training job: it is not in KINDS, has no attempts, and stores its result itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.jobs.kind import JobKind, Replica


@dataclass(frozen=True, eq=False)
class _StepJob(JobKind):
    names_pods: bool = False  # their names end in random letters

    def environment(
        self, hosts: Mapping[str, Sequence[str]], role: str, index: int
    ) -> dict[str, str]:
        """Return no variables: Kubernetes sets none."""
        return {}

    def spec(self, replicas: Sequence[Replica], ttl_seconds: int) -> dict[str, Any]:
        """Return the spec of a Job.

        Args:
            replicas: One pod, which Kubernetes never starts again.
            ttl_seconds: How long the finished Job is kept.
        """
        (one,) = replicas
        return {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": ttl_seconds,
            "template": one.template,
        }

    def replicas(self, job: Mapping[str, Any]) -> list[Replica]:
        """Return the pods of a Job with a spec from `spec`."""
        template = job["spec"]["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        return [Replica(self.role_of(labels), job["spec"]["completions"], template)]

    def run_policy(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the spec of a Job, which has its policy."""
        return job["spec"]

    def index_of(self, labels: Mapping[str, str]) -> str:
        """Return 0: there is one pod."""
        return "0"

    def decides(self, role: str) -> bool:
        """Tell that a Job ends with its pod."""
        return True


STEP_JOB = _StepJob(
    name="Job",
    plural="jobs",
    replicas_key="template",
    roles={"prepare": "prepare", "evaluate": "evaluate"},
    container="main",
    operator="Job",
    variables=frozenset(),
    group="batch",
    name_label="batch.kubernetes.io/job-name",  # Kubernetes sets it, and UID_LABEL
    role_label="kfp-tfjob/role",
    operator_label="kfp-tfjob/kind",
    conditions={"succeeded": "Complete", "failed": "Failed", "suspended": "Suspended"},
)
UID_LABEL = "batch.kubernetes.io/controller-uid"
