"""Decides what a launcher does with a job of an earlier start.

A retried or restarted step adopts a running job and trains nothing twice. TABLE lists the reaction
to each state of the job. It depends on who retries, because a user who starts the run again has
fixed the error, and Kubeflow Pipelines has not. Called by the launcher's engine before it claims a
new attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from kfp_tfjob.cluster.log_writer import CLOSING_SECONDS
from kfp_tfjob.common.errors import ConfigurationError, Problem, StepError
from kfp_tfjob.jobs.attempt_record import end_of, read_ends
from kfp_tfjob.jobs.job_diagnosis import judge
from kfp_tfjob.jobs.labels import HASH_ANNOTATION, KEY_LABEL, RUN_LABEL, TASK_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_being_deleted, is_over
from kfp_tfjob.jobs.verdict import JobFailedError, Judgement, Verdict

from .attempt import Attempt, words
from .launch_context import Launch

log = logging.getLogger(__name__)

_LOOK_AGAIN_SECONDS = 1.0  # one request a second, for about a minute at most
_LOST_NODE_SECONDS = 60.0  # a kubelet that runs has ended its pods and reported it by then
_CREATE_SECONDS = 100.0  # one create may take 95; after that, its launcher counts as gone
_UNSEEN = Judgement(
    Verdict.LOST, "it ended while no launcher was running, and its chief left no record"
)


class JobState(StrEnum):
    """The state of the newest attempt of a run."""

    NOTHING = "nothing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED_FOR_NOW = "failed, and the infrastructure was at fault"
    FAILED_FOR_GOOD = "failed, and the user has to fix something"
    BEING_DELETED = "being deleted"
    OTHER_SPEC = "a different spec"
    OTHER_OWNER = "a different owner"


class Action(StrEnum):
    """The reaction of the launcher."""

    CREATE = "claim the next attempt and create its job"
    ADOPT = "follow the job to its end, or record its end"
    REPEAT = "fail with the same verdict"
    WAIT = "look again"
    REFUSE = "leave the job alone and fail"


# For each state, the reaction on a retry by Kubeflow Pipelines, and on a start by a person.
TABLE: dict[JobState, tuple[Action, Action]] = {
    JobState.NOTHING: (Action.CREATE, Action.CREATE),
    JobState.RUNNING: (Action.ADOPT, Action.ADOPT),
    JobState.SUCCEEDED: (Action.ADOPT, Action.ADOPT),
    JobState.FAILED_FOR_NOW: (Action.CREATE, Action.CREATE),
    JobState.FAILED_FOR_GOOD: (Action.REPEAT, Action.CREATE),
    JobState.BEING_DELETED: (Action.WAIT, Action.WAIT),
    JobState.OTHER_SPEC: (Action.REFUSE, Action.REFUSE),
    JobState.OTHER_OWNER: (Action.REFUSE, Action.REFUSE),
}


def adopt(launch: Launch, claimed: Sequence[int], lost: bool = False) -> bool:
    """Return whether the job of the newest attempt must be followed, and wait until that is known.

    Raises:
        JobFailedError: The user has to fix something, and Kubeflow Pipelines retried by itself.
        ConfigurationError: The job of that name does not belong to this run.
    """
    if not claimed:
        return False
    backend, manifest = launch.backend, launch.manifest(claimed[-1])
    name = manifest["metadata"]["name"]
    state_logged, began = False, launch.clock()
    # Attempts have different names and are fenced, so pods of a dead node do no harm.
    grace = float(launch.spec.pod.of("chief").grace_seconds or 0)
    while True:
        job = backend.get(name)
        pods = backend.pods(name) if job else []
        state = job_state(job, pods, manifest)
        action, longest = decide(state, launch.retry or lost), _LOST_NODE_SECONDS + grace
        if lost and state == JobState.NOTHING:  # its launcher is about to create it
            action, longest = Action.WAIT, _CREATE_SECONDS
        if not state_logged:
            log.info("found %s from an earlier start: %s; %s", name, state, action)
            state_logged = True
        if action != Action.WAIT or launch.clock() - began >= longest:
            break
        launch.sleep(_LOOK_AGAIN_SECONDS)
    if action == Action.REFUSE:
        raise foreign_job_error(manifest, state)
    if action == Action.ADOPT:
        return True
    record_end(launch, claimed[-1], _UNSEEN)
    if action == Action.REPEAT:
        judgement = judge(job, pods)
        if end := read_ends(launch.step.store, launch.step.run, claimed[-1:])[claimed[-1]]:
            # Its launcher saw the log, too.
            judgement = replace(judgement, sentence=end.sentence, fix=end.remedy)
        raise judgement.failure(words(judgement, launch.spec.kind.container, lambda *_: []))
    if state == JobState.NOTHING and launch.retry and (earlier := _recorded(launch)):
        raise earlier
    if state == JobState.FAILED_FOR_NOW:
        backend.delete(name)
    return False


def record_end(launch: Launch, attempt: int, unseen: Judgement) -> None:
    """Record the end of an attempt whose launcher was killed before it could; never raises."""
    step, backend, name = launch.step, launch.backend, launch.name(attempt)
    try:
        end = read_ends(step.store, step.run, [attempt])[attempt]
        if end and end.is_final:
            return
        job, until = backend.get(name), launch.clock() + CLOSING_SECONDS
        while job and not (is_over(job) or is_being_deleted(job)) and launch.clock() < until:
            launch.sleep(_LOOK_AGAIN_SECONDS)
            job = backend.get(name)
        if job and is_over(job) and not is_being_deleted(job):
            Attempt(launch, attempt).follow()
        elif job is None or is_being_deleted(job):
            end = end or end_of(attempt, launch.spec.kind, job, name, unseen, ())
            owner = {"job": name, "kind": launch.spec.kind.name, "task_key": step.task_key}
            launch.records.save_end(replace(end, **owner))
    except StepError as error:
        log.info("cannot record how attempt %d ended: %s", attempt, error)


def foreign_job_error(manifest: Object, state: JobState) -> ConfigurationError:
    """Return the error for a job that this launch must leave alone."""
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    if state is JobState.OTHER_SPEC:
        return ConfigurationError(
            Problem(
                f"{name} of this run was created with different parameters, or by another"
                " version of kfp-tfjob",
                received=f"a job with {state}",
                expected="the job that this version creates from the run's parameters",
                fix="retry once the job has succeeded, or delete the job and retry: the run"
                " continues from its newest stored checkpoint",
                name="job-changed",
            )
        )
    return ConfigurationError(
        Problem(
            f"{name} already exists, and this run did not create it",
            received=f"a job with {state}",
            expected="the same run, Workflow and spec hash",
            fix="start a new run, or delete that job if it is not needed",
            name="job-exists",
        )
    )


def _recorded(launch: Launch) -> JobFailedError | None:
    """Return the recorded failure that the user has to fix, for a job that is gone."""
    earlier = launch.records.failure()
    return JobFailedError.again(earlier) if earlier and earlier.final else None


def decide(state: JobState, automatic: bool) -> Action:
    """Return the reaction; `automatic` if Kubeflow Pipelines, not a person, retries the step."""
    return TABLE[state][0 if automatic else 1]


def job_state(job: Object | None, pods: Iterable[Object], expected: Object) -> JobState:
    """Return an attempt's state; `expected` is the manifest that a launcher would create."""
    if job is None:
        return JobState.NOTHING
    if not _same_owner(job["metadata"], expected["metadata"]):
        return JobState.OTHER_OWNER
    if _hash(job) != _hash(expected):
        return JobState.OTHER_SPEC
    if is_over(job):
        verdict = judge(job, pods).verdict
        if verdict == Verdict.SUCCEEDED:
            return JobState.SUCCEEDED
        if not is_being_deleted(job):
            return JobState.FAILED_FOR_NOW if verdict.recoverable else JobState.FAILED_FOR_GOOD
    return JobState.BEING_DELETED if is_being_deleted(job) else JobState.RUNNING


def _same_owner(job: Object, expected: Object) -> bool:
    """Return whether a job has the same run and task, and the same Workflow if both have one."""
    labels, expected_labels = job.get("labels") or {}, expected["labels"]
    if any(
        labels.get(name) != expected_labels.get(name) for name in (RUN_LABEL, TASK_LABEL, KEY_LABEL)
    ):
        return False
    their_workflow, our_workflow = _workflow(job), _workflow(expected)
    return not (their_workflow and our_workflow) or their_workflow == our_workflow


def _workflow(metadata: Object) -> str:
    references = metadata.get("ownerReferences") or []
    return next((item["uid"] for item in references if item["kind"] == "Workflow"), "")


def _hash(job: Object) -> str | None:
    return (job["metadata"].get("annotations") or {}).get(HASH_ANNOTATION)
