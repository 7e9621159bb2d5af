"""Watches one job and its pods: reports that something has changed, and keeps deleted pods.

The caller reads the current state each time, so it depends on no single event. A broken connection
does no harm: the next watch begins with the current state.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from typing import Any

import urllib3

from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.cluster.errors import ApiError
from kfp_tfjob.jobs.objects import Object

log = logging.getLogger(__name__)

_SERVER_SECONDS = 55  # the API server ends a watch after that
_SILENCE = 70.0
_LONGEST_PAUSE = 10.0
_TOGETHER = 0.1  # changes of many pods arrive in a burst; one look is enough


class JobWatcher:
    """Watches until it is closed.

    Args:
        api: The cluster.
        name: The job.
    """

    def __init__(self, api: ClusterClient, name: str) -> None:
        self._api, self._name = api, name
        self._change = threading.Condition()
        self._version = self._seen = 0
        self._pods: dict[str, Object] = {}
        self._job: Object | None = None
        self._closed = threading.Event()
        job = {"fieldSelector": f"metadata.name={name}"}
        pods = {"labelSelector": api.kind.pods_of(name)}
        for path, query, take in (
            (api.jobs(), job, self._take_job),
            (api.core("pods"), pods, self._take_pod),
        ):
            threading.Thread(
                target=self._watch, args=(path, query, take), name=f"watch {name}", daemon=True
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

    def _watch(self, path: str, query: dict[str, str], take: Any) -> None:
        query = query | {"watch": "true", "timeoutSeconds": str(_SERVER_SECONDS)}
        pause, told = 0.1, False
        while not self.closed:
            began = time.monotonic()
            try:
                for line in self._api.lines(path, query, _SILENCE):
                    self._take(line, take)
            except (ApiError, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                if not told and not self.closed:
                    told = True
                    why = getattr(error, "status", None) or type(error).__name__
                    log.info("the watch of %s broke and is restarted: %s", self._name, why)
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause, told = 0.1, False
            # Without jitter, all launchers of a cluster would reconnect at the same time.
            self._closed.wait(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _take(self, line: bytes, take: Any) -> None:
        event = json.loads(line)
        with self._change:
            if event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                take(event["type"], event["object"])
            self._version += 1
            self._change.notify_all()

    def _take_job(self, kind: str, job: Object) -> None:
        self._job = None if kind == "DELETED" else job

    def _take_pod(self, kind: str, pod: Object) -> None:
        self._pods[pod["metadata"]["name"]] = pod
