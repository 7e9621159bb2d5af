"""Watches a launcher's Workflow, and stops its jobs when the run ends.

Terminate in Kubeflow Pipelines sets `activeDeadlineSeconds: 0`. A drain, an eviction or a lost node
does not change the Workflow.

On Terminate, an unmodified Kubeflow Pipelines back end ends all of the run's pods, even the exit
task's. The change of the Workflow arrives some hundredths of a second later, SIGTERM after about
1.3 s, and SIGKILL half a second after that. A SIGTERM alone is ambiguous: a drained node sends it
too, and then the job continues for the next launcher. So on SIGTERM, the watcher reads the Workflow
again. It treats a Workflow that it cannot read as a drain.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any

from kfp_tfjob.cluster.backend import Farewell
from kfp_tfjob.cluster.client import CALL_FAILED, ClusterClient
from kfp_tfjob.cluster.job_watch import watch
from kfp_tfjob.cluster.stopping import Stopping
from kfp_tfjob.jobs.labels import run_label
from kfp_tfjob.jobs.objects import Object

log = logging.getLogger(__name__)

_WARM_SECONDS = 15.0  # an API server closes a connection after 90 idle seconds, others sooner
_LOOK_SECONDS = (0.5, 1.0)  # to connect, and for the answer
# SIGKILL may come sooner; a drained node waits longer, but the next launcher waits for it.
_FAREWELL_SECONDS = 2.0
# Argo uses its own clock; when it sends SIGTERM, the deadline has passed by that clock.
_SKEW = timedelta(minutes=1)
_TERMINAL = ("Succeeded", "Failed", "Error")
_NEWS, _TERMINATED, _CLOSED = "news", "terminated", "closed"


class WorkflowWatcher:
    """Watches the Workflow that `owner` refers to, until it is closed."""

    def __init__(
        self,
        api: ClusterClient,
        run_id: str,
        owner: Object,
        jobs: Callable[[], Mapping[str, str]],
        seconds: int,
        farewell: Farewell,
    ) -> None:
        self._farewell, self._leave_taken = farewell, threading.Event()
        self._api, self._owner, self._jobs = api, owner, jobs
        self._in_a_hurry = api.apart()  # nothing else blocks its connections
        self._stopping = Stopping(self._in_a_hurry, run_label(run_id), seconds)
        # A signal handler may interrupt anything, so it may only use a queue without a lock.
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._workflow: Object = {}
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
        self._keep_warm()
        while (told := self._next()) != _CLOSED:
            if told == _TERMINATED and not self._why:
                self._look_again()
            if self._why and not self._stopped.is_set():
                self._stop()
            if told == _TERMINATED:
                if not self._why:
                    log.info("received SIGTERM, but the run was not stopped, so its job continues")
                    self._take_leave()
                self._leave_taken.wait(_FAREWELL_SECONDS)
                self._leaving = True
                os.kill(os.getpid(), signal.SIGTERM)
                return
            if not self._why:
                self._keep_warm()

    def _keep_warm(self) -> None:
        try:
            self._stopping.keep_warm()
        except Exception:  # without this thread, a run that ends would not stop its jobs
            log.exception("the connections for stopping the run are not kept open")

    def _stop(self) -> None:
        """Stop the run's jobs, and call the farewell."""
        try:
            self._stopping.stop(self._jobs())
            log.info("the run was stopped: %s; so were its jobs", self._why)
        except Exception:
            log.exception("the run was stopped (%s), but a bug kept its jobs running", self._why)
        finally:
            self._stopped.set()
        self._take_leave()

    def _take_leave(self) -> None:
        """Call the farewell; it must not delay the run's events."""

        def call() -> None:
            try:
                self._farewell(self._why)
            except Exception:
                log.exception("could not store everything before exiting")
            finally:
                self._leave_taken.set()

        threading.Thread(target=call, name="farewell", daemon=True).start()

    def _next(self) -> str:
        """Return the next event; also news before connections go idle."""
        try:
            return self._events.get(timeout=_WARM_SECONDS)
        except queue.Empty:
            return _NEWS

    def _look_again(self) -> None:
        """Read the Workflow again; if that fails, its last known state decides."""
        path = self._in_a_hurry.workflow(self._owner["name"])
        for _ in range(2):  # even a warm connection may be dead
            try:
                self._see("MODIFIED", self._in_a_hurry.once("GET", path, {}, _LOOK_SECONDS))
                break
            except CALL_FAILED as error:
                if getattr(error, "status", None):
                    break  # an error response means a drain, unless the end was known before
            except Exception:
                log.exception("the Workflow of this run cannot be understood")
        self._why = self._why or why_ended(self._workflow, datetime.now(UTC) + _SKEW)

    def _follow(self) -> None:
        query = {"fieldSelector": f"metadata.name={self._owner['name']}"}
        watch(self._api, self._api.workflow(""), query, self._see, self._closed, self._broken)

    def _broken(self, why: str) -> None:
        log.warning(
            "cannot watch the Workflow of this run (%s): until that works, Terminate may stop the"
            " job only when its heartbeat times out",
            why,
        )

    def _see(self, event: str, workflow: Object) -> None:
        """Take a state of the Workflow, and keep the first reason: an end is final."""
        if workflow["metadata"].get("uid") != self._owner["uid"]:
            return
        if event == "DELETED":
            workflow["metadata"].setdefault("deletionTimestamp", "now")
        self._workflow = workflow
        self._why = self._why or why_ended(workflow)
        self._events.put(_NEWS)


def why_ended(workflow: Object, now: datetime | None = None) -> str:
    """Return why a run ended, or "" if it has not; an unknown value is not an end.

    Args:
        workflow: The Workflow.
        now: The time, after SIGTERM only: Argo sends it at the run's deadline, and the Workflow
            shows that end later.
    """
    status = _part(workflow, "status")
    if _part(workflow, "metadata").get("deletionTimestamp"):
        return "its Workflow was deleted"
    if _deadline(workflow) == 0:
        return "a user terminated it"
    if shutdown := _part(workflow, "spec").get("shutdown"):
        return f"a user stopped it (shutdown {shutdown})"
    if status.get("phase") in _TERMINAL:
        return f"its Workflow has ended: {status['phase']}"
    if now and (until := _expires(workflow)) and now >= until:
        return f"its Workflow has reached its deadline, {_deadline(workflow)} s after its start"
    return ""


def was_terminated(workflow: Object) -> bool:
    """Return whether a user ended the run, and not its deadline or a failure."""
    return _deadline(workflow) == 0 or bool(_part(workflow, "spec").get("shutdown"))


def _expires(workflow: Object) -> datetime | None:
    """Return the run's deadline, or None if it has none or has not started."""
    seconds = _deadline(workflow)
    if seconds is None:
        return None
    try:
        began = datetime.fromisoformat(str(_part(workflow, "status").get("startedAt")))
        return began.replace(tzinfo=began.tzinfo or UTC) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None


def _deadline(workflow: Object) -> int | None:
    seconds = _part(workflow, "spec").get("activeDeadlineSeconds")
    return seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else None


def _part(workflow: Object, name: str) -> Object:
    found = workflow.get(name)
    return found if isinstance(found, dict) else {}
