"""One launch: the requested job, the back end that runs it, and its run's records.

The parts of the launcher share this object, so that each of them can be tested with a clock and a
back end of its own. Called by `engine.py`, `attempt.py` and `earlier_job.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from kfp_tfjob.checks.subject import open_cluster
from kfp_tfjob.cluster.backend import Backend, is_local
from kfp_tfjob.cluster.log_writer import RunLogs
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import cancelled
from kfp_tfjob.options.parameter_masking import looks_secret
from kfp_tfjob.registry import tracking

from ..step import Step
from .records import Records


def open_backend(spec: JobSpec) -> AbstractContextManager[Backend]:
    """Return the back end that the environment names.

    Raises:
        ConfigurationError: There is no cluster.
    """
    if is_local():
        from kfp_tfjob.cluster.local.backend import LocalBackend

        return LocalBackend.from_environment()
    from kfp_tfjob.cluster.kubernetes import KubernetesBackend

    options = spec.options
    api = open_cluster(options.api_timeout_seconds, spec.kind)
    return KubernetesBackend(api, options.operator_timeout_seconds)


def plugin_tracking(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the MLflow run that the back end's plugin created for this step, as variables.

    It is empty without one. Credentials, and an address that contains some, are left out: the chief
    reads them from the Secret.
    """
    if not environment.get(tracking.RUN_ID):
        return {}
    return {
        name: value
        for name in tracking.PLUGIN_VARIABLES
        if (value := environment.get(name)) and not looks_secret(name, value)
    }


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
        tracking: The MLflow run that the chief continues, as variables.
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
    tracking: Mapping[str, str] = field(default_factory=plugin_tracking)

    @property
    def records(self) -> Records:
        """The run's attempts in the store."""
        return Records(self.step)

    def identity(self, attempt: int) -> Identity:
        """Return the identity of an attempt's job."""
        return Identity(
            self.step.run_id,
            attempt,
            task_key=self.step.task_key,
            owner=self.owner,
            run_uri=str(self.step.run.base),
            tracking=self.tracking,
        )

    def manifest(self, attempt: int) -> Object:
        """Return an attempt's job."""
        return build_job(self.spec, self.identity(attempt))

    def name(self, attempt: int) -> str:
        """Return the name of an attempt's job."""
        return self.identity(attempt).job_name(self.spec.kind)

    def fail_if_ended(self, job: str = "") -> None:
        """Start no job for a run that was ended, and delete a job that was just created."""
        if why := self.ended():
            if job:
                self.backend.delete(job)
            raise cancelled(why).failure()
