"""What a job looks like while it runs: its lines and its pods, remembered beyond their end.

The pods of workers vanish, logs included, the moment the chief succeeds or the job fails. So their
last lines and their last state are kept here.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import defaultdict, deque

from kfp_tfjob.cluster import waiting
from kfp_tfjob.cluster.backend import Backend, Object
from kfp_tfjob.cluster.picture import picture
from kfp_tfjob.jobs.masking import Mask
from kfp_tfjob.jobs.status import is_over, role_of
from kfp_tfjob.storage.text import lines

log = logging.getLogger(__name__)
_PREFIX = re.compile(r"\[([^\]]+)\] ?(.*)", re.DOTALL)
_SUPERVISOR = " supervisor: "  # its lines are not the program's last words
_KEPT = 50  # lines of each container
# No watch tells of events, so a job that waits is looked at by itself: soon after a change, and
# ever more seldom while nothing changes.
_SOONEST, _LATEST = 2.0, 30.0
_PART = 8  # of the time since the last change


class Follower:
    """Follows one job until it has ended.

    Args:
        backend: Where it runs.
        job_name: The job.
    """

    def __init__(self, backend: Backend, job_name: str) -> None:
        self._backend, self._name = backend, job_name
        self._lines: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._pods: dict[str, Object] = {}
        self._said = ""
        self._said_at = -math.inf
        self._waits = False
        self.events: list[Object] = []
        self._thread = threading.Thread(target=self._read, name=f"logs {job_name}", daemon=True)

    def start(self) -> None:
        """Begin to pass on the lines of the job."""
        self._thread.start()

    def look(self) -> Object | None:
        """Return the job as it is now; log a line when the state of its pods has changed.

        Afterwards `events` has what controllers say of the job and of its pods that wait.
        """
        job = self._backend.get(self._name)
        for pod in self._backend.pods(self._name):
            self._pods[pod["metadata"]["name"]] = pod
        if job is None:
            return None
        pods = self.pods
        lagging = [pod for pod in pods if not waiting.has_begun(pod) or waiting.reason(pod)]
        missing = len(pods) < waiting.wanted(job)
        self._waits = bool(missing or lagging) and not is_over(job)
        self.events = self._ask(missing, lagging) if self._waits else []
        said = picture(job, pods, self.events)
        now = time.monotonic()
        # Fifty pods that start one by one are not worth fifty lines.
        if said != self._said and (not self._waits or now >= self._said_at + _SOONEST):
            self._said, self._said_at = said, now
            log.info("%s: %s", self._name, said)
        return job

    @property
    def pause(self) -> float:
        """Seconds after which the job is to be looked at again, also without news of it."""
        unchanged = time.monotonic() - self._said_at
        return min(max(unchanged / _PART, _SOONEST), _LATEST) if self._waits else _LATEST

    def _ask(self, missing: bool, lagging: list[Object]) -> list[Object]:
        """Return the events of a job whose pods are missing, and of one pod of each role.

        The scheduler's words are in the pod itself, and pods of one role ask for the same.
        """
        silent = {role_of(pod): pod for pod in reversed(lagging) if not waiting.scheduler_says(pod)}
        names = [self._name] if missing else []
        names += [pod["metadata"]["name"] for pod in silent.values()]
        return [event for name in names for event in self._backend.events(name)]

    @property
    def pods(self) -> list[Object]:
        """Every pod there has been, in its last known state."""
        return [self._pods[name] for name in sorted(self._pods)]

    def finish(self, seconds: float) -> None:
        """Wait for the lines that are still on their way, at most `seconds`."""
        self._thread.join(seconds)

    def last_lines(self, container: str, number: int) -> list[str]:
        """Return the last lines of a container, for instance `worker-1` or `worker-1/setup`."""
        return list(self._lines[container])[-number:]

    def _read(self) -> None:
        mask = Mask()
        for line in map(mask, self._backend.logs(self._name)):
            match = _PREFIX.match(line)
            if match and _SUPERVISOR not in match[2]:
                self._lines[match[1]].append(match[2])
            print(lines(line), flush=True)  # as it is: it has a time of its own
