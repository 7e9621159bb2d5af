"""Detects problems of a job that has not ended. Each has its own limit and message.

A problem's time starts when it appears and restarts if it was absent in between. So a pod that
waits for a node for an hour is not ended because its image then takes a minute to pull. Called by
`attempt.py` at every look at the job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.common.formatting import listed
from kfp_tfjob.jobs.job_diagnosis import judge
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

_SHOWN = 5  # pods in a message; many replicas usually wait for the same reason
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
    """The time limits of one job, checked at every look.

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

    def check(self, snapshot: Snapshot) -> Judgement | None:
        """Return a verdict if a limit is reached."""
        if is_over(snapshot.job):
            return None
        now = self.clock()
        passed = now - (self._last if self._last is not None else now)
        self._last = now
        if is_suspended(snapshot.job):
            self.queued += passed
            self._since.clear()  # no other limit applies to a suspended job
            self.next_limit = max(self.options.queue_timeout_seconds - self.queued, 0.1)
            if self.queued > self.options.queue_timeout_seconds:
                explanation = f"the job was suspended in its queue for {self.queued:.0f} s"
                return Judgement(
                    Verdict.UNSCHEDULABLE,
                    ": ".join([explanation, *waiting_reasons.queue_says(snapshot.events)[-1:]]),
                    fix="raise train_options.queue_timeout_seconds, or see what Kueue reports with"
                    " `kubectl describe workloads,localqueues`",
                )
            return None
        if self._is_pending(snapshot):
            self.pending += passed
        self.next_limit = math.inf
        if snapshot.silence is not None:
            self.next_limit = max(self.options.stall_timeout_seconds - snapshot.silence, 0.1)
        limits = self._problems(snapshot)
        self._since = {name: self._since.get(name, now) for name in limits}
        for name, limit in limits.items():
            remaining = limit.seconds - (now - self._since[name])
            if remaining <= 0:
                return Judgement(limit.verdict, limit.sentence)
            self.next_limit = min(self.next_limit, remaining)
        return None

    def _problems(self, snapshot: Snapshot) -> dict[str, Limit]:
        """Return the problems of a job, by the name under which their time is counted."""
        options, pods, events = self.options, snapshot.pods, snapshot.events
        placed = [replica_of(pod) for pod in pods if waiting_reasons.is_placed(pod)]
        pending_limit = max(options.pending_timeout_seconds - self.waited, 0)
        operator_limit = options.operator_timeout_seconds
        pull_limit = options.image_pull_timeout_seconds
        missing = waiting_reasons.expected_pods(snapshot.job) > len(pods)
        not_made = waiting_reasons.not_made(events)
        unscheduled = waiting_reasons.unscheduled(pods)
        limits: dict[str, Limit] = {}

        if not self._is_cared_for(snapshot):
            sentence = (
                f"the job has had no status for {operator_limit:.0f} s;"
                " nothing is creating its pods"
            )
            limits["no status"] = Limit(operator_limit, Verdict.OPERATOR_ABSENT, sentence)
        if _ended(pods):
            sentence = (
                f"a pod ended {operator_limit:.0f} s ago,"
                " but the job's status still does not show it"
            )
            limits["not noticed"] = Limit(operator_limit, Verdict.OPERATOR_ABSENT, sentence)
        if unpulled := waiting_reasons.image_pull(pods):
            sentence = _joined("an image cannot be pulled", unpulled)
            limits["image"] = Limit(pull_limit, Verdict.IMAGE_PULL, sentence)
        if misconfigured := waiting_reasons.misconfigured(pods):
            sentence = _joined("a container cannot be created", misconfigured)
            limits["configuration"] = Limit(pull_limit, Verdict.USER_ERROR, sentence)
        if secrets := waiting_reasons.missing_secrets(pods, events):
            sentence = _joined("a Secret is missing", [str(item) for item in secrets])
            limits["secret"] = Limit(_MOMENT, Verdict.USER_ERROR, sentence)
        if missing and (forbidden := waiting_reasons.forbidden(events)):
            sentence = _joined("the cluster does not allow pods to be created", forbidden[-1:])
            limits["forbidden"] = Limit(_MOMENT, Verdict.REFUSED, sentence)
        reasons = unscheduled or not_made[-1:]
        verdict = Verdict.UNSCHEDULABLE
        state = f"not all pods have started after {self.pending:.0f} s"
        if placed and (unscheduled or (missing and not_made)):
            verdict = Verdict.PARTLY_PLACED
            state = f"{', '.join(placed[:_SHOWN])} hold their nodes while others wait"
            longest = min(options.partly_placed_seconds, pending_limit)
            limits["partly"] = Limit(longest, verdict, _joined(state, reasons))
        if self._is_pending(snapshot):
            sentence = _joined(state, reasons or _reasons(snapshot) or _unexplained(snapshot))
            limits["pending"] = Limit(pending_limit, verdict, sentence)
        # A Job waits for such a pod to end, which only its node can report.
        lost = [pod for pod in pods if on_lost_node(pod) and pod["status"]["phase"] == "Running"]
        if lost:
            graces = (pod["metadata"].get("deletionGracePeriodSeconds") or 0 for pod in lost)
            sentence = judge(snapshot.job, lost).sentence
            limits["lost"] = Limit(max(graces) + _REPORTED, Verdict.LOST, sentence)
        if snapshot.silence is not None and snapshot.silence >= options.stall_timeout_seconds:
            sentence = f"the chief has logged nothing for {snapshot.silence:.0f} s"
            limits["stalled"] = Limit(0, Verdict.STALLED, sentence)
        if any(is_chief(pod) and pod["status"].get("phase") == "Running" for pod in pods):
            sentence = "the chief has run longer than its deadline, and its node has not stopped it"
            longest = options.deadline_seconds + self.grace + _SLACK
            limits["deadline"] = Limit(longest, Verdict.DEADLINE, sentence)
        return limits

    def _is_cared_for(self, snapshot: Snapshot) -> bool:
        """Return whether an operator handles the job; one that creates no pods writes no status."""
        return kind_of(snapshot.job).is_noticed(snapshot.job) or bool(
            waiting_reasons.not_made(snapshot.events)
        )

    def _is_pending(self, snapshot: Snapshot) -> bool:
        if not self._is_cared_for(snapshot):
            return False  # the limit "no status" covers this
        begun = [pod for pod in snapshot.pods if waiting_reasons.has_begun(pod)]
        return len(begun) < waiting_reasons.expected_pods(snapshot.job)


def _reasons(snapshot: Snapshot) -> list[str]:
    """Return the cluster's message, if any, for each pod that has not started."""
    messages = []
    for pod in snapshot.pods:
        if not waiting_reasons.has_begun(pod) and (
            message := waiting_reasons.reason(pod, snapshot.events)
        ):
            messages.append(f"{replica_of(pod)}: {message}")
    return messages


def _ended(pods: Sequence[Object]) -> bool:
    """Return whether the operator should have decided: the chief is done, or any replica failed.

    A Job fails only after its other pods, which it stops, have ended.
    """
    return not any(is_being_deleted(pod) for pod in pods) and any(
        pod["status"].get("phase") == "Failed"
        or (pod["status"].get("phase") == "Succeeded" and is_chief(pod))
        for pod in pods
    )


def _unexplained(snapshot: Snapshot) -> list[str]:
    """Return a message for each pod that has not started without a reason from the cluster."""
    waiting_pods = [replica_of(pod) for pod in snapshot.pods if not waiting_reasons.has_begun(pod)]
    missing = waiting_reasons.expected_pods(snapshot.job) - len(snapshot.pods)
    return [f"{name} has not started" for name in waiting_pods] or [f"{missing} were not created"]


def _joined(problem: str, details: Sequence[str]) -> str:
    return f"{problem}: {listed(details, _SHOWN, '; ')}"
