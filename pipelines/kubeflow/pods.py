"""What runs on the cluster for a run, where this machine may ask the cluster.

The Kubeflow Pipelines API does not report a training job's pods or why a pod waits. With a
kubeconfig, or in a pod, the Kubernetes API says both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfp_tfjob.jobs.kinds import KINDS
from kfp_tfjob.jobs.labels import RUN_ID_LABEL, RUN_LABEL, run_label
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over
from kfp_tfjob.storage.errors import StepError

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient
    from kfp_tfjob.components.finish.workflow import FailedTask

INSTALLATION = "kubeflow"  # where a back end without users runs everything
_SECONDS = 4.0
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Seen:
    """What exists on the cluster for a run.

    Attributes:
        steps: Names of the pods of steps that are not over.
        pods: Names of the pods of training jobs that are not over.
        jobs: Names of the training jobs that are not over.
        waits: Why pods wait, a sentence for each reason.
    """

    steps: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what exists, as text."""
        counts = {
            "step pod": self.steps,
            "training pod": self.pods,
            "job": self.jobs,
        }
        return ", ".join(
            f"{len(names)} {_many(what, len(names))}" for what, names in counts.items() if names
        )


class RunOnCluster:
    """One run's objects on the cluster.

    Attributes:
        trouble: Why the cluster cannot be asked; empty if it can.
        known: Whether the run's pods were ever seen, so that this is the right cluster.
    """

    def __init__(self, run_id: str, namespace: str = "") -> None:
        self.trouble, self.known = "", False
        self._run_id = run_id
        self._selector = f"{RUN_ID_LABEL}={run_id}"
        self._api = self._connect(namespace)

    @property
    def where(self) -> str:
        """The namespace, as text."""
        return f"namespace {self._api.namespace}" if self._api else ""

    def look(self) -> Seen | None:
        """Return what exists now; None if the cluster cannot be asked."""
        if self._api is None:
            return None
        try:
            return self._look(self._api)
        except StepError as error:
            self.trouble = error.first
            return None

    def failed(self) -> list[FailedTask]:
        """Return the tasks that failed according to Argo, with the last lines of their logs."""
        if self._api is None:
            return []
        from kfp_tfjob.cluster.kubernetes import KubernetesBackend
        from kfp_tfjob.components.finish.workflow import look

        logging.getLogger("kfp_tfjob.components.finish").setLevel(logging.ERROR)
        with KubernetesBackend(self._api) as backend:
            return look(self._api, self._run_id, self._workflow(self._api), backend.tail)[0]

    def _connect(self, namespace: str) -> ClusterClient | None:
        try:
            from kfp_tfjob.cluster.client import PATIENCE, ClusterClient

            api = ClusterClient.from_environment(replace(PATIENCE, seconds=_SECONDS, first=0.2))
        except StepError:
            self.trouble = "this machine has no kubeconfig"
            return None
        logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
        tried: list[StepError] = []
        for place in dict.fromkeys([namespace] if namespace else [api.namespace, INSTALLATION]):
            api.namespace = place
            try:
                if api.list(api.core("pods"), labelSelector=self._selector, limit="1"):
                    self.known = True
                    return api
            except StepError as error:
                tried.append(error)
        if tried:
            self.trouble = tried[0].first
            return None
        return api  # perhaps no pod exists yet

    def _look(self, api: ClusterClient) -> Seen:
        from kfp_tfjob.cluster import waiting_reasons
        from kfp_tfjob.cluster.errors import ForbiddenError, NotFoundError
        from kfp_tfjob.cluster.pod_summary import pod_summary

        label = f"{RUN_LABEL}={run_label(self._run_id)}"
        steps = api.list(api.core("pods"), labelSelector=self._selector)
        pods = api.list(api.core("pods"), labelSelector=label)
        jobs: list[Object] = []
        for kind in KINDS:
            of_kind = api.of(kind)
            try:
                jobs += of_kind.list_jobs(label)
            except (NotFoundError, ForbiddenError):
                continue  # this cluster has no such kind, or shows none of it
        self.known = self.known or bool(steps or pods or jobs)
        waits = [
            f"{pod['metadata']['name']} waits: {why}"
            for pod in _alive(steps)
            if (why := waiting_reasons.reason(pod, self._events_of(api, pod)))
        ]
        running = [job for job in jobs if not is_over(job)]
        for job in running:
            name = job["metadata"]["name"]
            mine = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
            said = pod_summary(job, mine, self._events(api, name))
            if "waiting" in said or "not made" in said:
                waits.append(f"{name}: {said}")
        names = (_names(_alive(steps)), _names(_alive(pods)), _names(running))
        return Seen(*names, tuple(waits))

    def _events_of(self, api: ClusterClient, pod: Object) -> Sequence[Object]:
        """Return the events of a pod that has not started; the warnings of others are over."""
        from kfp_tfjob.cluster.waiting_reasons import has_begun

        return () if has_begun(pod) else self._events(api, pod["metadata"]["name"])

    @staticmethod
    def _events(api: ClusterClient, name: str) -> Sequence[Object]:
        try:
            return api.list(api.core("events"), fieldSelector=f"involvedObject.name={name}")
        except StepError:
            return []

    def _workflow(self, api: ClusterClient) -> str:
        try:
            found = api.list(api.workflow("").rstrip("/"), labelSelector=self._selector)
        except StepError:
            return ""
        return found[0]["metadata"]["name"] if found else ""


def _many(what: str, count: int) -> str:
    return what if count == 1 else what.replace("pod", "pods").replace("job", "jobs")


def _alive(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if pod["status"].get("phase") not in _OVER]


def _names(items: list[Object]) -> tuple[str, ...]:
    return tuple(sorted(item["metadata"]["name"] for item in items))
