"""Follows a job's log lines and pods, and keeps them after the pods are deleted.

The pods of workers are deleted with their logs as soon as the chief succeeds or the job fails. So
this module keeps their last lines and their last state.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict, deque

from kfp_tfjob.cluster import waiting_reasons
from kfp_tfjob.cluster.backend import Backend
from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.cluster.pod_summary import pod_summary
from kfp_tfjob.jobs.kinds import kind_of
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.log_masking import Mask
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over, is_suspended, role_of
from kfp_tfjob.storage.escaping import lines

log = logging.getLogger(__name__)
_SUPERVISOR = " supervisor: "  # its lines are not the program's last words
_KEPT = 50  # lines of each container
# Events are not watched, so a waiting job is polled: soon after a change, and less and less often
# while nothing changes.
_SOONEST, _LATEST = 2.0, 30.0
_PART = 8  # of the time since the last change


class Follower:
    """Follows one job until it has ended."""

    def __init__(self, backend: Backend, job_name: str, keep: LogWriter | None = None) -> None:
        self._backend, self._name, self._keep = backend, job_name, keep
        self._lines: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._pods: dict[str, Object] = {}
        self._said = ""
        self._said_at = -math.inf
        self._waits = False
        self.events: list[Object] = []
        self._thread = threading.Thread(target=self._read, name=f"logs {job_name}", daemon=True)

    def start(self) -> None:
        """Start forwarding the job's lines."""
        self._thread.start()

    def look(self) -> Object | None:
        """Return the job as it is now; log a line when the state of its pods has changed.

        Afterwards, `events` has the events of the job, of its waiting pods, and of its Workload
        while a queue holds it back.
        """
        job = self._backend.get(self._name)
        for pod in self._backend.pods(self._name):
            self._pods[pod["metadata"]["name"]] = pod
        if job is None:
            return None
        pods = self.pods
        lagging = [
            pod for pod in pods if not waiting_reasons.has_begun(pod) or waiting_reasons.reason(pod)
        ]
        missing = len(pods) < waiting_reasons.wanted(job)
        self._waits = bool(missing or lagging) and not is_over(job)
        creators = kind_of(job).creators(job) if missing else []
        self.events = self._ask(creators, lagging) if self._waits else []
        place = None
        if is_suspended(job):
            names = waiting_reasons.workloads(self.events)
            self.events += [event for name in names for event in self._backend.events(name)]
            queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
            if queue and names:
                place = self._backend.place_in_queue(queue, names[-1])
        said = pod_summary(job, pods, self.events, place)
        now = time.monotonic()
        # Fifty pods that start one by one must not log fifty lines.
        if said != self._said and (not self._waits or now >= self._said_at + _SOONEST):
            self._said, self._said_at = said, now
            log.info("%s: %s", self._name, said)
        return job

    @property
    def pause(self) -> float:
        """Seconds until the next look at the job, even without a change."""
        unchanged = time.monotonic() - self._said_at
        return min(max(unchanged / _PART, _SOONEST), _LATEST) if self._waits else _LATEST

    def _ask(self, creators: list[str], lagging: list[Object]) -> list[Object]:
        """Return the events of what creates missing pods, and of one waiting pod of each role.

        A pod itself has the scheduler's message, and pods of one role have equal requests.
        """
        silent = {
            role_of(pod): pod
            for pod in reversed(lagging)
            if not waiting_reasons.scheduler_says(pod)
        }
        names = creators + [pod["metadata"]["name"] for pod in silent.values()]
        return [event for name in names for event in self._backend.events(name)]

    @property
    def pods(self) -> list[Object]:
        """Every pod so far, in its last known state."""
        return [self._pods[name] for name in sorted(self._pods)]

    def finish(self, seconds: float) -> None:
        """Wait for the remaining lines, at most `seconds`."""
        self._thread.join(seconds)

    def last_lines(self, container: str, number: int) -> list[str]:
        """Return a container's last lines, for example `worker-1` or `worker-1/setup`."""
        return list(self._lines[container])[-number:]

    def _read(self) -> None:
        """Take every line; a reader that ends would block the streams, as if the job were silent.

        A line that cannot be taken, for example because nothing reads standard output any more, is
        dropped.
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
        if line.stamp and _SUPERVISOR not in text:  # without one, it is the kubelet that speaks
            self._lines[line.where].append(text)
        if self._keep:
            self._keep.put(line if text == line.text else line._replace(text=text))
        # Not logged, because it has its own timestamp.
        print(lines(f"[{line.where}] {text}"), flush=True)
