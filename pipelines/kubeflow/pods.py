"""The pods and jobs of a run on the cluster, if this machine can reach it.

The Kubeflow Pipelines API does not report a training job's pods or why a pod waits. With a
kubeconfig, or in a pod, the Kubernetes API reports both. Called by the Python client and the
commands that explain, end or check a run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.kinds import KINDS
from kfp_tfjob.jobs.labels import RUN_ID_LABEL, RUN_LABEL, run_label
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.status import is_over

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient
    from kfp_tfjob.components.finish.workflow import FailedTask

INSTALLATION = "kubeflow"  # the namespace in which a back end without users runs everything
_SECONDS = 4.0  # of retries; the cluster is optional here, and a person waits
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ClusterSnapshot:
    """The objects of a run on the cluster that have not ended.

    Attributes:
        steps: Names of the steps' pods.
        pods: Names of the training jobs' pods.
        jobs: Names of the training jobs.
        waits: The reasons why pods wait, one sentence each.
    """

    steps: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the number of objects of each kind, for example `2 training pods, 1 job`."""
        counts = {
            "step pod": self.steps,
            "training pod": self.pods,
            "job": self.jobs,
        }
        return ", ".join(
            f"{len(names)} {_plural(noun, len(names))}" for noun, names in counts.items() if names
        )


class RunOnCluster:
    """One run's objects on the cluster.

    Args:
        run_id: The run.
        namespace: Its namespace; empty to search the kubeconfig's and the installation's.

    Attributes:
        trouble: The reason why the cluster cannot be asked; empty if it can.
        known: Whether the cluster ever had objects of the run, which shows that it is the right
            one.
        namespace: The namespace of the runs; empty for the kubeconfig's.
    """

    def __init__(self, run_id: str, namespace: str = "") -> None:
        self.trouble, self.known, self.namespace = "", False, namespace
        self._run_id = run_id
        self._selector = f"{RUN_ID_LABEL}={run_id}"
        self._api = self._connect(namespace)

    @property
    def where(self) -> str:
        """The namespace, for messages."""
        return f"namespace {self._api.namespace}" if self._api else ""

    def snapshot(self) -> ClusterSnapshot | None:
        """Return the run's current objects; None if the cluster cannot be asked."""
        if self._api is None:
            return None
        try:
            return self._read_snapshot(self._api)
        except StepError as error:
            self.trouble = error.first
            return None

    def failed(self) -> list[FailedTask]:
        """Return the tasks that failed according to Argo, with the last lines of their logs."""
        if self._api is None:
            return []
        from kfp_tfjob.cluster.kubernetes import KubernetesBackend
        from kfp_tfjob.components.finish.workflow import read_failed_tasks

        logging.getLogger("kfp_tfjob.components.finish").setLevel(logging.ERROR)
        with KubernetesBackend(self._api) as backend:
            workflow = self._workflow(self._api)
            return read_failed_tasks(self._api, self._run_id, workflow, backend.tail)[0]

    def _connect(self, namespace: str) -> ClusterClient | None:
        try:
            from kfp_tfjob.cluster.client import PATIENCE, ClusterClient

            api = ClusterClient.from_environment(replace(PATIENCE, seconds=_SECONDS, first=0.2))
        except StepError:
            self.trouble = "this machine has no kubeconfig"
            return None
        logging.getLogger("kfp_tfjob.storage.retry").setLevel(logging.ERROR)
        errors: list[StepError] = []
        namespaces = [namespace] if namespace else [api.namespace, INSTALLATION]
        for candidate in dict.fromkeys(namespaces):
            api.namespace = candidate
            try:
                if api.list(api.core("pods"), labelSelector=self._selector, limit="1"):
                    self.known = True
                    return api
            except StepError as error:
                errors.append(error)  # the account may read another namespace
        if errors:
            self.trouble = errors[0].first
            return None
        return api  # perhaps no pod exists yet

    def _read_snapshot(self, api: ClusterClient) -> ClusterSnapshot:
        from kfp_tfjob.cluster import waiting_reasons
        from kfp_tfjob.cluster.api_errors import ForbiddenError, NotFoundError
        from kfp_tfjob.cluster.pod_summary import pod_summary

        label = f"{RUN_LABEL}={run_label(self._run_id)}"
        steps = api.list(api.core("pods"), labelSelector=self._selector)
        pods = api.list(api.core("pods"), labelSelector=label)
        jobs: list[Object] = []
        for kind in KINDS:
            kind_api = api.of(kind)
            try:
                jobs += kind_api.list_jobs(label)
            except (NotFoundError, ForbiddenError):
                continue  # the cluster lacks this kind, or does not let this account list it
        self.known = self.known or bool(steps or pods or jobs)
        waits = [
            f"{pod['metadata']['name']} waits: {reason}"
            for pod in _alive(steps)
            if (reason := waiting_reasons.reason(pod, self._start_events(api, pod)))
        ]
        running = [job for job in jobs if not is_over(job)]
        for job in running:
            name = job["metadata"]["name"]
            job_pods = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]
            summary = pod_summary(job, job_pods, self._events(api, name))
            if "waiting" in summary or "not made" in summary:
                waits.append(f"{name}: {summary}")
        return ClusterSnapshot(
            steps=_names(_alive(steps)),
            pods=_names(_alive(pods)),
            jobs=_names(running),
            waits=tuple(waits),
        )

    def _start_events(self, api: ClusterClient, pod: Object) -> Sequence[Object]:
        """Return the events of a pod that has not started; the warnings of others are over."""
        from kfp_tfjob.cluster.waiting_reasons import has_begun

        return () if has_begun(pod) else self._events(api, pod["metadata"]["name"])

    @staticmethod
    def _events(api: ClusterClient, name: str) -> Sequence[Object]:
        try:
            return api.list(api.core("events"), fieldSelector=f"involvedObject.name={name}")
        except StepError:
            return []  # without this right, a reason merely has fewer details

    def _workflow(self, api: ClusterClient) -> str:
        """Return the name of the run's Workflow; empty if it cannot be read."""
        try:
            workflows = api.list(api.workflow("").rstrip("/"), labelSelector=self._selector)
        except StepError:
            return ""  # the pods alone also show which tasks failed
        return workflows[0]["metadata"]["name"] if workflows else ""


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else noun.replace("pod", "pods").replace("job", "jobs")


def _alive(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if pod["status"].get("phase") not in _OVER]


def _names(objects: list[Object]) -> tuple[str, ...]:
    return tuple(sorted(manifest["metadata"]["name"] for manifest in objects))
