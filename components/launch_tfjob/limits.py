"""Detects problems of a job that has not ended. Each has its own limit and message."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.jobs.job_end import judge
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import (
    is_being_deleted,
    is_chief,
    is_over,
    is_suspended,
    on_lost_node,
    replica_of,
)
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.options.train import TrainOptions
from kfp_tfjob.storage.formatting import listed

_SHOWN = 5
_SLACK = 60.0  # lets the kubelet end the pods first
_REPORTED = 30.0  # a kubelet that is there has reported a pod that has ended
_MOMENT = 5.0  # a Secret or a policy may change while the job is being created


@dataclass(frozen=True)
class Snapshot:
    """A job at one moment, its events, and the seconds since the chief's last line, if known."""

    job: Object
    pods: Sequence[Object]
    silence: float | None = None
    events: Sequence[Object] = ()


class Limit(NamedTuple):
    """A problem that a job has now: how long it may last, the verdict then, and what happened."""

    seconds: float
    verdict: Verdict
    sentence: str


@dataclass
class JobLimits:
    """The limits of one job, checked at every look.

    Attributes:
        options: The limits.
        grace: Seconds that the chief has to stop after its deadline.
        waited: Seconds that earlier attempts waited for nodes.
        queued: Seconds that the job was suspended so far.
        pending: Seconds that the job waited for nodes so far, without earlier attempts.
        next_limit: Seconds until the next limit may be reached.
        clock: A monotonic clock; tests replace it.
    """

    options: TrainOptions
    grace: float = 0.0
    waited: float = 0.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    queued: float = 0.0
    pending: float = 0.0
    next_limit: float = math.inf
    _since: dict[str, float] = field(default_factory=dict)
    _last: float | None = None

    def look(self, seen: Snapshot) -> Judgement | None:
        """Return a verdict if a limit is reached."""
        if is_over(seen.job):
            return None
        now = self.clock()
        passed = now - (self._last if self._last is not None else now)
        self._last = now
        if is_suspended(seen.job):
            self.queued += passed
            self._since.clear()  # no other limit applies to a suspended job
            self.next_limit = max(self.options.queue_timeout_seconds - self.queued, 0.1)
            if self.queued > self.options.queue_timeout_seconds:
                held = f"the job was suspended in its queue for {self.queued:.0f} s"
                return Judgement(
                    Verdict.UNSCHEDULABLE,
                    ": ".join([held, *waiting_reasons.queue_says(seen.events)[-1:]]),
                    fix="raise train_options.queue_timeout_seconds, or see what Kueue reports with"
                    " `kubectl describe workloads,localqueues`",
                )
            return None
        if self._is_pending(seen):
            self.pending += passed
        self.next_limit = math.inf
        if seen.silence is not None:
            self.next_limit = max(self.options.stall_timeout_seconds - seen.silence, 0.1)
        limits = self._limits(seen)
        self._since = {name: self._since.get(name, now) for name in limits}
        for name, limit in limits.items():
            left = limit.seconds - (now - self._since[name])
            if left <= 0:
                return Judgement(limit.verdict, limit.sentence)
            self.next_limit = min(self.next_limit, left)
        return None

    def _limits(self, seen: Snapshot) -> dict[str, Limit]:
        """Return the problems of a job, by the name under which their time is counted."""
        options, pods, events = self.options, seen.pods, seen.events
        placed = [replica_of(pod) for pod in pods if waiting_reasons.is_placed(pod)]
        left = max(options.pending_timeout_seconds - self.waited, 0)
        operator, pull = options.operator_timeout_seconds, options.image_pull_timeout_seconds
        missing = waiting_reasons.wanted(seen.job) > len(pods)
        not_made = waiting_reasons.not_made(events)
        unscheduled = waiting_reasons.unscheduled(pods)
        found: dict[str, Limit] = {}

        if not self._is_cared_for(seen):
            said = f"the job has had no status for {operator:.0f} s; nothing is creating its pods"
            found["no status"] = Limit(operator, Verdict.OPERATOR_ABSENT, said)
        if _ended(pods):
            said = f"a pod ended {operator:.0f} s ago, but the job's status still does not show it"
            found["not noticed"] = Limit(operator, Verdict.OPERATOR_ABSENT, said)
        if unpulled := waiting_reasons.image_pull(pods):
            said = _joined("an image cannot be pulled", unpulled)
            found["image"] = Limit(pull, Verdict.IMAGE_PULL, said)
        if misconfigured := waiting_reasons.misconfigured(pods):
            said = _joined("a container cannot be created", misconfigured)
            found["configuration"] = Limit(pull, Verdict.USER_ERROR, said)
        if secrets := waiting_reasons.missing_secrets(pods):
            said = _joined("a Secret is missing", [str(item) for item in secrets])
            found["secret"] = Limit(_MOMENT, Verdict.USER_ERROR, said)
        if missing and (forbidden := waiting_reasons.forbidden(events)):
            said = _joined("the cluster does not allow pods to be created", forbidden[-1:])
            found["forbidden"] = Limit(_MOMENT, Verdict.REFUSED, said)
        why = unscheduled or not_made[-1:]
        verdict, what = (
            Verdict.UNSCHEDULABLE,
            f"not all pods have started after {self.pending:.0f} s",
        )
        if placed and (unscheduled or (missing and not_made)):
            verdict = Verdict.PARTLY_PLACED
            what = f"{', '.join(placed[:_SHOWN])} hold their nodes while others wait"
            longest = min(options.partly_placed_seconds, left)
            found["partly"] = Limit(longest, verdict, _joined(what, why))
        if self._is_pending(seen):
            said = _joined(what, why or _reasons(seen) or _unknown(seen))
            found["pending"] = Limit(left, verdict, said)
        # A Job waits for such a pod to end, which only its node can report.
        lost = [pod for pod in pods if on_lost_node(pod) and pod["status"]["phase"] == "Running"]
        if lost:
            graces = (pod["metadata"].get("deletionGracePeriodSeconds") or 0 for pod in lost)
            said = judge(seen.job, lost).sentence
            found["lost"] = Limit(max(graces) + _REPORTED, Verdict.LOST, said)
        if seen.silence is not None and seen.silence >= options.stall_timeout_seconds:
            said = f"the chief has logged nothing for {seen.silence:.0f} s"
            found["stalled"] = Limit(0, Verdict.STALLED, said)
        if any(is_chief(pod) and pod["status"].get("phase") == "Running" for pod in pods):
            said = "the chief has run longer than its deadline, and its node has not stopped it"
            longest = options.deadline_seconds + self.grace + _SLACK
            found["deadline"] = Limit(longest, Verdict.DEADLINE, said)
        return found

    def _is_cared_for(self, seen: Snapshot) -> bool:
        """Return whether an operator handles the job; one that creates no pods writes no status."""
        return kind_of(seen.job).is_noticed(seen.job) or bool(waiting_reasons.not_made(seen.events))

    def _is_pending(self, seen: Snapshot) -> bool:
        if not self._is_cared_for(seen):
            return False  # the limit "no status" covers this
        begun = [pod for pod in seen.pods if waiting_reasons.has_begun(pod)]
        return len(begun) < waiting_reasons.wanted(seen.job)


def _reasons(seen: Snapshot) -> list[str]:
    """Return the cluster's message, if any, for each pod that has not started."""
    found = []
    for pod in seen.pods:
        if not waiting_reasons.has_begun(pod) and (
            said := waiting_reasons.reason(pod, seen.events)
        ):
            found.append(f"{replica_of(pod)}: {said}")
    return found


def _ended(pods: Sequence[Object]) -> bool:
    """Return whether the operator should have decided: the chief is done, or any replica failed.

    A Job fails only after its other pods, which it stops, have ended.
    """
    return not any(is_being_deleted(pod) for pod in pods) and any(
        pod["status"].get("phase") == "Failed"
        or (pod["status"].get("phase") == "Succeeded" and is_chief(pod))
        for pod in pods
    )


def _unknown(seen: Snapshot) -> list[str]:
    waiting_pods = [replica_of(pod) for pod in seen.pods if not waiting_reasons.has_begun(pod)]
    missing = waiting_reasons.wanted(seen.job) - len(seen.pods)
    return [f"{name} has not started" for name in waiting_pods] or [f"{missing} were not created"]


def _joined(what: str, details: Sequence[str]) -> str:
    return f"{what}: {listed(details, _SHOWN, '; ')}"
