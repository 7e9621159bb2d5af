"""One launch: the requested job, the back end that runs it, and the records of its run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE, Backend
from kfp_tfjob.cluster.log_writer import RunLogs
from kfp_tfjob.components.launch_tfjob.records import Records
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import DEFAULT
from kfp_tfjob.jobs.manifest import Identity, build_job
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import cancelled
from kfp_tfjob.storage.errors import ConfigurationError, Problem


def open_backend(
    api_seconds: float = 900, operator_seconds: float = 60, kind: JobKind = DEFAULT
) -> AbstractContextManager[Backend]:
    """Return the back end that the environment names; the seconds are how long each may be away.

    Raises:
        ConfigurationError: The back end does not exist, or there is no cluster.
    """
    choice = os.environ.get(BACKEND_VARIABLE) or "kubernetes"
    if choice == "local":
        from kfp_tfjob.cluster.local.backend import LocalBackend

        return LocalBackend.from_environment()
    if choice == "kubernetes":
        from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
        from kfp_tfjob.cluster.kubernetes import KubernetesBackend

        patience = replace(PATIENCE, seconds=api_seconds)
        return KubernetesBackend(ClusterClient.from_environment(patience, kind), operator_seconds)
    raise ConfigurationError(
        Problem(
            "there is no such back end",
            received=choice,
            expected="kubernetes or local",
            fix=f"correct {BACKEND_VARIABLE}",
        )
    )


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        step: The run and its store.
        spec: The requested job.
        backend: The back end that runs the jobs.
        owner: The ownerReference of the jobs, or None.
        retry: Whether Kubeflow Pipelines, not a person, retries the step.
        ended: Returns why the whole run ended; empty while it has not.
        clock: A monotonic clock; tests replace it.
        sleep: Waits for seconds; tests replace it.
        logs: Stores the log lines of the jobs; None to store none.
    """

    step: Step
    spec: JobSpec
    backend: Backend
    owner: Object | None = None
    retry: bool = False
    ended: Callable[[], str] = field(default=lambda: "", repr=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False)
    logs: RunLogs | None = field(default=None, repr=False)

    @property
    def records(self) -> Records:
        """What the store knows about the run's attempts."""
        return Records(self.step)

    def manifest(self, attempt: int) -> Object:
        """Return the job of an attempt."""
        run, key = self.step.run_id, self.step.task_key
        run_uri = str(self.step.run.base)
        identity = Identity(run, attempt, task_key=key, owner=self.owner, run_uri=run_uri)
        return build_job(self.spec, identity)

    def name(self, attempt: int) -> str:
        """Return the name of the job of an attempt."""
        return self.manifest(attempt)["metadata"]["name"]

    def fail_if_ended(self, made: str = "") -> None:
        """Start no job for a run that was ended, and delete a job that was just created."""
        if why := self.ended():
            if made:
                self.backend.delete(made)
            raise cancelled(why).failure()
