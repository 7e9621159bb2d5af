"""Checks what the whole cluster offers: its version, and the kind of the job."""

from __future__ import annotations

from collections.abc import Iterator

from kfp_tfjob.checks.finding import Finding, ok, warning
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster import support
from kfp_tfjob.cluster.errors import ClusterUnavailableError, ForbiddenError


def version(subject: Subject) -> Iterator[Finding]:
    """Tell whether the cluster answers, and whether its version can run the job."""
    host = subject.api.address
    try:
        found = subject.api.request("GET", "/version", {})
    except ClusterUnavailableError as error:
        why = error.__cause__
        refused = getattr(why, "status", None) == 401
        yield Finding(
            f"Kubernetes at {host} does not {'accept your credentials' if refused else 'answer'}",
            received=why,
            fix="log in again, and check that `kubectl get pods` works"
            if refused
            else "check the context of your kubeconfig, and the network or VPN to the cluster",
        )
        return
    problems = [Finding.of(it) for it in support.too_old(found)]
    yield from problems or [ok(f"Kubernetes {found.get('gitVersion', '?')} at {host}")]


def job_kind(subject: Subject) -> Iterator[Finding]:
    """Create the job as a dry run: CRD, webhook and schema decide."""
    subject = subject.settled
    api = subject.api
    try:
        problems = [Finding.of(it) for it in support.try_job(api, subject.job)]
    except ForbiddenError:
        if support.serves(api):
            raise
        problems = [Finding.of(support.absent(api.kind, "no such API"))]
    yield from problems or [ok(f"{api.kind.called} accepts the {api.kind.name} (dry run)")]
    queue = subject.spec.pod.all.queue
    if queue and not problems and not support.is_held(api, subject.job):
        name = f"{api.kind.group}/{api.kind.name.lower()}"
        yield warning(
            f"the {api.kind.name} would start without waiting in queue {queue}: Kueue does not"
            f" manage {api.kind.name}s on this cluster",
            f"ask an administrator to add {name} to integrations.frameworks in Kueue's"
            " configuration, or set train_options.job to a kind that it manages",
        )
