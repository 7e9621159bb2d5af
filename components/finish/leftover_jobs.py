"""Ends the jobs that a run left on the cluster, and collects its pods' reports.

The exit task starts up to half a minute after Terminate, and its inputs are not reliable. So it
reads the jobs, found by the run's label, and its own Workflow. Called by finish's engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.attempt_record import AttemptEnd, end_of, pods_of
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.jobs.job_diagnosis import judge
from kfp_tfjob.jobs.kinds import DEFAULT, KINDS, kind_of
from kfp_tfjob.jobs.labels import ATTEMPT_LABEL, RUN_LABEL, run_label
from kfp_tfjob.jobs.log_masking import hide
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import cancel_grace, is_being_deleted, is_over, replica_of
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.options.parameter_masking import secrets_in_job
from kfp_tfjob.options.train import TrainOptions

from .workflow import FailedTask, cause, read_failed_tasks

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

log = logging.getLogger(__name__)

_API_SECONDS = 60.0  # longer than a restart of the API server; a user waits for this report
_SHOWN_LINES = 12  # as for an attempt that a launcher follows


@dataclass(frozen=True)
class ClusterReport:
    """A run's jobs and failed tasks on the cluster when it ended.

    Attributes:
        ends: Each job's end, according to the cluster.
        cancelled: The jobs that were still running and were ended here.
        terminated: Whether a user ended the run; None if unknown.
        trouble: Why the cluster could not be read; empty if it could.
        failed: The tasks that failed according to Argo, the earliest first.
    """

    ends: Sequence[AttemptEnd] = ()
    cancelled: Sequence[str] = ()
    terminated: bool | None = None
    trouble: str = ""
    failed: Sequence[FailedTask] = ()

    @property
    def cause(self) -> Failure | None:
        """The failure that ended the run, according to the cluster; None if unknown."""
        return cause(self.failed, self.terminated)

    @property
    def is_told(self) -> bool:
        """Whether a step has reported the failure, or the user who ended the run knows of it."""
        return bool(self.terminated) or any(task.record for task in self.failed)

    @property
    def succeeded(self) -> bool:
        """Whether no part of this run is known to have failed or to have been ended."""
        return self.terminated is False and not (self.trouble or self.failed or self.cancelled)

    @property
    def unexplained(self) -> list[FailedTask]:
        """The tasks that failed without their own message; none if a user ended the run."""
        return [] if self.terminated else [task for task in self.failed if not task.record]


def end_jobs(run_id: str) -> ClusterReport:
    """End every job of a run that is still running, and return its failed tasks; never raises."""
    from kfp_tfjob.checks.subject import open_cluster
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

    try:
        api = open_cluster(_API_SECONDS, DEFAULT)
    except StepError as error:
        log.warning("cannot reach the cluster: %s", error)
        return ClusterReport(trouble=str(error))
    with KubernetesBackend(api) as backend:
        try:
            report = _end_jobs_of_every_kind(api, run_id)
        except StepError as error:
            log.warning("cannot list the run's jobs: %s", error)
            report = ClusterReport(trouble=str(error))
        failed, is_read = failed_on(api, backend, run_id)
        trouble = report.trouble or ("" if is_read else "the run's Workflow cannot be read")
        return replace(report, trouble=trouble, failed=failed)


def _end_jobs_of_every_kind(api: ClusterClient, run_id: str) -> ClusterReport:
    """End the run's jobs of every kind that this cluster has and this account may list."""
    from kfp_tfjob.cluster.api_errors import ForbiddenError, NotFoundError
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

    reports, refused = [], []
    for kind in KINDS:
        with KubernetesBackend(api.of(kind)) as backend:
            try:
                reports.append(end_jobs_on(backend, run_id))
            except (ForbiddenError, NotFoundError) as error:
                refused.append(error)
    if not reports:
        raise refused[0]
    ends = [end for report in reports for end in report.ends]
    if not ends:
        for error in refused:
            if isinstance(error, NotFoundError):
                continue  # this kind's operator is not installed
            log.warning("the run may have jobs that cannot be listed: %s", error)
    return ClusterReport(
        ends, [name for report in reports for name in report.cancelled], reports[0].terminated
    )


def failed_on(
    api: ClusterClient, backend: KubernetesBackend, run_id: str
) -> tuple[list[FailedTask], bool]:
    """Return the run's failed tasks, and whether its Workflow was read; never raises."""
    try:
        owner = backend.owner()
    except StepError as error:
        log.warning("cannot find the run's Workflow: %s", error)
        return read_failed_tasks(api, run_id, "", backend.tail)[0], False
    return read_failed_tasks(api, run_id, owner["name"] if owner else "", backend.tail)


def end_jobs_on(backend: KubernetesBackend, run_id: str) -> ClusterReport:
    """End every job of a run that is still running."""
    terminated = backend.is_terminated()
    jobs = sorted(backend.jobs_of(f"{RUN_LABEL}={run_label(run_id)}"), key=_attempt)
    running = [job for job in jobs if not is_over(job) and not is_being_deleted(job)]
    ends = []
    for job in jobs:
        hide(secrets_in_job(job.get("spec")))
        ends.append(_end(backend, job, job in running))
    for job in running:
        seconds = cancel_grace(job, TrainOptions().cancel_grace_seconds)
        name = job["metadata"]["name"]
        log.info("%s is still running; stopping it within %d s", name, seconds)
        backend.cancel(name, run_label(run_id), seconds)
    return ClusterReport(tuple(ends), tuple(job["metadata"]["name"] for job in running), terminated)


def _end(backend: KubernetesBackend, job: Object, running: bool) -> AttemptEnd:
    name = job["metadata"]["name"]
    pods = backend.pods(name)
    names = {replica_of(pod): pod["metadata"]["name"] for pod in pods}
    judgement = judge(job, pods)
    if running:
        judgement = Judgement(Verdict.CANCELLED, "the job was still running when the run ended")

    def last_lines(replica: str, container: str) -> list[str]:
        return backend.tail(names[replica], container, _SHOWN_LINES)

    return end_of(_attempt(job), kind_of(job), job, name, judgement, pods_of(pods, last_lines))


def _attempt(job: Object) -> int:
    return int(job["metadata"]["labels"].get(ATTEMPT_LABEL, 0))
