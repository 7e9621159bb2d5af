"""Runs jobs on a cluster, as raw objects.

Jobs and pods are watched from the first call for a job on. The watches only show that something has
changed, and keep deleted pods; the current state is read by requests. Called by the launcher, the
exit task and the commands.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import urllib3

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over, newest_pods, on_lost_node, replica_of
from kfp_tfjob.storage.retry import Patience

from .api_errors import (
    ApiError,
    ClusterUnavailableError,
    ForbiddenError,
    NotFoundError,
    OperatorAbsentError,
    absent,
    silent,
    transient,
    translate,
    webhook_is_away,
)
from .backend import ExitCallback
from .client import CALL_SECONDS, ClusterClient
from .create_job import create_job
from .job_watch import JobWatcher
from .log_lines import LogLine, last_state
from .own_task import POD_NAME
from .pod_logs import PodLogs
from .run_watch import WorkflowWatcher, was_terminated
from .stopping import RunningJob, chief_of, stop_requests

log = logging.getLogger(__name__)

_LOST_NODE_SECONDS = 60.0  # enough, because attempts have different names and are fenced
_LONGEST_GRACE = 24 * 3600.0  # seconds; a pod's own period may be any number
_ANNOTATION_SECONDS = 2.0  # a node shows a new annotation in a volume after about half a second
_POLL = 0.5  # seconds between two looks whether a job's pods are gone


class KubernetesBackend:
    """Jobs in one namespace; they outlive this process.

    Args:
        api: The cluster.
        operator_seconds: How long the operator's webhook may be unreachable when a job is created.
    """

    def __init__(self, api: ClusterClient, operator_seconds: float = 60) -> None:
        self._api, self._operator_seconds = api, operator_seconds
        self._watchers: dict[str, JobWatcher] = {}
        self._logs: dict[str, PodLogs] = {}
        self._lock = threading.Lock()

    def owner(self) -> Object | None:
        """Return the ownerReference to this pod's Workflow; None without one.

        Without blockOwnerDeletion and controller, the Workflow's controller ignores the jobs.
        """
        name = os.environ.get(POD_NAME)
        try:
            pod = self._api.get(self._api.core("pods", name)) if name else None
        except ForbiddenError as error:
            log.warning("the job will not be deleted with its Workflow: %s", error)
            return None
        for reference in (pod or {"metadata": {}})["metadata"].get("ownerReferences") or []:
            if reference["kind"] == "Workflow":
                identity = {key: reference[key] for key in ("apiVersion", "kind", "name", "uid")}
                return identity | {"controller": False, "blockOwnerDeletion": False}
        return None

    @contextmanager
    def watch_workflow(
        self, run_id: str, owner: Object | None, seconds: int, on_exit: ExitCallback
    ) -> Iterator[Callable[[], str]]:
        """Stop the jobs as soon as the run ends; without a Workflow, nothing is watched."""
        if not owner:
            log.info("this step has no Workflow, so it cannot notice when the run ends")
            yield lambda: ""
            return
        with WorkflowWatcher(self._api, run_id, owner, self._running, seconds, on_exit) as watch:
            yield lambda: watch.why_ended

    def create(self, manifest: Object) -> None:
        """Create a job.

        If the name is taken, this call's first attempt may have succeeded without a response.
        """
        kind = self._api.kind
        action = f"create {kind.name} {self._api.namespace}/{manifest['metadata']['name']}"

        def call() -> None:
            if kind.in_sdk:
                create_job(self._api, manifest)
            else:
                self._api.once("POST", self._api.jobs(), {}, CALL_SECONDS, dict(manifest))

        patience = Patience(
            self._operator_seconds, party="the cluster", error=ClusterUnavailableError
        )
        try:
            patience.run(action, call, transient)
        except ApiError as error:
            translated = translate(error, action)
            # A 404 means that the resource is unknown, unless the message names the namespace.
            if isinstance(translated, NotFoundError) and "namespaces" not in str(translated):
                raise OperatorAbsentError(absent(kind, str(translated))) from error
            raise translated from error
        except ClusterUnavailableError as error:
            if webhook_is_away(error.__cause__):
                raise OperatorAbsentError(silent(kind, str(error))) from error
            raise

    def get(self, name: str) -> Object | None:
        """Return the job with its status; None if it does not exist."""
        self._watched(name).seen()
        return self._api.get(self._api.jobs(name))

    def pods(self, name: str) -> list[Object]:
        """Return each replica's newest pod, also if it is deleted, in its last known state."""
        selector = self._api.kind.pods_of(name)
        listed = self._api.list(self._api.core("pods"), labelSelector=selector)
        names = {pod["metadata"]["name"] for pod in listed}
        deleted = [pod for pod in self._watched(name).pods if pod["metadata"]["name"] not in names]
        return newest_pods([*deleted, *listed])

    def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait for a change of the job or its pods since `get`, at most `timeout` seconds."""
        self._watched(name).wait(timeout)

    def logs(self, name: str) -> Iterator[LogLine]:
        """Yield the lines of all containers until the job and its pods have ended."""
        watcher = self._watched(name)

        def over() -> bool:
            return watcher.closed or (watcher.job is not None and is_over(watcher.job))

        self._logs[name] = logs = PodLogs(self._api, lambda: watcher.pods, over)
        return iter(logs)

    def silence(self, name: str) -> float | None:
        """Return the seconds since the chief's last line; None while its log cannot be read."""
        logs = self._logs.get(name)
        return logs.silence("chief-0") if logs else None

    def events(self, name: str) -> list[Object]:
        """Return a job's or pod's events, newest last; empty if RBAC forbids reading them."""
        try:
            events = self._api.list(
                self._api.core("events"), fieldSelector=f"involvedObject.name={name}"
            )
        except ForbiddenError:
            return []
        return sorted(events, key=_event_time)

    def place_in_queue(self, queue: str, workload: str) -> int | None:
        """Return a Workload's place in a LocalQueue, from 1; None if Kueue does not report it."""
        try:
            pending = self._api.with_patience(2).list(self._api.pending_workloads(queue))
        except StepError:  # the right is missing, or Kueue's visibility server
            return None
        places = {
            pending_workload["metadata"]["name"]: int(pending_workload["positionInLocalQueue"]) + 1
            for pending_workload in pending
        }
        return places.get(workload)

    def nodes(self) -> list[Object] | None:
        """Return the cluster's nodes; None without the right from deploy/optional/nodes."""
        try:
            return self._api.with_patience(10).list("/api/v1/nodes")
        except StepError:
            return None

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Set annotations of the chief's pod, if it exists; they are visible in PODINFO_DIR."""
        if not (chief := chief_of(self._api.kind, name, self._watched(name).pods)):
            return
        try:
            self._api.annotate(self._api.core("pods", chief), values)
        except NotFoundError:
            return  # the pod is not created yet, or was just deleted

    def cancel(self, name: str, run: str, seconds: int) -> None:
        """Stop a job within `seconds`, instead of its own longer grace period for a checkpoint."""
        pods = [] if self._api.kind.names_pods else self.pods(name)
        job = RunningJob(name, chief_of(self._api.kind, name, pods), seconds)
        *pod_requests, _ = stop_requests(self._api, job, run)
        for request in pod_requests:
            try:
                self._api.request(request.method, request.path, request.query, request.body)
            except NotFoundError:  # it ended by itself
                continue
            except StepError as error:
                log.warning("%s may take its whole grace period to stop: %s", name, error)
            if request.method == "PATCH":
                # The volume of a pod that is being deleted no longer changes, so wait until the
                # node has updated it.
                time.sleep(_ANNOTATION_SECONDS)
        self.delete(name, seconds)

    def is_terminated(self) -> bool | None:
        """Return whether a user ended this pod's run; None if the Workflow cannot be read."""
        owner = self.owner()
        try:
            workflow = self._api.get(self._api.workflow(owner["name"])) if owner else None
        except StepError as error:
            log.info("the Workflow cannot be read: %s", error)
            return None
        return was_terminated(workflow) if workflow else None

    def delete(self, name: str, seconds: float | None = None) -> None:
        """Delete a job; return when its pods are gone, except pods on a lost node.

        Args:
            name: The job.
            seconds: The pods' grace period; None for their own.
        """
        self._api.delete(self._api.jobs(name))
        began = time.monotonic()
        selector = self._api.kind.pods_of(name)
        grace = seconds or 0.0
        while pods := self._api.list(self._api.core("pods"), labelSelector=selector):
            living = [pod for pod in pods if not on_lost_node(pod)]
            for pod in living if seconds is None else ():
                period = float(pod["spec"].get("terminationGracePeriodSeconds") or 30)
                grace = max(grace, min(period, _LONGEST_GRACE))
            waited = time.monotonic() - began
            if waited > _LOST_NODE_SECONDS + (grace if living else 0):
                names = ", ".join(replica_of(pod) for pod in pods)
                log.warning("%s is deleted, but these pods still exist: %s", name, names)
                if not living:
                    # Otherwise, the job would stay as long as its node. The cluster removes a lost
                    # node's pods, with or without a job, when the node returns or is removed.
                    self._api.delete(self._api.jobs(name), "Background")
                break
            time.sleep(_POLL)
        if watcher := self._watchers.pop(name, None):
            watcher.close()

    def jobs_of(self, label: str) -> list[Object]:
        """Return the jobs with a label, for example `kfp-tfjob/run=x`."""
        return self._api.list_jobs(label)

    def tail(self, pod: str, container: str, lines: int) -> list[str]:
        """Return a container's last lines, or the reason why they cannot be read."""
        path = self._api.core("pods", pod) + "/log"
        query = {"container": container, "tailLines": str(lines)}
        try:
            tail = self._api.lines(path, query, 10)
            return [last_state(line.decode(errors="replace")) for line in tail]
        except ApiError as error:
            return [f"(the log cannot be read: {translate(error, f'read the log of {pod}')})"]
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return [f"(the log cannot be read: {type(error).__name__})"]

    def close(self) -> None:
        """Stop following; every job stays as it is."""
        for follower in (*self._watchers.values(), *self._logs.values()):
            follower.close()

    def __enter__(self) -> KubernetesBackend:
        """Return the back end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop following."""
        self.close()

    def _running(self) -> dict[str, str]:
        """Return the chief's pod of each followed job that has not ended, without any request."""
        with self._lock:
            followed = dict(self._watchers)
        return {
            name: chief_of(self._api.kind, name, watcher.pods)
            for name, watcher in followed.items()
            if not (watcher.job and is_over(watcher.job))
        }

    def _watched(self, name: str) -> JobWatcher:
        """Return the job's watcher; start it on the first call."""
        with self._lock:  # a separate thread reads the lines
            if name not in self._watchers:
                self._watchers[name] = JobWatcher(self._api, name)
            return self._watchers[name]


def _event_time(event: Object) -> str:
    """Return an event's last time to the second, as a string that sorts by time."""
    time = event.get("lastTimestamp") or event.get("eventTime")
    return str(time or event["metadata"].get("creationTimestamp") or "")[:19]
