"""Checks what the Jobs of `pod.prepare` and `pod.evaluate` need."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_tfjob.cluster import capacity, quota, rights
from kfp_tfjob.cluster.backend import JobExistsError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.components.launch_tfjob.findings import Findings
from kfp_tfjob.components.step_job import StepJob, of_options
from kfp_tfjob.components.step_job_run import TO_INSTALL
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.options.pod import OWN_PODS, PodOptions
from kfp_tfjob.storage.errors import Problem, StepError

log = logging.getLogger(__name__)


def asked_for(pod: PodOptions, storage_secret: str = "") -> list[StepJob]:
    """Return the Jobs that a run asks for.

    Args:
        pod: The typed form of `pod`.
        storage_secret: As in the form.
    """
    found = (of_options(name, pod, storage_secret) for name in OWN_PODS)
    return [job for job in found if job]


def check(api: ClusterClient, jobs: list[StepJob], run_id: str, task_key: str = "") -> Findings:
    """Run every check, even after the first problem.

    Args:
        api: The cluster, with the patience of a person.
        jobs: Those that `pod` asks for; without any, nothing is asked.
        run_id: The run.
        task_key: The key of the task; usually empty.
    """
    problems: list[Problem | str] = []
    warnings: list[str] = []
    if jobs:
        api = api.of(STEP_JOB)
        try:
            problems += _rights(api, jobs)
        except StepError as error:
            problems += error.problems
    for job in jobs if not problems else ():
        manifest = job.manifest(run_id, 1, {}, task_key)
        try:
            problems += _try(api, manifest)
            for found in (*compared(api, job, manifest), *_room(api, job, manifest)):
                (warnings if isinstance(found, str) else problems).append(found)
        except StepError as error:
            problems += error.problems
    for warning in warnings:
        log.warning("%s", warning)
    return Findings(problems, warnings)


def _rights(api: ClusterClient, jobs: list[StepJob]) -> Iterator[Problem]:
    names = " and ".join(job.asked_by for job in jobs)
    needed = rights.TO_RUN_STEP_JOBS
    for lacking in rights.missing(api, (needed,)):
        yield Problem(
            f"{names} needs rights on {lacking.resource} that the service account lacks",
            received=f"no {', '.join(lacking.verbs)} in namespace {api.namespace}",
            expected=f"{needed} of the API group {lacking.group or 'core'}",
            fix=f"ask an administrator to run `{TO_INSTALL}` for this namespace and this"
            f" account, or to apply deploy/optional/jobs; or remove {names}",
            path=jobs[0].asked_by,
        )


def _try(api: ClusterClient, manifest: Mapping[str, Any]) -> list[Problem]:
    """Create the Job as a dry run.

    Raises:
        JobRefusedError: The cluster does not accept it.
    """
    try:
        api.request("POST", api.jobs(), {"dryRun": "All"}, manifest)
    except (JobExistsError, ForbiddenError):
        pass  # a retry of the run; or reported above
    return []


def compared(
    api: ClusterClient, job: StepJob, manifest: Mapping[str, Any]
) -> Iterator[Problem | str]:
    """Compare the pod with the quotas of the namespace, if this account may list them."""
    try:
        found = api.list(api.core("resourcequotas"))
    except ForbiddenError:
        return
    needed = quota.use_of(manifest)
    for item in found:
        if item["spec"].get("scopes") or item["spec"].get("scopeSelector"):
            continue  # it counts only some pods
        name = item["metadata"]["name"]
        for resource, (free, total) in quota.left(item).items():
            wanted = needed.get(resource, 0)
            if wanted <= free:
                continue
            most = capacity.shown(resource, total if wanted > total else free)
            asks = f"pod.{job.name} asks for {capacity.shown(resource, wanted)} {resource}"
            if wanted <= total:
                yield f"{asks}, and quota {name} has {most} left: its pod would wait"
                continue
            yield Problem(
                f"quota {name} can never admit the pod of {job.step}",
                received=asks,
                expected=f"at most {most} {resource}",
                fix=f"lower pod.{job.name}, or have the ResourceQuota raised",
                path=f"pod.{job.name}",
            )


def _room(api: ClusterClient, job: StepJob, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Compare the pod with the nodes; without the right to list them there is no warning."""
    try:
        nodes = api.list("/api/v1/nodes")
    except ForbiddenError:
        return
    yield from too_large(job, manifest, nodes)


def too_large(
    job: StepJob, manifest: Mapping[str, Any], nodes: list[dict[str, Any]]
) -> Iterator[str]:
    """Say why no node fits the pod; a node that fits may still appear."""
    (one,) = replicas(manifest)
    asked = capacity.of_pod(one.pod)
    fitting = [node for node in nodes if capacity.fits(node, one.pod)]
    if not nodes or capacity.room(fitting, asked):
        return
    if not fitting:
        yield (
            f"no current node fits the node selector and tolerations of pod.{job.name}: its pod"
            " will wait for nodes"
        )
        return
    small = "; ".join(
        f"{capacity.shown(name, asked[name])} {name} requested, and the largest node that fits can"
        f" allocate {capacity.shown(name, largest)}"
        for name, (largest, _) in capacity.too_much(fitting, asked).items()
    )
    yield (
        f"pod.{job.name} fits on no current node: {small or 'no node has all of it at once'}; its"
        " pod will wait for nodes"
    )
