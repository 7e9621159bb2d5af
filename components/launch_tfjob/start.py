"""Decides what a launcher does with a job of an earlier start.

A retried or restarted step adopts a running job and trains nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from kfp_tfjob.jobs.judge import judge
from kfp_tfjob.jobs.labels import HASH_ANNOTATION, KEY_LABEL, RUN_LABEL, TASK_LABEL
from kfp_tfjob.jobs.status import is_being_deleted, is_over
from kfp_tfjob.jobs.verdict import Verdict


class Found(StrEnum):
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
TABLE: dict[Found, tuple[Action, Action]] = {
    Found.NOTHING: (Action.CREATE, Action.CREATE),
    Found.RUNNING: (Action.ADOPT, Action.ADOPT),
    Found.SUCCEEDED: (Action.ADOPT, Action.ADOPT),
    Found.FAILED_FOR_NOW: (Action.CREATE, Action.CREATE),
    Found.FAILED_FOR_GOOD: (Action.REPEAT, Action.CREATE),
    Found.BEING_DELETED: (Action.WAIT, Action.WAIT),
    Found.OTHER_SPEC: (Action.REFUSE, Action.REFUSE),
    Found.OTHER_OWNER: (Action.REFUSE, Action.REFUSE),
}


def decide(found: Found, automatic: bool) -> Action:
    """Return the reaction.

    Args:
        found: The state of the newest attempt.
        automatic: Whether Kubeflow Pipelines, not a person, retries the step.
    """
    return TABLE[found][0 if automatic else 1]


def look_at(
    job: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]], wanted: Mapping[str, Any]
) -> Found:
    """Return the state of an attempt.

    Args:
        job: The job of that name, or None.
        pods: Its pods.
        wanted: The manifest that this launcher would create for the same attempt.
    """
    if job is None:
        return Found.NOTHING
    if not _same_owner(job["metadata"], wanted["metadata"]):
        return Found.OTHER_OWNER
    if _hash(job) != _hash(wanted):
        return Found.OTHER_SPEC
    if is_over(job):
        verdict = judge(job, pods).verdict
        if verdict == Verdict.SUCCEEDED:
            return Found.SUCCEEDED
        if not is_being_deleted(job):
            return Found.FAILED_FOR_NOW if verdict.recoverable else Found.FAILED_FOR_GOOD
    return Found.BEING_DELETED if is_being_deleted(job) else Found.RUNNING


def _same_owner(job: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether a job has the same run and task, and the same Workflow if both have one."""
    labels, ours = job.get("labels") or {}, wanted["labels"]
    if any(labels.get(name) != ours.get(name) for name in (RUN_LABEL, TASK_LABEL, KEY_LABEL)):
        return False
    their_workflow, our_workflow = _workflow(job), _workflow(wanted)
    return not (their_workflow and our_workflow) or their_workflow == our_workflow


def _workflow(metadata: Mapping[str, Any]) -> str:
    references = metadata.get("ownerReferences") or []
    return next((item["uid"] for item in references if item["kind"] == "Workflow"), "")


def _hash(job: Mapping[str, Any]) -> str | None:
    return (job["metadata"].get("annotations") or {}).get(HASH_ANNOTATION)
