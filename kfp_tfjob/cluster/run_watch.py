"""Watches the Workflow of a launcher, and stops its jobs when the run ends.

On Terminate, a stock Kubeflow Pipelines back end ends all of the run's pods, even that of the exit
task. The change of the Workflow arrives some hundredths of a second later, SIGTERM after about
1.3 s, and SIGKILL half a second after that. A SIGTERM alone is ambiguous: a drained node sends it
too, and then the job continues for the next launcher. So on SIGTERM, the watcher reads the Workflow
again. It treats a Workflow that it cannot read as a drain.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import FrameType
from typing import Any

from kfp_tfjob.cluster.backend import Farewell
from kfp_tfjob.cluster.client import CALL_FAILED, ClusterClient
from kfp_tfjob.cluster.run_end import expires, why_ended
from kfp_tfjob.cluster.stopping import Stopping
from kfp_tfjob.jobs.labels import run_label
from kfp_tfjob.jobs.objects import Object

log = logging.getLogger(__name__)

RUN_ID_LABEL = "pipeline/runid"  # set by Kubeflow Pipelines on the Workflow
_WARM_SECONDS = 15.0  # an API server closes a connection after 90 idle seconds, others sooner
_LOOK_SECONDS = (0.5, 1.0)  # to connect, and for the answer
_READ_SECONDS = (5.0, 30.0)
# SIGKILL may come sooner; a drained node waits longer, but the next launcher waits for it.
_FAREWELL_SECONDS = 2.0
_LONGEST_PAUSE, _REFUSED_PAUSE = 10.0, 60.0
# Argo uses its own clock; when it sends SIGTERM, the deadline has passed by that clock.
_SKEW = timedelta(seconds=3)
_NEWS, _TERMINATED, _CLOSED = "news", "terminated", "closed"


class WorkflowWatcher:
    """Watches until it is closed; without a Workflow it does nothing."""

    def __init__(
        self,
        api: ClusterClient,
        run_id: str,
        owner: Object | None,
        jobs: Callable[[], Mapping[str, str]],
        seconds: int,
        farewell: Farewell,
    ) -> None:
        self._farewell, self._leave_taken = farewell, threading.Event()
        self._api, self._run_id, self._owner, self._jobs = api, run_id, owner, jobs
        self._in_a_hurry = api.apart()  # nothing else blocks its connections
        self._stopping = Stopping(self._in_a_hurry, run_label(run_id), seconds)
        # A signal handler may interrupt anything, so it may only use a queue without a lock.
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._workflow: Object = {}
        self._date = datetime.now(UTC), time.monotonic()
        self._why = ""
        self._stopped = threading.Event()
        self._closed = threading.Event()
        self._leaving = False
        self._handler: Any = None
        self._worker = threading.Thread(target=self._work, name="stop the run", daemon=True)

    @property
    def why_ended(self) -> str:
        """Why the run ended; empty while it has not."""
        return self._why

    def __enter__(self) -> WorkflowWatcher:
        """Start to watch; in the main thread, also handle SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._worker.start()
        threading.Thread(target=self._follow, name="watch the run", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; if the run was ended, stop its jobs first."""
        while self._why and self._worker.is_alive() and not self._stopped.wait(1):
            continue
        self._closed.set()
        self._events.put(_CLOSED)
        self._stopping.close()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        if not self._leaving and self._worker.is_alive():
            self._events.put(_TERMINATED)
            return
        signal.signal(signal.SIGTERM, self._handler)
        os.kill(os.getpid(), number)

    def _work(self) -> None:
        """Stop the jobs and exit; wait only for responses that are needed."""
        self._stopping.keep_warm()
        while (told := self._next()) != _CLOSED:
            if told == _TERMINATED and not self._why:
                self._look_again()
            self._decide()
            if self._why and not self._stopped.is_set():
                try:
                    self._stopping.stop(self._jobs())
                finally:
                    self._stopped.set()
                log.info("the run was ended: %s; its jobs have been stopped", self._why)
                self._take_leave()
            if told == _TERMINATED:
                if not self._why:
                    log.info("received SIGTERM, but the run was not ended: its job continues")
                    self._take_leave()
                self._leave_taken.wait(_FAREWELL_SECONDS)
                self._leaving = True
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if not self._why:
                self._stopping.keep_warm()

    def _take_leave(self) -> None:
        """Call the farewell; it must not delay the run's events."""

        def call() -> None:
            try:
                self._farewell(self._why)
            except Exception:
                log.exception("not everything was stored before the end")
            finally:
                self._leave_taken.set()

        threading.Thread(target=call, name="farewell", daemon=True).start()

    def _next(self) -> str:
        """Return the next event; also news before connections go idle and at a deadline."""
        until = None if self._why else expires(self._workflow)
        left = (until - self._now()).total_seconds() if until else _WARM_SECONDS
        try:
            return self._events.get(timeout=min(max(left, 0.05), _WARM_SECONDS))
        except queue.Empty:
            return _NEWS

    def _decide(self, ahead: timedelta = timedelta(0)) -> None:
        """Keep the first reason: an end is final."""
        self._why = self._why or why_ended(self._workflow, self._now() + ahead)

    def _look_again(self) -> None:
        """Read the Workflow again; if that fails, its last known state decides."""
        for _ in range(2):  # even a warm connection may be dead
            try:
                self._look()
                break
            except CALL_FAILED as error:
                if getattr(error, "status", None):
                    break  # an error response means a drain, unless the end was known before
        self._decide(_SKEW)

    def _now(self) -> datetime:
        """Return the time by the API server's clock: that of this node may be wrong."""
        date, at = self._date
        return date + timedelta(seconds=time.monotonic() - at)

    def _follow(self) -> None:
        """Read the Workflow and watch it; start again whenever the watch breaks."""
        pause, told = 0.1, False
        while not self._closed.is_set() and not self._why:
            began = time.monotonic()
            try:
                version = self._list(self._api, _READ_SECONDS)
                if not version:
                    log.info("this step has no Workflow, so it cannot notice the run's end")
                    return
                self._watch(version)
            except CALL_FAILED as error:
                status = getattr(error, "status", None)
                if not told and not self._closed.is_set():
                    told = True
                    log.warning(
                        "cannot watch the Workflow of this run (%s): until that works, Terminate"
                        " may stop the job only when its heartbeat times out",
                        f"HTTP {status}" if status else type(error).__name__,
                    )
                if status in (403, 404):
                    pause = _REFUSED_PAUSE
            else:
                told = False
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = 0.1
            self._closed.wait(random.uniform(pause / 2, pause))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self) -> None:
        """Read the Workflow over an open connection."""
        if not self._owner:
            self._list(self._in_a_hurry, _LOOK_SECONDS)
            return
        path = self._in_a_hurry.workflow(self._owner["name"])
        workflow, date = self._in_a_hurry.once("GET", path, {}, _LOOK_SECONDS)
        if workflow["metadata"].get("uid") == self._owner["uid"]:
            self._see(workflow, date)

    def _list(self, api: ClusterClient, seconds: tuple[float, float]) -> str:
        """Read the Workflow; return the version where a watch begins, or "" without a Workflow.

        It reads a list, because the version of a Workflow itself is as old as its last change. The
        API server soon forgets that version.
        """
        known = self._owner
        query = (
            {"fieldSelector": f"metadata.name={known['name']}"}
            if known
            else {"labelSelector": f"{RUN_ID_LABEL}={self._run_id}"}
        )
        found, date = api.once("GET", api.workflow(""), query, seconds)
        items = found.get("items") or []
        if known:
            items = [item for item in items if item["metadata"].get("uid") == known["uid"]]
            if not items:
                raise ValueError("the Workflow of this run does not exist")
        if not items:
            return ""
        workflow = max(items, key=lambda item: item["metadata"]["creationTimestamp"])
        self._owner = {key: workflow["metadata"][key] for key in ("name", "uid")}
        self._see(workflow, date)
        return found["metadata"]["resourceVersion"]

    def _watch(self, version: str) -> None:
        """Process every change of the Workflow until the server ends the watch."""
        query = {
            "fieldSelector": f"metadata.name={self._owner['name']}" if self._owner else "",
            "resourceVersion": version,
        }
        for event in self._api.watch(self._api.workflow(""), query):
            if event.get("type") not in ("ADDED", "MODIFIED", "DELETED"):
                return  # the version is too old
            if event["type"] == "DELETED":
                event["object"]["metadata"].setdefault("deletionTimestamp", "now")
            self._see(event["object"])

    def _see(self, workflow: Object, date: str = "") -> None:
        with suppress(ValueError):  # without a date, keep the last one
            self._date = parsedate_to_datetime(date), time.monotonic()
        self._workflow = workflow
        self._decide()
        self._events.put(_NEWS)
