"""Describes a job's pods in one line: how many run, and why the other pods wait.

A job may have hundreds of pods, so pods in the same state are counted, and only a few are named.
Called by the launcher's follower and by the commands that show a run's pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kfp_tfjob.common.formatting import listed
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_suspended, replica_of

from . import waiting_reasons

_NAMES = 2  # of pods in the same state; the line stays short
_REASONS = 2  # the most frequent ones; replicas are alike, so there are rarely more
_LONGEST_REASON = 300  # characters; the scheduler's message names each reason of its nodes


def pod_summary(
    job: Object,
    pods: Iterable[Object],
    events: Sequence[Object] = (),
    place: int | None = None,
) -> str:
    """Return for example `48 of 50 running, waiting: worker-3, worker-7: 2 Insufficient cpu`.

    Args:
        job: The job.
        pods: Its pods.
        events: Its events and its waiting pods' events, newest last.
        place: A suspended job's place in its queue, from 1; None if unknown.
    """
    running, done = 0, 0
    starting: list[str] = []
    failed: list[str] = []
    reasons: dict[str, list[str]] = {}
    pods = sorted(pods, key=_sort_key)
    for pod in pods:
        name, phase = replica_of(pod), pod["status"].get("phase")
        if phase == "Succeeded":
            done += 1
        elif phase == "Failed":
            failed.append(name + _exit_code(pod))
        elif why := waiting_reasons.reason(pod, () if waiting_reasons.has_begun(pod) else events):
            reasons.setdefault(_shorten(why), []).append(name)
        elif phase == "Running":
            running += 1
        else:
            starting.append(name)
    parts = [f"{running} of {waiting_reasons.expected_pods(job)} running"]
    parts += [f"{done} done"] if done else []
    parts += [f"failed: {_named(failed)}"] if failed else []
    parts += [f"starting: {_named(starting)}"] if starting else []
    by_frequency = sorted(reasons.items(), key=lambda reason: -len(reason[1]))
    parts += [f"waiting: {_named(names)}: {why}" for why, names in by_frequency[:_REASONS]]
    if len(by_frequency) > _REASONS:
        count = sum(len(names) for _, names in by_frequency[_REASONS:])
        parts.append(f"waiting for other reasons: {count}")
    if is_suspended(job):
        queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        state = f"suspended in queue {queue}" if queue else "suspended"
        state += f" at place {place}" if place else ""
        parts.append(": ".join([state, *map(_shorten, waiting_reasons.queue_says(events)[-1:])]))
    elif (missing := waiting_reasons.expected_pods(job) - len(pods)) > 0:
        newest = waiting_reasons.not_made(events)[-1:]
        parts.append(f"not created: {missing}" + (f": {_shorten(newest[0])}" if newest else ""))
    return ", ".join(parts)


def _sort_key(pod: Object) -> tuple[str, int]:
    role, _, index = replica_of(pod).rpartition("-")
    return role, int(index)


def _exit_code(pod: Object) -> str:
    for container in pod["status"].get("containerStatuses") or []:
        terminated = container["state"].get("terminated")
        if terminated and terminated["exitCode"]:
            return f" (exit code {terminated['exitCode']})"
    return ""


def _named(names: Sequence[str]) -> str:
    return listed(names, _NAMES)


def _shorten(reason: str) -> str:
    reason = " ".join(reason.split())
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + "…"
