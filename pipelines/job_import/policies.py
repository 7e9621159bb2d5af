"""The policies of a job, and the options of a run that take their place.

A policy tells an operator how to react to a failure or a finished job. In a run, the launcher does
that, so most policies lack an equivalent and get a note. Called by `conversion.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .report import Report
from .source_job import SourceJob

OPTIONS = ("train_options",)
_SHORTEST_TTL = 60  # seconds; the least that train_options.ttl_seconds accepts
_LONGEST = 365 * 24 * 3600  # seconds; the most that train_options.deadline_seconds accepts
# For each policy, why it is not carried over and its replacement. Before v1, the fields of
# runPolicy were fields of the spec.
_POLICIES = {
    "cleanPodPolicy": (
        "a run deletes running pods when its chief ends, so none keeps a GPU, and finished pods"
        " stay for train_options.ttl_seconds",
        "the replicas' logs are stored with the run: kfp-tfjob logs RUN",
    ),
    "backoffLimit": (
        "Kubernetes restarts nothing in a run's job",
        "after a failure of the infrastructure, the run starts all replicas again (max_attempts)",
    ),
    "schedulingPolicy": (
        "a run makes no PodGroup",
        "pod.all.queue for Kueue, or pod.all.scheduler",
    ),
    "suspend": (
        "a run's job starts at once",
        "pod.all.queue, with which Kueue suspends it until it has room",
    ),
    "managedBy": ("a run's job belongs to the controller of its kind", ""),
    "elasticPolicy": (
        "a run has a fixed number of replicas, because its result must not depend on the cluster",
        "the job's replicas, as one chief and train_workers. After a lost replica, all start again",
    ),
    "nprocPerNode": ("it is a variable of torchrun", "PET_NPROC_PER_NODE in pod.all.env"),
    "failurePolicy": (
        "Kubernetes restarts nothing in a run's job",
        "after a failure of the infrastructure, the run starts all replicas again (max_attempts)",
    ),
    "network": ("a run gives its pods names that resolve", ""),
    "coordinator": ("a run's chief is the coordinator", "MASTER_ADDR"),
    "startupPolicy": (
        "all replicas of a run start together",
        "the supervisor waits until the chief's name resolves",
    ),
}
_TTL, _DEADLINE = "ttlSecondsAfterFinished", "activeDeadlineSeconds"


def report_policies(job: SourceJob, report: Report) -> dict[str, Any]:
    """Return the train options for a job's policies, and note the policies without one."""
    options: dict[str, Any] = {}
    deadline = job.chief.template.spec.active_deadline_seconds
    for path, value in job.policies.items():
        name = path.rpartition(".")[2]
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if name == _TTL and is_number:
            options["ttl_seconds"] = max(value, _SHORTEST_TTL)
        elif name == _DEADLINE and is_number:
            deadline = value
        elif name == "enableDynamicWorker" and value:
            report.refuse(
                path, value, "replicas that all see the whole TF_CONFIG", "remove the field"
            )
        elif name == "successPolicy":
            _report_success(path, value, report)
        elif value is False or value is None:
            continue
        else:
            suffix = f": {value}" if isinstance(value, str | int) else ""
            reason, instead = _POLICIES.get(name, ("a run has no such setting", ""))
            report.note(f"{path}{suffix}", reason, instead, OPTIONS)
    if deadline:
        options["deadline_seconds"] = min(deadline, _LONGEST)
    return options


def _report_success(path: str, value: Any, report: Report) -> None:
    if value in ("", "ChiefWorker"):
        return
    policy = value.get("operator", "") if isinstance(value, Mapping) else value
    report.note(
        f"{path}: {policy}",
        "a run ends when its chief ends, and then stops the other replicas",
        "let the chief's program wait for the others, as all-reduce does",
        OPTIONS,
    )
