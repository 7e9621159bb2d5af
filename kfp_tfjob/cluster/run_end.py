"""Decides from the Workflow alone whether a run was ended.

Terminate in Kubeflow Pipelines sets `activeDeadlineSeconds: 0`. A drain, an eviction or a lost node
does not change the Workflow. This distinguishes the two cases.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kfp_tfjob.jobs.objects import Object

_TERMINAL = ("Succeeded", "Failed", "Error")


def why_ended(workflow: Object, now: datetime) -> str:
    """Return why a run ended, or "" if it has not; an unknown value is not an end."""
    status = _part(workflow, "status")
    if _part(workflow, "metadata").get("deletionTimestamp"):
        return "its Workflow was deleted"
    if _deadline(workflow) == 0:
        return "a person terminated it"
    if shutdown := _part(workflow, "spec").get("shutdown"):
        return f"a person stopped it (shutdown {shutdown})"
    if status.get("phase") in _TERMINAL:
        return f"its Workflow has ended: {status['phase']}"
    until = expires(workflow)
    if until is not None and now >= until:
        return f"its Workflow has reached its deadline, {_deadline(workflow)} s after its start"
    return ""


def was_terminated(workflow: Object) -> bool:
    """Tell whether a person ended the run, and not its deadline or a failure."""
    return _deadline(workflow) == 0 or bool(_part(workflow, "spec").get("shutdown"))


def expires(workflow: Object) -> datetime | None:
    """Return the run's deadline, or None if it has none or has not started."""
    seconds = _deadline(workflow)
    if seconds is None:
        return None
    try:
        began = datetime.fromisoformat(str(_part(workflow, "status").get("startedAt")))
        return began.replace(tzinfo=began.tzinfo or UTC) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None


def _deadline(workflow: Object) -> int | None:
    seconds = _part(workflow, "spec").get("activeDeadlineSeconds")
    return seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else None


def _part(workflow: Object, name: str) -> Object:
    found = workflow.get(name)
    return found if isinstance(found, dict) else {}
