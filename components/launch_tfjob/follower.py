"""What a job looks like while it runs: its lines and its pods, remembered beyond their end.

The pods of workers vanish, logs included, the moment the chief succeeds or the job fails. So their
last lines and their last state are kept here.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict, deque
from typing import Any

from components.launch_tfjob.backends import Backend, Object
from components.launch_tfjob.masking import Mask
from components.launch_tfjob.verdict import replica_of
from storage.text import lines

log = logging.getLogger(__name__)
_PREFIX = re.compile(r"\[([^\]]+)\] ?(.*)", re.DOTALL)
_SUPERVISOR = " supervisor: "  # its lines are not the program's last words
_KEPT = 50  # lines of each container


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
        self._table = ""
        self._thread = threading.Thread(target=self._read, name=f"logs {job_name}", daemon=True)

    def start(self) -> None:
        """Begin to pass on the lines of the job."""
        self._thread.start()

    def look(self) -> Object | None:
        """Return the job as it is now; log a line when the state of its pods has changed."""
        job = self._backend.get(self._name)
        for pod in self._backend.pods(self._name):
            self._pods[pod["metadata"]["name"]] = pod
        table = ", ".join(_shown(pod) for pod in self.pods)
        if table != self._table:
            self._table = table
            log.info("%s: %s", self._name, table)
        return job

    @property
    def pods(self) -> list[Object]:
        """Every pod there has been, as it was seen last."""
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


def _shown(pod: dict[str, Any]) -> str:
    """Return a pod in a few words: `worker-0 Failed (exit code 1)`."""
    text = f"{replica_of(pod)} {pod['status']['phase']}"
    for item in pod["status"].get("containerStatuses") or []:
        ended = item["state"].get("terminated")
        if ended and ended["exitCode"]:
            text += f" (exit code {ended['exitCode']})"
    return text
