"""Describes all pods of a job in one line: how many run, and why others wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_suspended, replica_of
from kfp_tfjob.storage.formatting import listed

_NAMES = 2  # of pods in one state
_REASONS = 2
_LONGEST_REASON = 300


def pod_summary(
    job: Object,
    pods: Iterable[Object],
    events: Sequence[Object] = (),
    place: int | None = None,
) -> str:
    """Return for example `48 of 50 running, waiting: worker-3, worker-7: 2 Insufficient cpu`.

    `place` is that of a suspended job in its queue, from 1; None if it is not known.
    """
    running, done = 0, 0
    starting: list[str] = []
    failed: list[str] = []
    reasons: dict[str, list[str]] = {}
    pods = sorted(pods, key=_order)
    for pod in pods:
        name, phase = replica_of(pod), pod["status"].get("phase")
        if phase == "Succeeded":
            done += 1
        elif phase == "Failed":
            failed.append(name + _exit_code(pod))
        elif said := waiting_reasons.reason(pod, () if waiting_reasons.has_begun(pod) else events):
            reasons.setdefault(_short(said), []).append(name)
        elif phase == "Running":
            running += 1
        else:
            starting.append(name)
    parts = [f"{running} of {waiting_reasons.wanted(job)} running"]
    parts += [f"{done} done"] if done else []
    parts += [f"failed: {_named(failed)}"] if failed else []
    parts += [f"starting: {_named(starting)}"] if starting else []
    most = sorted(reasons.items(), key=lambda item: -len(item[1]))
    parts += [f"waiting: {_named(names)}: {said}" for said, names in most[:_REASONS]]
    if len(most) > _REASONS:
        others = sum(len(names) for _, names in most[_REASONS:])
        parts.append(f"waiting for other reasons: {others}")
    if is_suspended(job):
        queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        held = f"suspended in queue {queue}" if queue else "suspended"
        held += f" at place {place}" if place else ""
        parts.append(": ".join([held, *map(_short, waiting_reasons.queue_says(events)[-1:])]))
    elif (missing := waiting_reasons.wanted(job) - len(pods)) > 0:
        why = waiting_reasons.not_made(events)[-1:]
        parts.append(f"not created: {missing}" + (f": {_short(why[0])}" if why else ""))
    return ", ".join(parts)


def _order(pod: Object) -> tuple[str, int]:
    role, _, index = replica_of(pod).rpartition("-")
    return role, int(index)


def _exit_code(pod: Object) -> str:
    for item in pod["status"].get("containerStatuses") or []:
        ended = item["state"].get("terminated")
        if ended and ended["exitCode"]:
            return f" (exit code {ended['exitCode']})"
    return ""


def _named(names: Sequence[str]) -> str:
    return listed(names, _NAMES)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
