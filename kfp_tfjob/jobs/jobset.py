"""Describes a JobSet, which needs no training operator: one Indexed Job for each role.

A JobSet never restarts its pods, because new attempts are the launcher's task. Its conditions do
not contain exit codes, and it deletes its pods at every end. So a verdict is based on the last
states of the pods that the launcher has read. Called through the list in `kinds.py`, and by
`kfp-tfjob import`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .kind import CHIEF, TF_CONFIG, JobKind, Replica
from .objects import Object

_LABEL = "jobset.sigs.k8s.io/"
_PORT = 2222  # as in TFJob, so that programs find the same TF_CONFIG
# A drained or preempted pod is not replaced: the next attempt begins with all replicas.
_DISRUPTION = {
    "action": "FailJob",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


class _JobSet(JobKind):
    def sets(self, name: str, role: str, counts: Mapping[str, int]) -> list[Object]:
        """Return the variables with the pods' names behind the JobSet's headless Service."""
        return self._topology(
            lambda pod_role: f"{self.pod_name(name, pod_role, 0)[:-1]}{{}}.{name}:{_PORT}",
            role,
            counts,
        )

    def spec(self, replicas: Sequence[Replica], ttl_seconds: int) -> Object:
        """Return the spec of a JobSet that ends with its chief, and with the first failure."""
        return {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            self.replicas_key: [
                {"name": replica.role, "replicas": 1, "template": {"spec": _job_spec(replica)}}
                for replica in replicas
                if replica.count
            ],
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [CHIEF]},
            "ttlSecondsAfterFinished": ttl_seconds,
        }

    def replicas(self, job: Object) -> list[Replica]:
        """Return the roles of a JobSet from `spec`."""
        entries = job["spec"][self.replicas_key]
        specs = {entry["name"]: entry["template"]["spec"] for entry in entries}
        return [
            Replica(role, int(spec["parallelism"]), spec["template"])
            for role, spec in specs.items()
        ]

    def run_policy(self, job: Object) -> Object:
        """Return the spec without the replicas: everything that does not describe pods."""
        return {key: value for key, value in job["spec"].items() if key != self.replicas_key}

    def is_noticed(self, job: Object) -> bool:
        """Return whether the controller has counted the Jobs, which it does in its first pass."""
        return "replicatedJobsStatus" in (job.get("status") or {}) or super().is_noticed(job)

    def creators(self, job: Object) -> list[str]:
        """Return the JobSet and its Jobs, which create the pods."""
        name = job["metadata"]["name"]
        return [name, *(f"{name}-{replica.role}-0" for replica in self.replicas(job))]

    def owns(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pod has the label that every pod of a JobSet has."""
        return self.name_label in labels

    def pod_labels(self, name: str, role: str, index: int) -> dict[str, str]:
        """Return the labels of a pod that this project reads."""
        return {self.name_label: name, self.role_label: role, self.index_label: str(index)}

    def pod_name(self, name: str, role: str, index: int) -> str:
        """Return the hostname of a pod; five letters follow in its name."""
        return f"{name}-{role}-0-{index}"


def _job_spec(replica: Replica) -> Object:
    """Return the spec of a role's Job."""
    template = {**replica.template, "spec": {**replica.pod, "restartPolicy": "Never"}}
    return {
        "backoffLimit": 0,
        "completionMode": "Indexed",
        "completions": replica.count,
        "parallelism": replica.count,
        "podFailurePolicy": {"rules": [_DISRUPTION]},
        "podReplacementPolicy": "Failed",  # not while a pod is still storing its checkpoint
        "template": template,
    }


JOBSET = _JobSet(
    name="JobSet",
    plural="jobsets",
    replicas_key="replicatedJobs",
    roles={role: role for role in ("chief", "worker", "ps", "evaluator")},
    container="tensorflow",
    operator="",
    variables=frozenset({TF_CONFIG}),
    group="jobset.x-k8s.io",
    version="v1alpha2",
    name_label=f"{_LABEL}jobset-name",
    role_label=f"{_LABEL}replicatedjob-name",
    index_label="batch.kubernetes.io/job-completion-index",
    conditions={"succeeded": "Completed", "failed": "Failed", "suspended": "Suspended"},
    prefix="js",
    longest_name=43,  # <job>-evaluator-0-0-abcde and <job>-worker-0-999-abcde
    names_pods=False,
    stops_peers=True,
    controller="JobSet 0.12 or later",
    called="the JobSet controller",
    deployment="its Deployment in the namespace jobset-system",
    install="kubectl apply --server-side -f"
    " https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
)
