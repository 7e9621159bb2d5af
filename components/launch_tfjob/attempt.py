"""Follows one job to its end and judges it.

Each round looks at the job once, compares it with its limits (`time_limits.py`), and sleeps until
the next change or limit. The end is recorded before the launcher acts on it, so a launcher that
starts later reaches the same verdict. Called by the launcher's engine for every attempt, and by
`earlier_job.py` for a job whose launcher was killed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from kfp_tfjob.checks.placement import too_small
from kfp_tfjob.checks.remedies import remedy, secret_remedy
from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.log_writer import CLOSING_SECONDS
from kfp_tfjob.common.docs_page import split_address
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.attempt_record import AttemptEnd, end_of, pods_of
from kfp_tfjob.jobs.job_diagnosis import judge, with_log
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.labels import HEARTBEAT_ANNOTATION
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_being_deleted, is_chief, is_over, role_of
from kfp_tfjob.jobs.verdict import JobFailedError, Judgement, Verdict, cancelled
from kfp_tfjob.supervisor.exit_codes import MEANING

from .launch_context import Launch
from .time_limits import JobLimits, Snapshot

log = logging.getLogger(__name__)

_LAST_LINES_SECONDS = 10.0  # the streams end with their pods; a lost node leaves them open
_SHOWN_LINES = 12  # a traceback's end fits, and a report stays readable for many replicas
_NAME_SHORTAGE_SECONDS = 60.0  # an autoscaler or a pod that ends may free a node before
_BEATS = 6  # heartbeats within the time after which the chief gives up on its launcher
_NOT_STORED = Judgement(
    Verdict.STORE_UNAVAILABLE, "the job succeeded, but its output is not complete in the store"
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job, with the last lines of the container that ended it."""

    judgement: Judgement
    words: list[str]
    end: AttemptEnd

    @property
    def failure(self) -> JobFailedError:
        """The error of the step if the job failed."""
        return self.judgement.failure(self.words)


@dataclass
class Attempt:
    """One existing job."""

    launch: Launch
    number: int
    waited: float = 0.0
    _beat_at: float | None = None
    _counted_at: float | None = None
    _gpu_seconds: dict[str, float] = field(default_factory=lambda: {"pending": 0, "running": 0})
    _running: float = 0.0

    @cached_property
    def name(self) -> str:
        """The job's name."""
        return self.launch.name(self.number)

    @property
    def _beat_seconds(self) -> float:
        return self.launch.spec.options.orphan_timeout_seconds / _BEATS

    def follow(self) -> Outcome:
        """Follow the job to its end, judge it, and record the end.

        The job is deleted if a limit ended it or a new attempt may follow.

        Raises:
            ClusterUnavailableError: The API server was unreachable for too long; the job continues.
            ForbiddenError: RBAC does not allow following the job.
        """
        launch, backend, logs = self.launch, self.launch.backend, self.launch.logs
        follower = Follower(backend, self.name, logs.attempt(self.number) if logs else None)
        follower.start()
        options, grace = launch.spec.options, float(launch.spec.pod.of("chief").grace_seconds or 0)
        limits = JobLimits(options, grace, self.waited, launch.clock)
        job: Object | None = None
        given_up: Judgement | None = None
        shortage_logged = False
        while given_up is None:
            latest = follower.poll()
            job = latest or job
            if latest is None or is_over(latest) or is_being_deleted(latest):
                break
            self._count(latest, follower.pods)
            silence = backend.silence(self.name)
            snapshot = Snapshot(latest, follower.pods, silence, follower.events)
            given_up = self._with_remedy(limits.check(snapshot), snapshot)
            if limits.pending >= _NAME_SHORTAGE_SECONDS and not shortage_logged:
                shortage_logged = self._name_shortage(snapshot, limits.pending)
            if given_up is None:
                self._beat(follower.pods)
                longest = min(follower.pause, self._beat_seconds)
                backend.wait_for_change(self.name, min(longest, limits.next_limit))
        judgement = given_up or judge(latest, follower.pods)
        if judgement.verdict == Verdict.SUCCEEDED:
            try:
                stored = launch.records.completed() == self.number
            except StepError:
                # The store does not respond. Keep the job: the next launcher can verify its output.
                follower.finish(_LAST_LINES_SECONDS)
                raise
            judgement = judgement if stored else _NOT_STORED
        if (why := launch.ended()) and judgement.verdict != Verdict.SUCCEEDED:
            judgement, given_up = cancelled(why), None  # the run's watch already stopped it
        deleted = given_up is not None or judgement.verdict.recoverable
        if deleted:
            backend.delete(self.name)  # any other job stays for inspection
        follower.finish(_LAST_LINES_SECONDS)

        outcome = self._outcome(judgement, job, follower, limits)
        if logs:
            logs.flush(CLOSING_SECONDS)  # the record of the end says that it is stored
        launch.records.save_end(outcome.end)
        return outcome

    def _outcome(
        self, judgement: Judgement, job: Object | None, follower: Follower, limits: JobLimits
    ) -> Outcome:
        kind = self.launch.spec.kind

        def last_lines(replica: str, container: str) -> list[str]:
            return follower.last_lines(kind.log_name(replica, container), _SHOWN_LINES)

        seconds = {"queued": limits.queued, "pending": limits.pending, "running": self._running}
        pods = pods_of(follower.pods, last_lines)
        failed = (item for pod in pods for item in pod.containers if item.exit_code)
        judgement = with_log(judgement, (line for item in failed for line in item.last_lines))
        gpu_seconds = self._gpu_seconds
        end = end_of(self.number, kind, job, self.name, judgement, pods, seconds, gpu_seconds)
        last_words = [Mask()(line) for line in words(judgement, kind.container, last_lines)]
        return Outcome(judgement, last_words, end)

    def _with_remedy(self, judgement: Judgement | None, snapshot: Snapshot) -> Judgement | None:
        """Add the parameter to change to a verdict on waiting pods; decide whether it is final."""
        if judgement is None or judgement.fix:
            return judgement
        events = snapshot.events
        if missing := waiting_reasons.missing_secrets(snapshot.pods, events):
            if judgement.verdict == Verdict.USER_ERROR:
                namespace = snapshot.job["metadata"].get("namespace", "")
                return replace(judgement, fix=secret_remedy(self.launch.spec, missing, namespace))
        fix = remedy(judgement.verdict, self.launch.spec, snapshot.pods, events)
        if judgement.verdict == Verdict.OPERATOR_ABSENT:
            fix = kind_of(snapshot.job).absent
        elif judgement.verdict == Verdict.UNSCHEDULABLE and not fix:
            fix = waiting_reasons.node_remedy(snapshot.pods, events)
        return replace(judgement, fix=fix)

    def _name_shortage(self, snapshot: Snapshot, seconds: float) -> bool:
        """Log what keeps pods from nodes, and the parameter to change; return whether any does."""
        nodes = self.launch.backend.nodes()
        node_limits = list(too_small(self.launch.spec, nodes)) if nodes else []
        reasons = node_limits or waiting_reasons.unscheduled(snapshot.pods)
        if not reasons:
            return False
        fix = remedy(Verdict.UNSCHEDULABLE, self.launch.spec, snapshot.pods, snapshot.events)
        state = f"{self.name} has been waiting for nodes for {seconds:.0f} s"
        log.warning("%s: %s. Fix: %s", state, "; ".join(reasons), fix or "add nodes")
        return True

    def _beat(self, pods: list[Object]) -> None:
        """Tell the chief that a launcher still waits for it."""
        now = self.launch.clock()
        if self._beat_at is not None and now - self._beat_at < self._beat_seconds:
            return
        if any(is_chief(pod) and waiting_reasons.has_begun(pod) for pod in pods):
            self._beat_at = now
            self.launch.backend.annotate_chief(
                self.name, {HEARTBEAT_ANNOTATION: f"{time.time():.3f}"}
            )

    def _count(self, job: Object, pods: list[Object]) -> None:
        """Add the running time and the GPU seconds since the last call."""
        now = self.launch.clock()
        passed = now - (self._counted_at if self._counted_at is not None else now)
        self._counted_at = now
        begun = sum(
            waiting_reasons.has_begun(pod) for pod in pods
        ) >= waiting_reasons.expected_pods(job)
        self._running += passed if begun else 0
        gpus = sum(
            self.launch.spec.gpus_of(role_of(pod))
            for pod in pods
            if waiting_reasons.is_placed(pod)
            and pod["status"].get("phase") in ("Pending", "Running")
        )
        self._gpu_seconds["running" if begun else "pending"] += gpus * passed


def words(
    judgement: Judgement, main: str, last_lines: Callable[[str, str], list[str]]
) -> list[str]:
    """Return the last lines of the container that ended the job, else of the chief."""
    cause = judgement.cause
    if judgement.verdict in (Verdict.SUCCEEDED, Verdict.OPERATOR_ABSENT):
        return []
    if not cause:
        return last_lines("chief-0", main)
    # The sentence already contains the supervisor's own message.
    if cause.message and cause.message not in MEANING.values():
        return split_address(cause.message)[0].splitlines()
    return last_lines(cause.replica, cause.container)
