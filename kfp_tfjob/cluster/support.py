"""Checks that a cluster supports the jobs: its version, the operator, and its CRD."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from kfp_tfjob.cluster.backend import JobExistsError, JobRefusedError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import (
    ClusterUnavailableError,
    ForbiddenError,
    NotFoundError,
    webhook_is_away,
)
from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.kinds import AUTOMATIC
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.storage.errors import ConfigurationError, Problem


def too_old(version: Mapping[str, str]) -> Iterator[Problem]:
    """Refuse a cluster without native sidecars: the uploader would block training."""
    number = [re.sub(r"\D.*", "", str(version.get(part, ""))) for part in ("major", "minor")]
    if all(number) and tuple(map(int, number)) < (1, 29):
        yield Problem(
            "this cluster is too old",
            received=f"Kubernetes {'.'.join(number)}, which has no native sidecars",
            expected="Kubernetes 1.29 or later",
            fix="upgrade the cluster; otherwise, the trainer would wait for the uploader to end",
        )


def serves(api: ClusterClient) -> bool:
    """Tell whether the cluster has the kind of the jobs."""
    try:
        found = api.request("GET", f"/apis/{api.kind.api_version}", {})
    except NotFoundError:
        return False
    return any(item["name"] == api.kind.plural for item in found.get("resources", ()))


def absent(kind: JobKind, received: str) -> Problem:
    """Return the problem of a cluster that does not have a kind of job."""
    return Problem(
        f"this cluster does not support {kind.name}s",
        received=received,
        expected=kind.controller,
        fix="ask an administrator to install it",
    )


def try_job(api: ClusterClient, manifest: Object) -> Iterator[Problem]:
    """Create a job as a dry run, which checks schema, webhook and quota."""
    try:
        kept = _dry_run(api, manifest)
    except JobExistsError:
        return  # a retry: the job already exists
    except NotFoundError as error:
        yield absent(api.kind, str(error))
        return
    except ClusterUnavailableError as error:
        if not webhook_is_away(error.__cause__):
            raise
        yield Problem(
            f"{api.kind.called} does not answer",
            received=str(error.__cause__),
            expected="an answer to the dry run",
            fix=f"check {api.kind.deployment}",
        )
        return
    chief = next(item.pod for item in replicas(kept) if item.role == CHIEF)
    if not any(item.get("restartPolicy") for item in chief["initContainers"]):
        yield Problem(
            f"this cluster's CRD for {api.kind.name}s is too old",
            received="it drops initContainers[].restartPolicy, so the sidecar would never start",
            expected=f"the CRD of {api.kind.controller.removeprefix('the Kubeflow ')}",
            fix="apply that release's CRDs with `kubectl apply --server-side`",
        )


def is_held(api: ClusterClient, manifest: Object) -> bool:
    """Tell whether a queue would suspend a job, by creating it as a dry run."""
    try:
        return api.kind.suspends(_dry_run(api, manifest))
    except JobExistsError:
        return True  # a retry


def choose(api: ClusterClient, manifest: Callable[[JobKind], Object]) -> JobKind:
    """Return the first kind of AUTOMATIC that the cluster runs, by creating a job as a dry run.

    With a queue, it is the kind whose job comes back suspended: the queue manages that one.
    """
    found: list[JobKind] = []
    forbidden: list[JobKind] = []
    missing: list[str] = []
    for kind in AUTOMATIC:
        job = manifest(kind)
        try:
            kept = _dry_run(api.of(kind), job)
        except (JobExistsError, JobRefusedError):
            return kind  # its controller answers; other checks report the refusal
        except ForbiddenError:
            forbidden.append(kind)
        except NotFoundError as error:
            missing.append(str(error))
        except ClusterUnavailableError as error:
            if not webhook_is_away(error.__cause__):
                raise
            missing.append(f"{kind.called} does not answer")
        else:
            if kind.suspends(kept) or not _is_queued(job):
                return kind
            found.append(kind)
    if found or forbidden:
        return (found or forbidden)[0]
    ways = ", or ".join(f"{kind.controller}, `{kind.install}`" for kind in AUTOMATIC)
    raise ConfigurationError(
        Problem(
            f"this cluster runs neither {' nor '.join(f'{kind.name}s' for kind in AUTOMATIC)}",
            received="; ".join(missing),
            expected=" or ".join(kind.controller for kind in AUTOMATIC),
            fix=f"ask an administrator to install {ways}",
        )
    )


def _dry_run(api: ClusterClient, manifest: Object) -> Object:
    """Return a job as the cluster would keep it."""
    return api.request("POST", api.jobs(), {"dryRun": "All"}, manifest)


def _is_queued(job: Object) -> bool:
    return QUEUE_LABEL in job["metadata"]["labels"]
