"""Watches a launcher's Workflow, and stops the run's jobs when the run ends.

Terminate in Kubeflow Pipelines sets `activeDeadlineSeconds: 0`. A drain, an eviction or a lost node
does not change the Workflow.

On Terminate, an unmodified Kubeflow Pipelines back end ends all of the run's pods, even the exit
task's. The Workflow's change arrives some hundredths of a second later, SIGTERM after about 1.3 s,
and SIGKILL half a second after that. A SIGTERM alone is ambiguous: a drained node sends it too, and
then the job continues for the next launcher. So on SIGTERM, the watcher reads the Workflow again.
If it cannot read the Workflow, it assumes that the node is drained. Called by the launcher through
`KubernetesBackend.watch_workflow`.
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

from kfp_tfjob.jobs.labels import run_label
from kfp_tfjob.jobs.objects import Object

from .backend import ExitCallback
from .client import CALL_FAILED, ClusterClient
from .job_watch import watch
from .stopping import Stopping

log = logging.getLogger(__name__)

_WARM_SECONDS = 15.0  # an API server closes a connection after 90 idle seconds, others sooner
_READ_SECONDS = (0.5, 1.0)  # to connect, and for the response: SIGKILL may follow soon
# SIGKILL may come sooner. A drained node would wait longer, but the next launcher starts after it.
_ON_EXIT_SECONDS = 2.0
# Argo's clock may differ from ours. When it sends SIGTERM, the deadline has passed by its clock.
_SKEW = timedelta(minutes=1)
_TERMINAL = ("Succeeded", "Failed", "Error")
_CHANGED, _SIGTERM, _CLOSED = "changed", "SIGTERM", "closed"  # the worker's events


class WorkflowWatcher:
    """Watches a run's Workflow until it is closed.

    Args:
        api: The cluster.
        run_id: The run.
        owner: The ownerReference with the Workflow's name and uid.
        jobs: Returns the chief's pod of each job that the launcher follows.
        seconds: The time that a chief and its sidecar have to stop.
        on_exit: Called once, in its own thread, before this process is killed.
    """

    def __init__(
        self,
        api: ClusterClient,
        run_id: str,
        owner: Object,
        jobs: Callable[[], Mapping[str, str]],
        seconds: int,
        on_exit: ExitCallback,
    ) -> None:
        self._on_exit, self._on_exit_done = on_exit, threading.Event()
        self._api, self._owner, self._jobs = api, owner, jobs
        self._urgent_api = api.clone()  # no other call can block its connections
        self._stopping = Stopping(self._urgent_api, run_label(run_id), seconds)
        # A signal handler may interrupt any code, so it may only use a queue without a lock.
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._workflow: Object = {}
        self._why = ""
        self._stopped = threading.Event()
        self._closed = threading.Event()
        self._exiting = False
        self._previous_handler: Any = None
        self._worker = threading.Thread(target=self._work, name="stop the run", daemon=True)

    @property
    def why_ended(self) -> str:
        """The reason why the run ended; empty while it has not."""
        return self._why

    def __enter__(self) -> WorkflowWatcher:
        """Start to watch; in the main thread, also handle SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._worker.start()
        threading.Thread(target=self._follow, name="watch the run", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; if the run has ended, first wait until the worker has stopped its jobs."""
        while self._why and self._worker.is_alive() and not self._stopped.wait(1):
            continue
        self._closed.set()
        self._events.put(_CLOSED)
        self._stopping.close()
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)

    def _on_sigterm(self, number: int, _frame: FrameType | None) -> None:
        """Pass SIGTERM to the worker, which sends another one after its work, to end the process.

        A SIGTERM during the worker's work has no effect. Without a worker, the first one ends the
        process. It ends by the handler that was installed before this one.
        """
        if not self._exiting and self._worker.is_alive():
            self._events.put(_SIGTERM)
            return
        signal.signal(signal.SIGTERM, self._previous_handler)
        os.kill(os.getpid(), number)

    def _work(self) -> None:
        """Handle events until closed: stop the jobs when the run ends, and exit after SIGTERM."""
        self._keep_warm()
        while (event := self._next()) != _CLOSED:
            if event == _SIGTERM and not self._why:
                self._read_workflow()
            if self._why and not self._stopped.is_set():
                self._stop()
            if event == _SIGTERM:
                if not self._why:
                    log.info("received SIGTERM, but the run was not stopped, so its job continues")
                    self._call_on_exit()
                self._on_exit_done.wait(_ON_EXIT_SECONDS)
                self._exiting = True
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
        """Stop the run's jobs, then call `on_exit`."""
        try:
            self._stopping.stop(self._jobs())
            log.info("the run and its jobs were stopped: %s", self._why)
        except Exception:
            log.exception("the run was stopped (%s), but a bug kept its jobs running", self._why)
        finally:
            self._stopped.set()
        self._call_on_exit()

    def _call_on_exit(self) -> None:
        """Call `on_exit` in a thread, because it must not delay the handling of events."""

        def call() -> None:
            try:
                self._on_exit(self._why)
            except Exception:
                log.exception("could not store everything before exiting")
            finally:
                self._on_exit_done.set()

        threading.Thread(target=call, name="on exit", daemon=True).start()

    def _next(self) -> str:
        """Return the next event; _CHANGED if none arrives before connections become idle."""
        try:
            return self._events.get(timeout=_WARM_SECONDS)
        except queue.Empty:
            return _CHANGED

    def _read_workflow(self) -> None:
        """Read the Workflow after SIGTERM; if that fails, its last known state decides."""
        path = self._urgent_api.workflow(self._owner["name"])
        for _ in range(2):  # even a warm connection may be dead
            try:
                self._take("MODIFIED", self._urgent_api.once("GET", path, {}, _READ_SECONDS))
                break
            except CALL_FAILED as error:
                if getattr(error, "status", None):
                    break  # then the node is drained, unless an earlier state showed the run's end
            except Exception:
                log.exception(
                    "cannot interpret this run's Workflow, so its last known state decides"
                )
        self._why = self._why or why_ended(self._workflow, datetime.now(UTC) + _SKEW)

    def _follow(self) -> None:
        query = {"fieldSelector": f"metadata.name={self._owner['name']}"}
        watch(self._api, self._api.workflow(""), query, self._take, self._closed, self._broken)

    def _broken(self, why: str) -> None:
        log.warning(
            "cannot watch the Workflow of this run (%s): until that works, Terminate may stop the"
            " job only when its heartbeat times out",
            why,
        )

    def _take(self, event: str, workflow: Object) -> None:
        """Take a state of the Workflow; the first reason stays, because an end is final."""
        if workflow["metadata"].get("uid") != self._owner["uid"]:
            return
        if event == "DELETED":
            workflow["metadata"].setdefault("deletionTimestamp", "now")
        self._workflow = workflow
        self._why = self._why or why_ended(workflow)
        self._events.put(_CHANGED)


def why_ended(workflow: Object, now: datetime | None = None) -> str:
    """Return the reason why a run ended; empty if it has not, or if a value is unknown.

    Args:
        workflow: The Workflow.
        now: The time, but only after SIGTERM. Argo sends SIGTERM at the run's deadline, before the
            Workflow shows that end.
    """
    status = _part(workflow, "status")
    if _part(workflow, "metadata").get("deletionTimestamp"):
        return "its Workflow was deleted"
    if _deadline_seconds(workflow) == 0:
        return "a user terminated it"
    if shutdown := _part(workflow, "spec").get("shutdown"):
        return f"a user stopped it (shutdown {shutdown})"
    if status.get("phase") in _TERMINAL:
        return f"its Workflow has ended: {status['phase']}"
    if now and (deadline := _deadline(workflow)) and now >= deadline:
        seconds = _deadline_seconds(workflow)
        return f"its Workflow has reached its deadline, {seconds} s after its start"
    return ""


def was_terminated(workflow: Object) -> bool:
    """Return whether a user ended the run, and not its deadline or a failure."""
    return _deadline_seconds(workflow) == 0 or bool(_part(workflow, "spec").get("shutdown"))


def _deadline(workflow: Object) -> datetime | None:
    """Return the time of the run's deadline; None without a deadline or before its start."""
    seconds = _deadline_seconds(workflow)
    if seconds is None:
        return None
    try:
        started = datetime.fromisoformat(str(_part(workflow, "status").get("startedAt")))
        return started.replace(tzinfo=started.tzinfo or UTC) + timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        return None


def _deadline_seconds(workflow: Object) -> int | None:
    seconds = _part(workflow, "spec").get("activeDeadlineSeconds")
    return seconds if isinstance(seconds, int) and not isinstance(seconds, bool) else None


def _part(workflow: Object, name: str) -> Object:
    """Return a section of the Workflow, such as `spec`; empty if it is not an object."""
    section = workflow.get(name)
    return section if isinstance(section, dict) else {}
