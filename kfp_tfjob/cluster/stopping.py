"""Stops the job of an ended run with four requests, from the exit task or the launcher.

1. Annotate the chief's pod with its remaining time. A command that does not stop is killed early
   enough for the sidecar to store its files.
2. Delete the chief's pod with that time as its grace period. This is the first deletion, because a
   grace period cannot be shortened later, and the pod's own is long enough for a full checkpoint.
3. Delete the other pods with a short grace period: they store nothing.
4. Delete the job. If it came first, Kubernetes would delete its pods with their own grace periods.

The exit task has enough time for this. A launcher has about 1.5 s after the click on Terminate, so
it prepares the connections and the names in advance.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kfp_tfjob.cluster.client import CALL_FAILED, ClusterClient
from kfp_tfjob.cluster.errors import ApiError
from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.labels import RUN_LABEL, STOP_WITHIN_ANNOTATION
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import cancel_grace, is_being_deleted, is_chief, is_over

log = logging.getLogger(__name__)

OTHERS_SECONDS = 10  # the grace period of pods that store nothing
_CONNECTIONS = 2
_STEP_SECONDS = 0.25  # then the next request is sent without waiting for the response
_CALL_SECONDS = (1.0, 5.0)  # to connect, and for a late response
_STUBBORN_SECONDS = 60.0
_PAUSE = 0.5


@dataclass(frozen=True)
class Order:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: object = None


@dataclass(frozen=True)
class Running:
    """A job to stop within seconds; its chief's pod is empty if none has been seen."""

    name: str
    chief: str
    seconds: int


def orders(api: ClusterClient, job: Running, run: str) -> tuple[Order, ...]:
    """Return the requests that stop a job, in this order."""
    pods, kind = api.core("pods"), api.kind
    mine = f"{RUN_LABEL}={run},{kind.pods_of(job.name)}"
    long = {"gracePeriodSeconds": str(job.seconds)}
    short = {"gracePeriodSeconds": str(min(OTHERS_SECONDS, job.seconds))}
    if job.chief:
        chief = api.core("pods", job.chief)
        told = {"metadata": {"annotations": {STOP_WITHIN_ANNOTATION: f"{job.seconds}s"}}}
        first = (Order("PATCH", chief, {}, told), Order("DELETE", chief, long))
    else:  # a pod that has just been created has nothing to store yet
        selector = f"{mine},{kind.role_label}={kind.label_of(CHIEF)}"
        first = (Order("DELETE", pods, {"labelSelector": selector, **long}),) * 2
    others = f"{mine},{kind.role_label}!={kind.label_of(CHIEF)}"
    return (
        *first,
        Order("DELETE", pods, {"labelSelector": others, **short}),
        Order("DELETE", api.jobs(job.name), {"propagationPolicy": "Foreground"}),
    )


def chief_of(kind: JobKind, job: str, pods: Iterable[Object]) -> str:
    """Return the name of a job's chief pod; empty if it is neither seen nor known in advance."""
    if kind.names_pods:
        return kind.pod_name(job, CHIEF, 0)
    found = (pod["metadata"] for pod in pods if is_chief(pod))
    return next((it["name"] for it in found if it["labels"].get(kind.name_label) == job), "")


class Stopping:
    """Stops one run's jobs quickly, over open connections."""

    def __init__(self, api: ClusterClient, run: str, seconds: int) -> None:
        self._api, self._run, self._seconds = api, run, seconds
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="stop")
        self._warming: list[Future[None]] = []

    def keep_warm(self) -> None:
        """Use every connection once, without waiting: idle connections are closed."""
        if all(call.done() for call in self._warming):
            both = threading.Barrier(_CONNECTIONS)
            self._warming = [self._pool.submit(self._warm, both) for _ in range(_CONNECTIONS)]

    def stop(self, jobs: Mapping[str, str]) -> None:
        """Stop jobs, then all of the run's other jobs; repeat failed requests for a minute."""
        known = [Running(name, chief, self._seconds) for name, chief in jobs.items()]
        began, failed = time.monotonic(), self._stop(known)
        while True:
            if failed:  # logged after the requests, because writing a line may block
                log.warning("stopping the run: %s", "; ".join(failed))
            try:
                left = self._left()
                failed = self._stop(left)
                if not left:
                    return
            except CALL_FAILED as error:
                failed = [_words(error)]
            if time.monotonic() - began > _STUBBORN_SECONDS:
                return
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Release the connections; calls in progress finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, jobs: Collection[Running]) -> list[str]:
        """Send the requests for all jobs at the same time; return the failures."""
        calls: list[Future[str]] = []
        for step in zip(*(orders(self._api, job, self._run) for job in jobs), strict=True):
            now = [self._pool.submit(self._make, order) for order in step]
            # A late response delays nothing, and its request is not cancelled.
            wait(now, _STEP_SECONDS)
            calls += now
        return [failure for call in calls if (failure := call.result())]

    def _make(self, order: Order) -> str:
        """Send a request, again if the connection was dead; return the failure, if any."""
        for last in (False, True):
            try:
                self._api.once(order.method, order.path, order.query, _CALL_SECONDS, order.body)
                return ""
            except ApiError as error:
                return "" if error.status == 404 else _words(error)
            except CALL_FAILED as error:
                if last:
                    return _words(error)
        return ""

    def _left(self) -> list[Running]:
        """Return the run's jobs that have not ended and are not being deleted.

        Those of other tasks have their own time to stop, because their launchers may be down.
        """
        kind, pods = self._api.kind, []
        found = self._listed(self._api.jobs())
        left = [
            job
            for job in self._api.with_kind(found)
            if not is_over(job) and not is_being_deleted(job)
        ]
        if left and not kind.names_pods:
            pods = self._listed(self._api.core("pods"))
        names = [job["metadata"]["name"] for job in left]
        return [
            Running(name, chief_of(kind, name, pods), cancel_grace(job, self._seconds))
            for name, job in zip(names, left, strict=True)
        ]

    def _listed(self, path: str) -> list[Object]:
        query = {"labelSelector": f"{RUN_LABEL}={self._run}"}
        return self._api.once("GET", path, query, _CALL_SECONDS).get("items") or []

    def _warm(self, together: threading.Barrier) -> None:
        try:
            together.wait(_CALL_SECONDS[0])  # otherwise, one connection would serve both
            self._left()
        except CALL_FAILED:
            return  # the connection is open, whatever the response was
        except threading.BrokenBarrierError:
            return
        except Exception:  # nobody asks for the result
            log.exception("a connection for stopping the run is not kept open")


def _words(error: Exception) -> str:
    if isinstance(error, ApiError):
        return f"HTTP {error.status}: {error.message}"
    return f"{type(error).__name__}: {error}"
