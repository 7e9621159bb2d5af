"""Jobs and pods as an API server has them, and a client of such a server."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubernetes.client import Configuration

from kfp_tfjob.cluster.client import ClusterClient, connect
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.tfjob import TFJOB
from tests.unit.launch_parameters import DEFAULTS, RUN_ID


def client_of(address: str = "http://127.0.0.1:1") -> ClusterClient:
    return ClusterClient(connect(Configuration(host=address)), "team-a")


def manifest(
    parameters: Mapping[str, Any] = DEFAULTS, kind: JobKind = TFJOB, attempt: int = 1, **who: Any
) -> dict[str, Any]:
    """Return the job of a run with these parameters; `who` is for its identity."""
    spec = replace(JobSpec.parse(**parameters), kind=kind)
    return build_job(spec, Identity(RUN_ID, attempt, **who))


def pod(
    replica: str,
    code: int | None = None,
    at: int = 0,
    container: str = "tensorflow",
    kind: JobKind = TFJOB,
    killed: str = "Error",
    **status: Any,
) -> dict[str, Any]:
    """Return a pod that runs, or whose container ended with a code at a second."""
    role, index = replica.split("-")
    ended = {"exitCode": code, "reason": killed, "finishedAt": f"2026-01-01T00:00:{at:02d}Z"}
    state = {"running": {}} if code is None else {"terminated": ended}
    group = "initContainerStatuses" if container in ("setup", "uploader") else "containerStatuses"
    phase = "Running" if code is None else "Failed" if code else "Succeeded"
    name, labels = kind.pod_name("j", role, int(index)), kind.pod_labels("j", role, int(index))
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, group: [{"name": container, "state": state}]} | status,
    }
