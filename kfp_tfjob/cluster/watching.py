"""Watches one job and its pods: reports that something has changed, and keeps deleted pods.

The caller reads the current state each time, so it depends on no single event. A broken connection
does no harm: the next watch begins with the current state.
"""

from __future__ import annotations

import logging
import random
import threading
import time

from kfp_tfjob.cluster.client import CALL_FAILED, ClusterClient
from kfp_tfjob.jobs.objects import Object

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 10.0
_TOGETHER = 0.1  # changes of many pods arrive in a burst; one look is enough


class JobWatcher:
    """Watches until it is closed."""

    def __init__(self, api: ClusterClient, name: str) -> None:
        self._api, self._name = api, name
        self._change = threading.Condition()
        self._version = self._seen = 0
        self._pods: dict[str, Object] = {}
        self._job: Object | None = None
        self._closed = threading.Event()
        job = (api.jobs(), {"fieldSelector": f"metadata.name={name}"})
        pods = (api.core("pods"), {"labelSelector": api.kind.pods_of(name)})
        for what in (job, pods):
            threading.Thread(
                target=self._watch, args=(*what, what is job), name=f"watch {name}", daemon=True
            ).start()

    @property
    def job(self) -> Object | None:
        """The job in its last event; None if it is deleted or not known yet."""
        return self._job

    @property
    def pods(self) -> list[Object]:
        """Every pod in its last event, including deleted ones."""
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
        """Wait until something has changed since `seen`, at most `timeout` seconds."""
        with self._change:
            if self._change.wait_for(lambda: self._version != self._seen, timeout):
                self._change.wait(min(_TOGETHER, timeout))

    def close(self) -> None:
        """End the watches; their threads end within a minute."""
        self._closed.set()

    def _watch(self, path: str, query: dict[str, str], is_job: bool) -> None:
        pause, told = 0.1, False
        while not self.closed:
            began = time.monotonic()
            try:
                for event in self._api.watch(path, query):
                    self._take(event, is_job)
            except CALL_FAILED as error:
                if not told and not self.closed:
                    told = True
                    why = getattr(error, "status", None) or type(error).__name__
                    log.info("the watch of %s broke and is restarted: %s", self._name, why)
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause, told = 0.1, False
            # Without jitter, all launchers of a cluster would reconnect at the same time.
            self._closed.wait(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _take(self, event: Object, is_job: bool) -> None:
        kind, found = event.get("type"), event.get("object") or {}
        with self._change:
            if kind in ("ADDED", "MODIFIED", "DELETED"):
                if is_job:
                    self._job = None if kind == "DELETED" else found
                else:
                    self._pods[found["metadata"]["name"]] = found
            self._version += 1
            self._change.notify_all()
