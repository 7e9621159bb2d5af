"""Describes the batch Job that does the work of one step in a pod of its own.

It is not a kind of training job: it is not in KINDS, has no attempts, and stores its result itself.
The workers of prepare_data are such a Job too, with many pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kfp_tfjob.jobs.kind import JobKind, Replica
from kfp_tfjob.supervisor.exit_codes import CONFIGURATION

WORKER = "prepare-worker"  # the role of the workers of prepare_data
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"  # Kubernetes sets it
_LOST_PODS = 6  # of each worker that may fail; a pod that is taken from its node does not count


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
            replicas: One pod, which Kubernetes never starts again; or several workers, which it
                replaces, but not one whose configuration is wrong.
            ttl_seconds: How long the finished Job is kept.
        """
        (one,) = replicas
        if one.role == WORKER:
            return _of_workers(one, ttl_seconds)
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
        """Return 0, or the number of a worker."""
        return labels.get(_INDEX_LABEL, "0")

    def decides(self, role: str) -> bool:
        """Tell that a Job ends with its pod."""
        return True


def _of_workers(workers: Replica, ttl_seconds: int) -> dict[str, Any]:
    wrong = {"containerName": STEP_JOB.container, "operator": "In", "values": [CONFIGURATION]}
    return {
        "backoffLimit": _LOST_PODS * workers.count,
        "completionMode": "Indexed",
        "completions": workers.count,
        "parallelism": workers.count,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": wrong},
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
            ]
        },
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": ttl_seconds,
        "template": workers.template,
    }


STEP_JOB = _StepJob(
    name="Job",
    plural="jobs",
    replicas_key="template",
    roles={"prepare": "prepare", "evaluate": "evaluate", WORKER: WORKER},
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
