"""Checks what the Jobs of `pod.prepare`, `pod.evaluate` and `data_options.workers` need."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kfp_tfjob.cluster import capacity, quota, rights
from kfp_tfjob.cluster.backend import JobExistsError
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ForbiddenError
from kfp_tfjob.components.launch_tfjob.findings import Findings
from kfp_tfjob.components.prepare_data.executors.worker_job import WorkerJob, worker_job
from kfp_tfjob.components.step_job import StepJob, of_options
from kfp_tfjob.components.step_job_run import TO_INSTALL
from kfp_tfjob.jobs.status import replicas
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.options.pod import OWN_PODS, PodOptions
from kfp_tfjob.storage.errors import Problem, StepError
from kfp_tfjob.storage.words import counted

log = logging.getLogger(__name__)


def asked_for(pod: PodOptions, storage_secret: str = "", workers: int = 0) -> list[StepJob]:
    """Return the Jobs that a run asks for.

    Args:
        pod: The typed form of `pod`.
        storage_secret: As in the form.
        workers: As in `data_options`; with workers, `pod.prepare` is about their pods.
    """
    several = worker_job(pod, workers, storage_secret)
    alone = [of_options(name, pod, storage_secret) for name in OWN_PODS]
    found = [several, *(job for job in alone if not (several and job and job.name == several.name))]
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
    needed = needed_for(jobs)
    part = "workers" if needed == rights.TO_RUN_WORKERS else "jobs"
    for lacking in rights.missing(api, needed):
        (right,) = (item for item in needed if item.resource == lacking.resource)
        yield Problem(
            f"{names} needs rights on {lacking.resource} that the service account lacks",
            received=f"no {', '.join(lacking.verbs)} in namespace {api.namespace}",
            expected=f"{right} of the API group {lacking.group or 'core'}",
            fix=f"ask an administrator to run `{TO_INSTALL.replace('jobs', part)}` for this"
            f" namespace and this account, or to apply deploy/optional/{part}; or remove {names}",
            path=jobs[0].asked_by,
        )


def needed_for(jobs: Sequence[StepJob]) -> Sequence[rights.Right]:
    """Return the rights that these Jobs need; there is at least one."""
    several = any(isinstance(job, WorkerJob) for job in jobs)
    return rights.TO_RUN_WORKERS if several else (rights.TO_RUN_STEP_JOBS,)


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
            if job.pods > 1:
                asks += f" for {counted(job.pods, 'worker')}"
            # Fewer workers do the same work.
            if wanted <= total or wanted / job.pods <= total < wanted:
                one = "its pod" if job.pods == 1 else "some of them"
                yield f"{asks}, and quota {name} has {most} left: {one} would wait"
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
