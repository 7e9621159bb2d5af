"""Watches objects across broken connections, and keeps the last state of one job and its pods.

A watch may miss changes while it is interrupted. So it is used only to wake a caller, which then
reads the current state, and to remember pods that were deleted. Called by `KubernetesBackend` and
by `run_watch.py`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_suspended

from .client import CALL_FAILED, ClusterClient

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0  # seconds between two attempts to start a watch
_BURST_SECONDS = 0.1  # changes of many pods arrive together; reading the state once is enough


def watch(
    api: ClusterClient,
    path: str,
    query: dict[str, str],
    take: Callable[[str, Object], None],
    closed: threading.Event,
    broken: Callable[[str], None],
) -> None:
    """Watch objects until `closed` is set; a broken watch is started again, and no error ends it.

    The new watch begins with the current state, as ADDED. Only deletions in between are missed.

    Args:
        api: The cluster.
        path: The path of the objects' list.
        query: The selector.
        take: Called with ADDED, MODIFIED or DELETED, and the object.
        closed: Ends the watch within a minute.
        broken: Called with the reason when the watch breaks, and not again until it has worked.
    """
    pause, reported = 0.1, False
    while not closed.is_set():
        began = time.monotonic()
        try:
            for event in api.watch(path, query):
                if event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    take(event["type"], event["object"])
        except CALL_FAILED as error:
            if not reported and not closed.is_set():
                reported = True
                status = getattr(error, "status", None)
                broken(f"HTTP {status}" if status else type(error).__name__)
        except Exception as error:
            if not reported:
                reported = True
                log.exception("a bug interrupted the watch on %s", path)
                broken(type(error).__name__)
        if time.monotonic() - began > _LONGEST_PAUSE:
            pause, reported = 0.1, False
        # Without jitter, all launchers of a cluster would reconnect at the same time.
        closed.wait(random.uniform(pause / 2, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)


class JobWatcher:
    """Reports that a job or its pods have changed, and keeps deleted pods, until it is closed.

    The caller reads the current state each time, so a missed event does no harm.
    """

    def __init__(self, api: ClusterClient, name: str) -> None:
        self._name = name
        self._change = threading.Condition()
        self._version = self._seen = 0
        self._pods: dict[str, Object] = {}
        self._job: Object | None = None
        self._closed = threading.Event()
        job = (api.jobs(), {"fieldSelector": f"metadata.name={name}"}, self._take_job)
        pods = (api.core("pods"), {"labelSelector": api.kind.pods_of(name)}, self._take_pod)
        for path, query, take in (job, pods):
            threading.Thread(
                target=watch,
                args=(api, path, query, take, self._closed, self._broken),
                name=f"watch {name}",
                daemon=True,
            ).start()

    @property
    def job(self) -> Object | None:
        """The job in its last event; None if it is deleted or has not been seen yet."""
        return self._job

    @property
    def pods(self) -> list[Object]:
        """All pods, each in its last event, including pods deleted while the job was to run."""
        with self._change:
            return list(self._pods.values())

    @property
    def closed(self) -> bool:
        """Whether the watches have been closed."""
        return self._closed.is_set()

    def seen(self) -> None:
        """Mark all changes so far as seen."""
        with self._change:
            self._seen = self._version

    def wait(self, timeout: float) -> None:
        """Wait until the job or its pods have changed since `seen`, at most `timeout` seconds."""
        with self._change:
            if self._change.wait_for(lambda: self._version != self._seen, timeout):
                self._change.wait(min(_BURST_SECONDS, timeout))

    def close(self) -> None:
        """End the watches; their threads end within a minute."""
        self._closed.set()

    def _take_job(self, event: str, job: Object) -> None:
        with self._change:
            self._job = None if event == "DELETED" else job
            self._changed()

    def _take_pod(self, event: str, pod: Object) -> None:
        with self._change:
            # A queue deletes the pods of a job that it stops. If the job resumes without one of
            # them, that pod has to count as missing.
            if event == "DELETED" and self._job and is_suspended(self._job):
                self._pods.pop(pod["metadata"]["name"], None)
            else:
                self._pods[pod["metadata"]["name"]] = pod
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._change.notify_all()

    def _broken(self, why: str) -> None:
        log.info("the watch on %s was interrupted and is restarted: %s", self._name, why)
