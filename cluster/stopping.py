"""How the job of an ended run is stopped, by the exit task or the launcher: four requests.

1. The chief's pod is told how long it has: a command that does not listen is killed in time for
   the sidecar to store what there is.
2. The chief's pod is deleted with that time as its grace period. It is the first deletion, because
   a grace period cannot be shortened later, and that of the pod was made for storing in peace.
3. The other pods are deleted with a short one: they store nothing.
4. The job is deleted; were it first, Kubernetes would delete its pods with their own periods.

The exit task has time for them. A launcher whose run is terminated has about a second and a half
from the click on, so what it needs then is there before: connections and names.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kubernetes.client.exceptions import ApiException

from kfp_tfjob.cluster.client import CALL_FAILED, MERGE, ClusterClient
from kfp_tfjob.cluster.errors import message
from kfp_tfjob.jobs.kind import CHIEF
from kfp_tfjob.jobs.labels import RUN_LABEL, STOP_WITHIN_ANNOTATION
from kfp_tfjob.jobs.status import is_being_deleted, is_over

log = logging.getLogger(__name__)

OTHERS_SECONDS = 10  # that pods have which store nothing
_CONNECTIONS = 2
_STEP_SECONDS = 0.25  # after that the next request is made without waiting for the answer
_CALL_SECONDS = (1.0, 5.0)  # to connect, and for an answer that comes in spite of it
_STUBBORN_SECONDS = 60.0
_PAUSE = 0.5


@dataclass(frozen=True)
class Order:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: object = None
    content: str = "application/json"


def orders(api: ClusterClient, job: str, run: str, seconds: int) -> tuple[Order, ...]:
    """Return what stops a job, in this order.

    Args:
        api: Where it runs.
        job: The name of the job.
        run: The value of its label RUN_LABEL.
        seconds: What the chief and its sidecar have to end.
    """
    chief = api.core("pods", api.kind.pod_name(job, CHIEF, 0))
    told = {"metadata": {"annotations": {STOP_WITHIN_ANNOTATION: f"{seconds}s"}}}
    others = f"{RUN_LABEL}={run},{api.kind.other_pods_of(job, CHIEF)}"
    return (
        Order("PATCH", chief, {}, told, MERGE),
        Order("DELETE", chief, {"gracePeriodSeconds": str(seconds)}),
        Order(
            "DELETE",
            api.core("pods"),
            {"labelSelector": others, "gracePeriodSeconds": str(min(OTHERS_SECONDS, seconds))},
        ),
        Order("DELETE", api.jobs(job), {"propagationPolicy": "Foreground"}),
    )


class Stopping:
    """Stops the jobs of one run in a hurry, over connections that are there already.

    Args:
        api: The cluster; its connections are shared with nothing else.
        run: The value of the jobs' label RUN_LABEL.
        seconds: What the chief and its sidecar have to end.
    """

    def __init__(self, api: ClusterClient, run: str, seconds: int) -> None:
        self._api, self._run, self._seconds = api, run, seconds
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="stop")
        self._warming: list[Future[None]] = []

    def keep_warm(self) -> None:
        """Use every connection once, without waiting for it: one that is idle is closed."""
        if all(call.done() for call in self._warming):
            both = threading.Barrier(_CONNECTIONS)
            self._warming = [self._pool.submit(self._warm, both) for _ in range(_CONNECTIONS)]

    def stop(self, jobs: Collection[str]) -> None:
        """Stop jobs, and then whatever else the run has; repeat what does not work for a minute.

        Args:
            jobs: Names that are known without asking.
        """
        began, failed = time.monotonic(), self._stop(jobs)
        while True:
            if failed:  # said after the requests: a line may wait for somebody to read it
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
        """Let go of the connections; calls that are under way come to their end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, jobs: Collection[str]) -> list[str]:
        """Make the requests for all jobs at the same time; return what did not work."""
        calls: list[Future[str]] = []
        for step in zip(
            *(orders(self._api, job, self._run, self._seconds) for job in jobs), strict=True
        ):
            now = [self._pool.submit(self._make, order) for order in step]
            # An answer that is late holds nothing up, and the request is not taken back.
            wait(now, _STEP_SECONDS)
            calls += now
        return [failure for call in calls if (failure := call.result())]

    def _make(self, order: Order) -> str:
        """Make a request, once more if the connection was dead; return what is wrong."""
        for last in (False, True):
            try:
                self._api.once(
                    order.method, order.path, order.query, _CALL_SECONDS, order.body, order.content
                )
                return ""
            except ApiException as error:
                return "" if error.status == 404 else _words(error)
            except CALL_FAILED as error:
                if last:
                    return _words(error)
        return ""

    def _left(self) -> list[str]:
        """Return the jobs of the run that have neither ended nor are being deleted."""
        query = {"labelSelector": f"{RUN_LABEL}={self._run}"}
        found, _ = self._api.once("GET", self._api.jobs(), query, _CALL_SECONDS)
        return [
            job["metadata"]["name"]
            for job in found.get("items") or []
            if not is_over(job) and not is_being_deleted(job)
        ]

    def _warm(self, together: threading.Barrier) -> None:
        try:
            together.wait(_CALL_SECONDS[0])  # else one connection would serve both
            self._left()
        except CALL_FAILED:
            return  # whatever the answer was, the connection is there
        except threading.BrokenBarrierError:
            return


def _words(error: Exception) -> str:
    if isinstance(error, ApiException):
        return f"HTTP {error.status}: {message(error)}"
    return f"{type(error).__name__}: {error}"
