"""Checks of the whole cluster: its version, and whether it runs the kind of the job.

The job is created as a dry run, because only the API server knows the CRDs, webhooks and quotas
that decide. Called by `engine.py`, whose table says which program runs which check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kfp_tfjob.cluster.api_errors import (
    ClusterUnavailableError,
    ForbiddenError,
    NotFoundError,
    absent,
    silent,
    webhook_is_away,
)
from kfp_tfjob.cluster.backend import JobExistsError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.status import replicas

from .finding import Finding, ok, warning
from .subject import Subject, dry_run


def version(subject: Subject) -> Iterator[Finding]:
    """Check that the cluster answers and that its version can run the job."""
    host = subject.api.address
    try:
        reply = subject.api.request("GET", "/version", {})
    except ClusterUnavailableError as error:
        # Reported here, because the fix for rejected credentials differs.
        cause = error.__cause__
        refused = getattr(cause, "status", None) == 401
        yield Finding(
            f"Kubernetes at {host} does not {'accept your credentials' if refused else 'respond'}",
            received=cause,
            fix="log in again, and check that `kubectl get pods` works"
            if refused
            else "check the context of your kubeconfig, and the network or VPN to the cluster",
        )
        return
    problems = list(too_old(reply))
    yield from problems or [ok(f"Kubernetes {reply.get('gitVersion', '?')} at {host}")]


def too_old(version: Mapping[str, str]) -> Iterator[Finding]:
    """Reject a cluster without native sidecars, because the uploader would block training."""
    # A provider may write 29+ for the minor version.
    numbers = [re.sub(r"\D.*", "", str(version.get(part, ""))) for part in ("major", "minor")]
    if all(numbers) and tuple(map(int, numbers)) < (1, 29):
        yield Finding(
            "this cluster is too old",
            received=f"Kubernetes {'.'.join(numbers)}, which has no native sidecars",
            expected="Kubernetes 1.29 or later",
            fix="upgrade the cluster; otherwise, the trainer would wait forever for the uploader",
        )


def job_kind(subject: Subject) -> Iterator[Finding]:
    """Create the job as a dry run, so that the CRD, webhooks and quotas accept or reject it."""
    subject = subject.settled
    api, kind = subject.api, subject.api.kind
    accepted = ok(f"{kind.called} accepts the {kind.name} (dry run)")
    try:
        accepted_job = dry_run(api, subject.job)
    except JobExistsError:
        yield accepted  # a retry: the job already exists
        return
    except NotFoundError as error:
        yield Finding.of(absent(kind, str(error)))
        return
    except ForbiddenError:
        # Authorization comes first, so the API server forbids even an API that does not exist.
        if _serves_kind(api):
            raise
        yield Finding.of(absent(kind, "no such API"))
        return
    except ClusterUnavailableError as error:
        if not webhook_is_away(error.__cause__):
            raise
        yield Finding.of(silent(kind, str(error.__cause__)))
        return
    chief = next(replica.pod for replica in replicas(accepted_job) if replica.role == CHIEF)
    if not any(container.get("restartPolicy") for container in chief["initContainers"]):
        yield Finding(
            f"this cluster's CRD for {kind.name}s is too old",
            received="it drops initContainers[].restartPolicy, so the sidecar would never start",
            expected=f"the CRD of {kind.controller.removeprefix('the Kubeflow ')}",
            fix="apply that release's CRDs with `kubectl apply --server-side`",
        )
        return
    yield accepted
    queue = subject.spec.pod.all.queue
    if queue and not kind.suspends(accepted_job):
        yield warning(
            f"the {kind.name} would start without waiting in queue {queue}: Kueue does not"
            f" manage {kind.name}s on this cluster",
            f"ask an administrator to add {kind.group}/{kind.name.lower()} to"
            " integrations.frameworks in Kueue's configuration, or set train_options.job to a kind"
            " that it manages",
        )


def _serves_kind(api: ClusterClient) -> bool:
    """Return whether the cluster has the CRD of the jobs' kind."""
    try:
        group = api.request("GET", f"/apis/{api.kind.api_version}", {})
    except NotFoundError:
        return False
    return any(resource["name"] == api.kind.plural for resource in group.get("resources", ()))
