"""Follows the log lines of all of a job's containers in parallel until the job has ended.

Each container has a thread that reads its stream. A broken stream is opened again after its last
line. Restarted containers and recreated pods are followed too. A log that cannot be read is not an
error, because the job runs without it. Called by `KubernetesBackend.logs`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

import urllib3

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import container_statuses, replica_of

from .api_errors import ApiError
from .client import ClusterClient
from .log_lines import LogLine, cut

log = logging.getLogger(__name__)

_WAITING_LINES = 2000  # a slow reader pauses the streams instead of filling the memory
_SILENCE = 60.0  # seconds; then the stream is opened again, because it may be dead
_LONGEST_PAUSE = 10.0  # seconds between two attempts to open a stream
_POLL = 0.3  # seconds between two looks for new containers
_MOST_REFUSALS = 3  # for the log of a container that has ended


class PodLogs:
    """One job's log lines.

    Args:
        api: The cluster.
        pods: Returns the job's pods.
        over: Returns whether the job has ended.
    """

    def __init__(
        self, api: ClusterClient, pods: Callable[[], list[Object]], over: Callable[[], bool]
    ) -> None:
        self._api, self._pods, self._over = api, pods, over
        self._lines: queue.Queue[LogLine] = queue.Queue(_WAITING_LINES)
        self._readers: dict[tuple[str, str], threading.Thread] = {}
        self._heard: dict[str, float] = {}  # the time of the last line, by replica
        self._ended = threading.Event()

    def __iter__(self) -> Iterator[LogLine]:
        """Yield the lines as they arrive, until the job and its streams have ended."""
        while True:
            over = self._over()
            self._start_readers()
            try:
                yield self._lines.get(timeout=_POLL)
            except queue.Empty:
                if over and not any(reader.is_alive() for reader in self._readers.values()):
                    return

    def silence(self, replica: str) -> float | None:
        """Return the seconds since the last line of a replica; None if its log cannot be read."""
        heard = self._heard.get(replica)
        return None if heard is None else time.monotonic() - heard

    def close(self) -> None:
        """End all readers."""
        self._ended.set()

    def _start_readers(self) -> None:
        for pod in self._pods():
            for status in container_statuses(pod):
                key = (pod["metadata"]["uid"], status["name"])
                if key not in self._readers and _has_started(status):
                    reader = threading.Thread(
                        target=self._read, args=(pod, status["name"]), daemon=True
                    )
                    self._readers[key] = reader
                    reader.start()

    def _read(self, pod: Object, container: str) -> None:
        """Forward a container's lines; if this ends, its replica's silence is unknown, not long."""
        try:
            self._follow(pod, container)
        except Exception:
            log.exception("the log of %s is not followed any more", pod["metadata"]["name"])
        finally:
            if container == self._api.kind.container:
                self._heard.pop(replica_of(pod), None)

    def _follow(self, pod: Object, container: str) -> None:
        replica, name = replica_of(pod), pod["metadata"]["name"]
        main = self._api.kind.container
        where = self._api.kind.log_name(replica, container)
        path = self._api.core("pods", name) + "/log"
        query = {"container": container, "follow": "true", "timestamps": "true"}
        newest, pause, warned, heard_at, refusals = "", 0.2, False, 0.0, 0
        unfinished = 0  # bytes so far of a line that has not ended, such as a progress bar

        def heard(size: int) -> None:
            nonlocal heard_at, unfinished
            if size > unfinished:  # otherwise, a new stream repeats these bytes
                heard_at, unfinished = time.monotonic(), size
                if container == main and replica in self._heard:
                    self._heard[replica] = heard_at

        while not self._ended.is_set():
            done = self._is_done(pod, container)
            last_stamp = newest
            if last_stamp:  # sinceTime has whole seconds, so the stream repeats some lines
                query["sinceTime"] = f"{last_stamp[:19]}Z"
            try:
                for line in self._api.lines(path, query, _SILENCE, heard):
                    stamp, text = cut(line)
                    if stamp:
                        is_new = stamp > last_stamp
                        heard_at = time.monotonic() if is_new else heard_at
                        if container == main:
                            self._heard[replica] = heard_at
                        if not is_new:
                            continue
                        newest, unfinished = max(newest, stamp), 0
                        pause = 0.2
                    self._put(LogLine(stamp, where, text))
            except ApiError as error:
                refusals += done  # a busy kubelet may reject a log that exists
                if error.status == 404 or refusals > _MOST_REFUSALS:
                    break
                if error.status == 403 and pause >= _LONGEST_PAUSE and not warned:
                    warned = True
                    log.warning(
                        "the log of %s cannot be read: RBAC does not allow reading pods/log", name
                    )
                self._heard.pop(replica, None)
            except urllib3.exceptions.ReadTimeoutError:
                continue  # the container was silent for _SILENCE seconds
            except (urllib3.exceptions.HTTPError, OSError):  # the silence is unknown then
                self._heard.pop(replica, None)
            else:
                if done:
                    break
            self._ended.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_done(self, pod: Object, container: str) -> bool:
        """Return whether a container has ended for good, so its stream ends by itself."""
        for current in self._pods():
            if current["metadata"]["uid"] == pod["metadata"]["uid"]:
                if current["status"].get("phase") in ("Succeeded", "Failed"):
                    return True
                states = {
                    status["name"]: status.get("state") or {}
                    for status in container_statuses(current)
                }
                is_sidecar = container in _sidecars(current)
                return "terminated" in states.get(container, {}) and not is_sidecar
        return True

    def _put(self, line: LogLine) -> None:
        while not self._ended.is_set():
            try:
                self._lines.put(line, timeout=1)
                return
            except queue.Full:  # the reader is slow, or has stopped
                continue


def _sidecars(pod: Object) -> set[str]:
    """Return the names of a pod's native sidecars, which are restarted when they end."""
    containers = pod["spec"].get("initContainers") or []
    return {spec["name"] for spec in containers if spec.get("restartPolicy") == "Always"}


def _has_started(status: Object) -> bool:
    state = status.get("state") or {}
    return "running" in state or "terminated" in state
