"""Runs the Job of a step: creates or adopts it, follows its pod, and judges how it ended.

1. A Job of an earlier try of the step is adopted, if it does the same work; any other is deleted
   first, and its pod with it, so that no two pods work at the same time.
2. The lines of the pod are printed, and its waiting is limited.
3. The Job is deleted as soon as it has ended. A pod that was taken from its node is replaced, twice
   at most. Any other failure becomes the failure of the step.

A step that is killed leaves its Job running for the next try, as a launcher does; the end of the
run ends it (docs/architecture.md).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_tfjob.components.step import Failure, Step
from kfp_tfjob.components.step_job import GRACE_SECONDS, NUMBER_LABEL, StepJob, wanted
from kfp_tfjob.components.step_job_pod import place_of, told
from kfp_tfjob.jobs.labels import HASH_ANNOTATION, KEY_LABEL, RUN_LABEL, TASK_LABEL, run_label
from kfp_tfjob.jobs.masking import hide
from kfp_tfjob.jobs.secret_values import secrets_in
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

if TYPE_CHECKING:
    from kfp_tfjob.cluster.backend import Object
    from kfp_tfjob.cluster.follower import Follower
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

log = logging.getLogger(__name__)

# Does work with these inputs in a pod of its own, and returns the uid of the Job that did it.
Elsewhere = Callable[[Mapping[str, Any]], str]
TO_INSTALL = "kfp-tfjob install --with jobs --apply"
_TRIES = 3
_CLOSING_SECONDS = 10.0
_SHOWN_LINES = 12
_LINES = 50  # among them the record of a failure that is too long for a termination message


class WorkFailedError(StepError):
    """The work failed in its pod; code and verdict are those of the pod."""

    def __init__(self, code: int, verdict: str, problem: Problem | str) -> None:
        super().__init__(problem)
        self.code = code  # type: ignore[misc]
        self.verdict = verdict  # type: ignore[misc]


def in_own_pod(
    step: Step,
    name: str,
    pod: Mapping[str, Any],
    storage_secret: str,
    output_uri: str,
    storage_endpoint: str,
    storage_region: str,
) -> Elsewhere | None:
    """Return what does the work of a step in a pod of its own; None to do it in this process.

    Args:
        step: The context of the step.
        name: The key of `pod`: `prepare` or `evaluate`.
        pod: As in the form, like all that follow.
        storage_secret: Name of the Secret.
        output_uri: Where everything goes.
        storage_endpoint: URL of the store.
        storage_region: Region of the store.

    Raises:
        ConfigurationError: `pod` is wrong.
    """
    job = wanted(name, pod, storage_secret, step.name)
    if job is None:
        return None
    hide(secrets_in(pod))  # the pod has these variables, and its lines are printed
    place = place_of(step, storage_endpoint, storage_region, output_uri)
    return lambda inputs: _run(step, job, {**place, **inputs})


def _run(step: Step, job: StepJob, inputs: Mapping[str, Any]) -> str:
    from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

    with KubernetesBackend(ClusterClient.from_environment(PATIENCE, STEP_JOB)) as backend:
        owner = backend.owner()
        with backend.watch_workflow(step.run_id, owner, GRACE_SECONDS, lambda _: None) as ended:
            return StepJobRun(step, job, inputs, backend, owner, ended).run()


@dataclass
class StepJobRun:
    """The Jobs of one try of a step.

    Attributes:
        step: The run and its store.
        job: The work.
        inputs: What the pod works on.
        backend: The cluster.
        owner: The ownerReference of the Job, or None.
        ended: Returns why the whole run ended; empty while it has not.
        clock: A monotonic clock; tests replace it.
    """

    step: Step
    job: StepJob
    inputs: Mapping[str, Any]
    backend: KubernetesBackend
    owner: Mapping[str, Any] | None = None
    ended: Callable[[], str] = field(default=lambda: "", repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _number: int = 1

    def run(self) -> str:
        """Do the work; return the uid of the Job whose pod has done it.

        Raises:
            WorkFailedError: The work failed; with code, verdict and message of the pod.
            ConfigurationError: The cluster refuses the Job, or one of its name is not ours.
            ClusterUnavailableError: The API server was unreachable for too long; the Job continues.
        """
        name = self._adopted()
        for left in reversed(range(_TRIES)):
            name = name or self._created()
            uid, judgement, failure, words = self._follow(name)
            if judgement.verdict == Verdict.SUCCEEDED:
                self.backend.discard(name)
                return uid
            self._delete(name)
            if failure:
                raise WorkFailedError(failure.code, failure.verdict, failure.message)
            error = self._error(judgement, words)
            if judgement.verdict != Verdict.LOST or not left:
                raise error
            log.warning("%s: %s; a new pod takes over", name, error)
            name, self._number = "", self._number + 1
        raise AssertionError("the last try returns or raises")

    def _adopted(self) -> str:
        """Return the name of the Job of an earlier try that does this work; delete all others.

        Raises:
            ConfigurationError: A different Workflow owns a Job of this run.
        """
        run = run_label(self.step.run_id)
        found = [
            job
            for job in self._listed(f"{RUN_LABEL}={run},{TASK_LABEL}={self.job.task}")
            if job["metadata"]["labels"].get(KEY_LABEL, "") == self.step.task_key
        ]
        name = ""
        for job in sorted(found, key=_number, reverse=True):
            metadata = job["metadata"]
            self._number = max(self._number, _number(job) + 1)
            ours = self._manifest(_number(job))["metadata"]
            _refuse_others(metadata, ours)
            alike = _hash(metadata) == _hash(ours) and not metadata.get("deletionTimestamp")
            if alike and not name:
                name = metadata["name"]
                log.info("%s of an earlier try is adopted", name)
            else:
                log.info("%s of an earlier try is deleted", metadata["name"])
                self.backend.delete(metadata["name"])
        return name

    def _listed(self, selector: str) -> list[Object]:
        from kfp_tfjob.cluster.errors import ForbiddenError

        try:
            return self.backend.jobs_of(selector)
        except ForbiddenError as error:
            raise self._no_right(error) from error

    def _created(self) -> str:
        """Create the next Job, and return its name."""
        from kfp_tfjob.cluster.backend import JobExistsError
        from kfp_tfjob.cluster.errors import ForbiddenError

        manifest = self._manifest(self._number)
        name = manifest["metadata"]["name"]
        if why := self.ended():
            raise self._error(_cancelled(why), [])
        settings = self.job.settings
        log.info("creating Job %s: %s CPU, %s of memory", name, settings.cpu, settings.memory)
        try:
            self.backend.create(manifest)
        except ForbiddenError as error:
            raise self._no_right(error) from error
        except JobExistsError:
            there = self.backend.get(name)
            if there and _hash(there["metadata"]) != _hash(manifest["metadata"]):
                _refuse_others(there["metadata"], {})
            log.info("%s exists already and is adopted", name)
        return name

    def _manifest(self, number: int) -> dict[str, Any]:
        return self.job.manifest(
            self.step.run_id, number, self.inputs, self.step.task_key, self.owner
        )

    def _follow(self, name: str) -> tuple[str, Judgement, Failure | None, list[str]]:
        """Follow a Job to its end, or to the end of a limit.

        Returns:
            Its uid, the judgement, what its pod has told, and the last lines of the pod.
        """
        from kfp_tfjob.cluster.follower import Follower
        from kfp_tfjob.components.step_job_limits import StepJobLimits
        from kfp_tfjob.jobs.judge import judge
        from kfp_tfjob.jobs.status import is_being_deleted, is_over

        follower = Follower(self.backend, name)
        follower.start()
        limits = StepJobLimits(self.job, self.clock)
        uid, given_up = "", None
        while given_up is None:
            job = follower.look()
            uid = job["metadata"]["uid"] if job else uid
            if job is None or is_over(job) or is_being_deleted(job):
                break
            given_up = limits.look(job, follower.pods, follower.events)
            if given_up is None:
                self.backend.wait_for_change(name, min(follower.pause, limits.next_limit))
        judgement = given_up or limits.explained(judge(job, follower.pods), job)
        if (why := self.ended()) and judgement.verdict != Verdict.SUCCEEDED:
            judgement = _cancelled(why)
        if given_up:
            self._delete(name)  # its pod may run on and print, and the lines would never end
        follower.finish(_CLOSING_SECONDS)
        replica = judgement.cause.replica if judgement.cause else f"{self.job.name}-0"
        where = STEP_JOB.log_name(replica, STEP_JOB.container)
        lines = follower.last_lines(where, _LINES)
        failure = told(_message(follower), lines) if judgement.cause else None
        return uid, judgement, failure, lines[-_SHOWN_LINES:]

    def _delete(self, name: str) -> None:
        try:
            self.backend.delete(name)
        except StepError as error:
            log.warning("Job %s could not be deleted: %s", name, error)

    def _error(self, judgement: Judgement, words: list[str]) -> WorkFailedError:
        what = judgement.sentence.replace(f"{self.job.name}-0", f"the pod of {self.job.step}")
        message = str(Problem(what, fix=judgement.remedy))
        if words:
            message += "\n".join([" Its last lines:", *(f"    {line}" for line in words)])
        return WorkFailedError(judgement.code, str(judgement.verdict), message)

    def _no_right(self, error: StepError) -> ConfigurationError:
        first = error.problems[0]
        return ConfigurationError(
            Problem(
                f"pod.{self.job.name} needs the right to run Jobs",
                received=first.received if isinstance(first, Problem) else first,
                expected="a service account with the rights of deploy/optional/jobs",
                fix=f"ask an administrator to run `{TO_INSTALL}` for this namespace and account, or"
                f" remove pod.{self.job.name}",
                path=f"pod.{self.job.name}",
            )
        )


def _number(job: Mapping[str, Any]) -> int:
    return int(job["metadata"]["labels"].get(NUMBER_LABEL, 0))


def _hash(metadata: Mapping[str, Any]) -> str | None:
    return (metadata.get("annotations") or {}).get(HASH_ANNOTATION)


def _workflow(metadata: Mapping[str, Any]) -> str:
    references = metadata.get("ownerReferences") or []
    return next((item["uid"] for item in references if item["kind"] == "Workflow"), "")


def _refuse_others(there: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a Job of a different Workflow, or any if `ours` is empty.

    Raises:
        ConfigurationError: It is not ours.
    """
    theirs, own = _workflow(there), _workflow(ours)
    if ours and not (theirs and own and theirs != own):
        return
    raise ConfigurationError(
        Problem(
            f"Job {there['name']} exists already, and this run did not create it",
            received="a different owner or spec",
            expected="the same run, Workflow and spec hash",
            fix="start a new run, or delete that Job if it is not needed",
        )
    )


def _cancelled(why: str) -> Judgement:
    fix = "start it again, or retry it"
    return Judgement(Verdict.CANCELLED, f"the run was ended: {why}", fix=fix)


def _message(follower: Follower) -> str:
    """Return the termination message of the last pod that has one."""
    for pod in reversed(follower.pods):
        for item in pod["status"].get("containerStatuses") or []:
            ended = (item.get("state") or {}).get("terminated") or {}
            if ended.get("message"):
                return str(ended["message"])
    return ""
