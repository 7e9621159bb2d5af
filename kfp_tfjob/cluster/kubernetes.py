"""Runs jobs on a cluster, as raw objects."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import urllib3

from kfp_tfjob.cluster.backend import Farewell
from kfp_tfjob.cluster.client import CALL_SECONDS, ClusterClient
from kfp_tfjob.cluster.create_job import create_job
from kfp_tfjob.cluster.errors import (
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
from kfp_tfjob.cluster.job_watch import JobWatcher
from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.cluster.own_task import POD_NAME
from kfp_tfjob.cluster.pod_logs import PodLogs
from kfp_tfjob.cluster.run_watch import WorkflowWatcher, was_terminated
from kfp_tfjob.cluster.stopping import Running, chief_of, orders
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over, on_lost_node, replica_of
from kfp_tfjob.storage.errors import StepError
from kfp_tfjob.storage.retry import Patience

log = logging.getLogger(__name__)

_LOST_NODE_SECONDS = 60.0  # enough, because attempts have different names and are fenced
_LONGEST_GRACE = 24 * 3600.0
_HEARD_SECONDS = 2.0  # a node shows a new annotation in a volume after about half a second
_POLL = 0.5


class KubernetesBackend:
    """Jobs in one namespace; they outlive this process.

    Args:
        api: The cluster.
        operator_seconds: How long the operator's webhook may be unreachable when a job is created.
    """

    def __init__(self, api: ClusterClient, operator_seconds: float = 60) -> None:
        self._api, self._operator_seconds = api, operator_seconds
        self._watching: dict[str, JobWatcher] = {}
        self._logs: dict[str, PodLogs] = {}
        self._lock = threading.Lock()

    def owner(self) -> Object | None:
        """Return the ownerReference of jobs: this pod's Workflow, or None.

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
                known = {key: reference[key] for key in ("apiVersion", "kind", "name", "uid")}
                return known | {"controller": False, "blockOwnerDeletion": False}
        return None

    @contextmanager
    def watch_workflow(
        self, run_id: str, owner: Object | None, seconds: int, farewell: Farewell
    ) -> Iterator[Callable[[], str]]:
        """Stop the jobs as soon as the run ends; only a pod of Kubeflow Pipelines has a run."""
        if not owner:
            log.info("this step has no Workflow, so it cannot notice when the run ends")
            yield lambda: ""
            return
        with WorkflowWatcher(self._api, run_id, owner, self._running, seconds, farewell) as watch:
            yield lambda: watch.why_ended

    def create(self, manifest: Object) -> None:
        """Create a job; a name that is taken may be of our own call, whose response was lost."""
        kind = self._api.kind
        what = f"create {kind.name} {self._api.namespace}/{manifest['metadata']['name']}"

        def call() -> None:
            if kind.in_sdk:
                create_job(self._api, manifest)
            else:
                self._api.once("POST", self._api.jobs(), {}, CALL_SECONDS, dict(manifest))

        patience = Patience(
            self._operator_seconds, party="the cluster", error=ClusterUnavailableError
        )
        try:
            patience.run(what, call, transient)
        except ApiError as error:
            found = translate(error, what)
            if isinstance(found, NotFoundError) and "namespaces" not in str(found):
                raise OperatorAbsentError(absent(kind, str(found))) from error
            raise found from error
        except ClusterUnavailableError as error:
            if webhook_is_away(error.__cause__):
                raise OperatorAbsentError(silent(kind, str(error))) from error
            raise

    def get(self, name: str) -> Object | None:
        """Return the job, or None."""
        self._watched(name).seen()
        return self._api.get(self._api.jobs(name))

    def pods(self, name: str) -> list[Object]:
        """Return a job's pods, including deleted ones in their last known state."""
        selector = self._api.kind.pods_of(name)
        listed = self._api.list(self._api.core("pods"), labelSelector=selector)
        there = {pod["metadata"]["name"] for pod in listed}
        gone = [pod for pod in self._watched(name).pods if pod["metadata"]["name"] not in there]
        return [*listed, *gone]

    def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait for a change of the job or its pods since `get`, at most `timeout` seconds."""
        self._watched(name).wait(timeout)

    def logs(self, name: str) -> Iterator[LogLine]:
        """Yield the lines of all containers until the job and its pods have ended."""
        watching = self._watched(name)

        def over() -> bool:
            return watching.closed or (watching.job is not None and is_over(watching.job))

        self._logs[name] = logs = PodLogs(self._api, lambda: watching.pods, over)
        return iter(logs)

    def silence(self, name: str) -> float | None:
        """Return the seconds since the chief's last line; None while its log cannot be read."""
        logs = self._logs.get(name)
        return logs.silence("chief-0") if logs else None

    def events(self, name: str) -> list[Object]:
        """Return the events of a job or pod, newest last; none if RBAC forbids reading them."""
        try:
            found = self._api.list(
                self._api.core("events"), fieldSelector=f"involvedObject.name={name}"
            )
        except ForbiddenError:
            return []
        return sorted(found, key=_said_at)

    def place_in_queue(self, queue: str, workload: str) -> int | None:
        """Return the place of a Workload in a LocalQueue, from 1; None if Kueue does not tell."""
        try:
            waiting = self._api.within(2).list(self._api.pending_workloads(queue))
        except StepError:  # no right, or no visibility server
            return None
        places = {it["metadata"]["name"]: int(it["positionInLocalQueue"]) + 1 for it in waiting}
        return places.get(workload)

    def nodes(self) -> list[Object] | None:
        """Return the cluster's nodes; None without the right of deploy/optional/nodes."""
        try:
            return self._api.within(10).list("/api/v1/nodes")
        except StepError:
            return None

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Set annotations of the chief's pod, if it exists; it reads them in PODINFO_DIR."""
        if not (chief := chief_of(self._api.kind, name, self._watched(name).pods)):
            return
        try:
            self._api.annotate(self._api.core("pods", chief), values)
        except NotFoundError:
            return  # it is not created yet, or has just ended

    def cancel(self, name: str, run: str, seconds: int) -> None:
        """Stop a job within `seconds`; its own grace period is longer, to store a checkpoint."""
        pods = [] if self._api.kind.names_pods else self.pods(name)
        job = Running(name, chief_of(self._api.kind, name, pods), seconds)
        *before, _ = orders(self._api, job, run)
        for order in before:
            try:
                self._api.request(order.method, order.path, order.query, order.body)
            except NotFoundError:
                continue
            except StepError as error:
                log.warning("%s may use its whole grace period: %s", name, error)
            if order.method == "PATCH":
                time.sleep(_HEARD_SECONDS)  # the volume of a pod being deleted no longer changes
        self.delete(name, seconds)

    def is_terminated(self) -> bool | None:
        """Return whether a user ended the run of this pod; None if the Workflow cannot be read."""
        owner = self.owner()
        try:
            workflow = self._api.get(self._api.workflow(owner["name"])) if owner else None
        except StepError as error:
            log.info("the Workflow cannot be read: %s", error)
            return None
        return was_terminated(workflow) if workflow else None

    def delete(self, name: str, seconds: float | None = None) -> None:
        """Delete a job; return when its pods are gone, except those on a lost node.

        The pods have their own grace period, or `seconds`.
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
                    # Otherwise, the job would stay as long as its node. The cluster removes pods
                    # of a lost node, with or without a job, when it returns or is removed.
                    self._api.delete(self._api.jobs(name), "Background")
                break
            time.sleep(_POLL)
        if watching := self._watching.pop(name, None):
            watching.close()

    def jobs_of(self, label: str) -> list[Object]:
        """Return the jobs with a label, for example `kfp-tfjob/run=x`."""
        return self._api.list_jobs(label)

    def tail(self, pod: str, container: str, lines: int) -> list[str]:
        """Return a container's last lines, or the reason why they cannot be read."""
        path = self._api.core("pods", pod) + "/log"
        query = {"container": container, "tailLines": str(lines)}
        try:
            return [line.decode(errors="replace") for line in self._api.lines(path, query, 10)]
        except ApiError as error:
            return [f"(the log cannot be read: {translate(error, f'read the log of {pod}')})"]
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return [f"(the log cannot be read: {type(error).__name__})"]

    def close(self) -> None:
        """Stop following; every job stays as it is."""
        for follower in (*self._watching.values(), *self._logs.values()):
            follower.close()

    def __enter__(self) -> KubernetesBackend:
        """Return the back end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop following."""
        self.close()

    def _running(self) -> dict[str, str]:
        """Return the chief's pod of each followed job that has not ended, without a request."""
        with self._lock:
            followed = dict(self._watching)
        return {
            name: chief_of(self._api.kind, name, seen.pods)
            for name, seen in followed.items()
            if not (seen.job and is_over(seen.job))
        }

    def _watched(self, name: str) -> JobWatcher:
        with self._lock:  # a separate thread reads the lines
            if name not in self._watching:
                self._watching[name] = JobWatcher(self._api, name)
            return self._watching[name]


def _said_at(event: Object) -> str:
    """Return the last time of an event, as text that sorts to the second."""
    said = event.get("lastTimestamp") or event.get("eventTime")
    return str(said or event["metadata"].get("creationTimestamp") or "")[:19]
