"""Stops an ended run's job with four requests, from the exit task or the launcher.

1. Annotate the chief's pod with its remaining time. A command that does not stop is killed early
   enough for the sidecar to store its files.
2. Delete the chief's pod with that time as its grace period. This is the first deletion, because a
   grace period cannot be shortened later, and the pod's own is long enough for a full checkpoint.
3. Delete the other pods with a short grace period, because they store no files.
4. Delete the job. If it came first, Kubernetes would delete its pods with their own grace periods.

The exit task has enough time for this. A launcher has about 1.5 s after the click on Terminate, so
it prepares the connections and the names in advance. Called by `run_watch.py` and by
`KubernetesBackend.cancel`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from kfp_tfjob.jobs.kind import CHIEF, JobKind
from kfp_tfjob.jobs.labels import RUN_LABEL, STOP_WITHIN_ANNOTATION
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import cancel_grace, is_being_deleted, is_chief, is_over, newest_pods

from .api_errors import ApiError
from .client import CALL_FAILED, ClusterClient

log = logging.getLogger(__name__)

OTHERS_SECONDS = 10  # the grace period of pods other than the chief's, which store no files
_CONNECTIONS = 2  # kept open; the first request of a new one would take a TLS handshake longer
_STEP_SECONDS = 0.25  # after that, the next request is sent without this one's response
_CALL_SECONDS = (1.0, 5.0)  # to connect, and for a late response
_RETRY_SECONDS = 60.0  # for failed requests; the exit task and the heartbeat stop a job later
_PAUSE = 0.5  # seconds between two rounds of requests; the grace period is running


@dataclass(frozen=True)
class StopRequest:
    """One of the requests that stop a job."""

    method: str
    path: str
    query: Mapping[str, str]
    body: object = None


@dataclass(frozen=True)
class RunningJob:
    """A job to stop.

    Attributes:
        name: The job.
        chief: Its chief's pod; empty if that is unknown.
        seconds: The time that the chief has to stop.
    """

    name: str
    chief: str
    seconds: int


def stop_requests(api: ClusterClient, job: RunningJob, run: str) -> tuple[StopRequest, ...]:
    """Return the four requests that stop a job, in their order.

    Args:
        api: The cluster.
        job: The job.
        run: The value of its label RUN_LABEL.
    """
    pods, kind = api.core("pods"), api.kind
    job_pods = f"{RUN_LABEL}={run},{kind.pods_of(job.name)}"
    long = {"gracePeriodSeconds": str(job.seconds)}
    short = {"gracePeriodSeconds": str(min(OTHERS_SECONDS, job.seconds))}
    if job.chief:
        chief = api.core("pods", job.chief)
        annotation = {"metadata": {"annotations": {STOP_WITHIN_ANNOTATION: f"{job.seconds}s"}}}
        first = (StopRequest("PATCH", chief, {}, annotation), StopRequest("DELETE", chief, long))
    else:  # the chief was not created or has just been, so there are no files to store yet
        selector = f"{job_pods},{kind.role_label}={kind.label_of(CHIEF)}"
        first = (StopRequest("DELETE", pods, {"labelSelector": selector, **long}),) * 2
    without_chief = f"{job_pods},{kind.role_label}!={kind.label_of(CHIEF)}"
    return (
        *first,
        StopRequest("DELETE", pods, {"labelSelector": without_chief, **short}),
        StopRequest("DELETE", api.jobs(job.name), {"propagationPolicy": "Foreground"}),
    )


def chief_of(kind: JobKind, job: str, pods: Iterable[Object]) -> str:
    """Return the name of a job's chief pod; empty if it is not among the pods or predictable."""
    if kind.names_pods:
        return kind.pod_name(job, CHIEF, 0)
    own = (pod for pod in pods if pod["metadata"]["labels"].get(kind.name_label) == job)
    return next((pod["metadata"]["name"] for pod in newest_pods(own) if is_chief(pod)), "")


class Stopping:
    """Stops one run's jobs quickly, over open connections."""

    def __init__(self, api: ClusterClient, run: str, seconds: int) -> None:
        self._api, self._run, self._seconds = api, run, seconds
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="stop")
        self._warming: list[Future[None]] = []

    def keep_warm(self) -> None:
        """Use every connection once, without waiting, because servers close idle connections."""
        if all(call.done() for call in self._warming):
            barrier = threading.Barrier(_CONNECTIONS)
            self._warming = [self._pool.submit(self._warm, barrier) for _ in range(_CONNECTIONS)]

    def stop(self, jobs: Mapping[str, str]) -> None:
        """Stop jobs, and then all other jobs of the run; repeat failed requests for a minute.

        Args:
            jobs: The chief's pod of each job that the launcher follows. These jobs are stopped
                first, because they need no listing.
        """
        followed = [RunningJob(name, chief, self._seconds) for name, chief in jobs.items()]
        began, failures = time.monotonic(), self._stop(followed)
        while True:
            if failures:  # logged after the requests, because writing a line may block
                log.warning("stopping the run: %s", "; ".join(failures))
            try:
                remaining = self._remaining_jobs()
                failures = self._stop(remaining)
                if not remaining:
                    return
            except CALL_FAILED as error:
                failures = [_one_line(error)]
            if time.monotonic() - began > _RETRY_SECONDS:
                return
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Release the connections; calls in progress finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _stop(self, jobs: Collection[RunningJob]) -> list[str]:
        """Send the requests, each for all jobs at the same time; return the failures."""
        calls: list[Future[str]] = []
        requests = (stop_requests(self._api, job, self._run) for job in jobs)
        for step in zip(*requests, strict=True):
            step_calls = [self._pool.submit(self._send, request) for request in step]
            # A late response does not delay the next step, and its request is not cancelled.
            wait(step_calls, _STEP_SECONDS)
            calls += step_calls
        return [failure for call in calls if (failure := call.result())]

    def _send(self, request: StopRequest) -> str:
        """Send a request, twice if the connection was dead; return the failure, empty if none."""
        for is_last in (False, True):
            try:
                self._api.once(
                    request.method, request.path, request.query, _CALL_SECONDS, request.body
                )
                return ""
            except ApiError as error:
                return "" if error.status == 404 else _one_line(error)
            except CALL_FAILED as error:
                if is_last:
                    return _one_line(error)
        return ""

    def _remaining_jobs(self) -> list[RunningJob]:
        """Return the run's jobs that have not ended and are not being deleted.

        Other tasks' jobs are included, because their launchers may be down. Each job has its own
        time to stop.
        """
        kind, pods = self._api.kind, []
        jobs = self._api.with_kind(self._list(self._api.jobs()))
        remaining = [job for job in jobs if not is_over(job) and not is_being_deleted(job)]
        if remaining and not kind.names_pods:
            pods = self._list(self._api.core("pods"))
        names = [job["metadata"]["name"] for job in remaining]
        return [
            RunningJob(name, chief_of(kind, name, pods), cancel_grace(job, self._seconds))
            for name, job in zip(names, remaining, strict=True)
        ]

    def _list(self, path: str) -> list[Object]:
        """Return the run's objects in a list."""
        query = {"labelSelector": f"{RUN_LABEL}={self._run}"}
        return self._api.once("GET", path, query, _CALL_SECONDS).get("items") or []

    def _warm(self, barrier: threading.Barrier) -> None:
        """Make a request at the same time as the other threads, so each uses its own connection."""
        try:
            barrier.wait(_CALL_SECONDS[0])
            self._remaining_jobs()
        except CALL_FAILED:
            return  # an error response also keeps the connection open
        except threading.BrokenBarrierError:
            return  # the pool is busy, so its connections are in use anyway
        except Exception:  # the future is never read, so a bug would remain unseen
            log.exception("a connection for stopping the run is not kept open")


def _one_line(error: Exception) -> str:
    if isinstance(error, ApiError):
        return f"HTTP {error.status}: {error.message}"
    return f"{type(error).__name__}: {error}"
