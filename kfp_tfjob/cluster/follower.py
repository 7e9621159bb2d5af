"""Follows a job's log lines and pods, and keeps them after the pods are deleted.

Workers' pods are deleted with their logs as soon as the chief succeeds or the job fails. So this
module keeps their last lines and their last state, which explain a failure. Called by the launcher
for each attempt.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque

from kfp_tfjob.common.escaping import lines
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.jobs.nccl_log import SOCKETS, Transports
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over, is_suspended, replica_of, role_of

from . import waiting_reasons
from .backend import Backend
from .log_lines import LogLine
from .log_writer import LogWriter
from .pod_summary import pod_summary

log = logging.getLogger(__name__)
_SUPERVISOR = " supervisor: "  # its lines do not explain why the program failed
_NCCL = "NCCL INFO"
_NCCL_LINES = 1000  # the line with the number of nodes is some hundred before the connections
_LAST_LINES = 50  # of each container; a report shows fewer, after the supervisor's are removed
# Seconds between two polls. Events are not watched, so a waiting job is polled soon after a change,
# and less and less often while its state stays the same.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0
_PAUSE_DIVISOR = 8  # a pause is this part of the time since the last change


class Follower:
    """Follows one job until it has ended."""

    def __init__(self, backend: Backend, job_name: str, keep: LogWriter | None = None) -> None:
        self._backend, self._name, self._keep = backend, job_name, keep
        self._lines: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_LAST_LINES))
        self._pods: dict[str, Object] = {}
        self._summary = ""
        self._changed_at = -math.inf
        self._waits = False
        # Of programs that set NCCL_DEBUG=INFO; None after a warning.
        self._nccl: deque[str] | None = deque(maxlen=_NCCL_LINES)
        self.events: list[Object] = []
        self._thread = threading.Thread(target=self._read, name=f"logs {job_name}", daemon=True)

    def start(self) -> None:
        """Start forwarding the job's lines."""
        self._thread.start()

    def poll(self) -> Object | None:
        """Return the job's current state; log a line if the state of its pods has changed.

        Afterwards, `events` contains the events of the job, of its waiting pods and, while a queue
        suspends it, of its Workload.
        """
        job = self._backend.get(self._name)
        if job and is_suspended(job):
            self._pods.clear()  # a pod that the queue has deleted counts as missing afterwards
        for pod in self._backend.pods(self._name):
            self._pods[replica_of(pod)] = pod
        if job is None:
            return None
        pods = self.pods
        lagging = [
            pod for pod in pods if not waiting_reasons.has_begun(pod) or waiting_reasons.reason(pod)
        ]
        missing = len(pods) < waiting_reasons.expected_pods(job)
        self._waits = bool(missing or lagging) and not is_over(job)
        creators = kind_of(job).creators(job) if missing else []
        self.events = self._read_events(creators, lagging) if self._waits else []
        queue_position = None
        if is_suspended(job):
            names = waiting_reasons.workloads(self.events)
            self.events += [event for name in names for event in self._backend.events(name)]
            queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
            if queue and names:
                queue_position = self._backend.place_in_queue(queue, names[-1])
        summary = pod_summary(job, pods, self.events, queue_position)
        now = time.monotonic()
        # Fifty pods that start one by one must not log fifty lines.
        if summary != self._summary and (
            not self._waits or now >= self._changed_at + _SHORTEST_PAUSE
        ):
            self._summary, self._changed_at = summary, now
            log.info("%s: %s", self._name, summary)
        return job

    @property
    def pause(self) -> float:
        """Seconds until the job is read again, even without a change."""
        if not self._waits:
            return _LONGEST_PAUSE
        unchanged = time.monotonic() - self._changed_at
        return min(max(unchanged / _PAUSE_DIVISOR, _SHORTEST_PAUSE), _LONGEST_PAUSE)

    def _read_events(self, creators: list[str], lagging: list[Object]) -> list[Object]:
        """Return the events of the missing pods' creators, and of one waiting pod per role.

        Pods with the scheduler's message in their status are skipped. One pod per role is enough,
        because its pods have equal requests.
        """
        unexplained = {
            role_of(pod): pod
            for pod in reversed(lagging)
            if not waiting_reasons.scheduler_says(pod)
        }
        names = creators + [pod["metadata"]["name"] for pod in unexplained.values()]
        return [event for name in names for event in self._backend.events(name)]

    @property
    def pods(self) -> list[Object]:
        """The newest pod of each replica so far, in its last known state."""
        return [self._pods[replica] for replica in sorted(self._pods)]

    def finish(self, seconds: float) -> None:
        """Wait for the remaining lines, at most `seconds`."""
        self._thread.join(seconds)

    def last_lines(self, container: str, number: int) -> list[str]:
        """Return a container's last lines, for example `worker-1` or `worker-1/setup`."""
        return list(self._lines[container])[-number:]

    def _read(self) -> None:
        """Take every line until the job has ended.

        A line that cannot be taken, for example because standard output is closed, is dropped. If
        this thread ended instead, the streams would block, and the job would seem to be silent.
        """
        mask, failed = Mask(), False
        try:
            for line in self._backend.logs(self._name):
                try:
                    self._take(line, mask)
                except Exception:
                    if not failed:
                        failed = True
                        log.exception("a line of %s is dropped", line.where)
        except Exception:
            log.exception("the lines of %s are not followed any more", self._name)
        finally:
            if self._keep:
                self._keep.end()

    def _take(self, line: LogLine, mask: Mask) -> None:
        text = mask(line.text)
        if self._nccl is not None and _NCCL in text:
            self._read_nccl(self._nccl, line.where, text)
        if line.stamp and _SUPERVISOR not in text:  # without a stamp, it is the kubelet's message
            self._lines[line.where].append(text)
        if self._keep:
            self._keep.put(line if text == line.text else line._replace(text=text))
        # Not logged, because it has its own timestamp.
        print(lines(f"[{line.where}] {text}"), flush=True)

    def _read_nccl(self, nccl_lines: deque[str], where: str, text: str) -> None:
        """Warn, once for each job, if nodes exchange gradients over TCP sockets."""
        nccl_lines.append(text)
        if f"via {SOCKETS}" in text and (problem := Transports.read(nccl_lines).problem):
            self._nccl = None
            log.warning("%s: %s", where, problem)
