"""Workers in pods of a cluster: starts them as one Indexed Job, looks after it and deletes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_tfjob.components.prepare_data.executors.certificate import Certificate
from kfp_tfjob.components.prepare_data.executors.distributed import PORT, Workers, own_address
from kfp_tfjob.components.prepare_data.executors.worker_job import WorkerJob, inputs_of, secret_of
from kfp_tfjob.components.step import Step
from kfp_tfjob.components.step_job import GRACE_SECONDS
from kfp_tfjob.components.step_job_limits import StepJobLimits
from kfp_tfjob.components.step_job_run import StepJobRun, WorkFailedError
from kfp_tfjob.jobs.status import is_being_deleted
from kfp_tfjob.jobs.step_job import STEP_JOB
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from kfp_tfjob.storage.errors import ConfigurationError, Problem, StepError

if TYPE_CHECKING:
    from kfp_tfjob.cluster.client import ClusterClient

log = logging.getLogger(__name__)

TO_INSTALL = "kfp-tfjob install --with workers --apply"
_CLOSING_SECONDS = 15.0


class ClusterWorkers(Workers):
    """The pods of one Job.

    Args:
        step: The run and its store.
        job: The workers.
        api: The cluster; None for that of this pod.
    """

    def __init__(self, step: Step, job: WorkerJob, api: ClusterClient | None = None) -> None:
        self.count = job.count * job.processes
        self.host, self.port = own_address(), PORT
        self._step, self._job, self._api = step, job, api
        self._opened = ExitStack()
        self._run: WorkerJobRun | None = None

    def start(self, scheduler: str, certificate: Certificate) -> None:
        """Create the Job and its Secret, and follow it in a thread."""
        from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
        from kfp_tfjob.cluster.kubernetes import KubernetesBackend

        api = (self._api or ClusterClient.from_environment(PATIENCE)).of(STEP_JOB)
        backend = self._opened.enter_context(KubernetesBackend(api))
        owner = backend.owner()
        run = WorkerJobRun(self._step, self._job, inputs_of(scheduler), backend, owner)
        run.ended = self._opened.enter_context(
            backend.watch_workflow(self._step.run_id, owner, GRACE_SECONDS, lambda _: run.discard())
        )
        self._run = run
        run.begin(api, certificate)

    def check(self, connected: int) -> None:
        """Fail when no worker will come."""
        assert self._run
        self._run.check(connected)

    def stop(self) -> None:
        """Delete the Job, and with it pods and Secret."""
        if self._run:
            self._run.end()
        self._opened.close()


@dataclass
class WorkerJobRun(StepJobRun):
    """The Job of the workers of one try of a step."""

    def __post_init__(self) -> None:
        self._connected = 0
        self._name = ""
        self._over = False
        self._failure: StepError | None = None
        self._thread = threading.Thread(target=self._look, name="workers", daemon=True)

    def begin(self, api: ClusterClient, certificate: Certificate) -> None:
        """Delete what an earlier try has left, and start the workers.

        Args:
            api: The cluster.
            certificate: For their Secret.

        Raises:
            StepError: The cluster refuses them, or does not answer.
        """
        from kfp_tfjob.cluster.errors import ForbiddenError

        self._adopted()  # adopts none, because the address of the scheduler is another one
        # SIGTERM may come while the Job is being created.
        self._name = self._manifest(self._number)["metadata"]["name"]
        self._created()
        if self._over:
            self.backend.discard(self._name)
        job = self.backend.get(self._name)
        if job is None:
            raise ConfigurationError(
                Problem(f"Job {self._name} was deleted at once", fix="find out who deletes Jobs")
            )
        try:
            api.request("POST", api.core("secrets"), {}, secret_of(job, self.inputs, certificate))
        except ForbiddenError as error:
            raise self._no_right(error) from error
        self._thread.start()

    def check(self, connected: int) -> None:
        """Fail when no worker will come.

        Args:
            connected: How many of their processes are connected.

        Raises:
            StepError: None will.
        """
        self._connected = connected
        if self._failure:
            raise self._failure

    def discard(self) -> None:
        """Delete the Job without waiting: its workers have nothing to save."""
        self._over = True
        if self._name:
            self.backend.discard(self._name)

    def end(self) -> None:
        """Delete the Job, and wait for the last lines of its pods."""
        self.discard()
        if self._thread.is_alive():
            self._thread.join(_CLOSING_SECONDS)

    def _look(self) -> None:
        try:
            _, judgement, told, words = self._follow(self._name)
            if not self._over:
                self._failure = self._why(judgement, words)
                if told:
                    self._failure = WorkFailedError(told.code, told.verdict, told.message)
        except StepError as error:
            self._failure = error
        except Exception as error:
            log.exception("the workers cannot be followed")
            self._failure = StepError(f"the workers cannot be followed: {error}")

    def _why(self, judgement: Judgement, words: list[str]) -> StepError:
        if judgement.verdict == Verdict.SUCCEEDED:
            judgement = Judgement(
                Verdict.UNSCHEDULABLE,
                "all workers have ended, because they could not connect to their step"
                f" ({self.inputs['scheduler']})",
                fix=f"allow connections between the pods of the namespace, to port {PORT} of the"
                " step and from it, if a NetworkPolicy or a service mesh forbids them",
            )
        return self._error(judgement, words)

    def _limits(self) -> StepJobLimits:
        return _WorkerLimits(self.job, self.clock, connected=lambda: self._connected)

    def _no_right(self, error: StepError) -> ConfigurationError:
        first = error.problems[0]
        return ConfigurationError(
            Problem(
                "data_options.workers needs the right to run Jobs and to create Secrets",
                received=first.received if isinstance(first, Problem) else first,
                expected="a service account with the rights of deploy/optional/workers",
                fix=f"ask an administrator to run `{TO_INSTALL}` for this namespace and account, or"
                " remove data_options.workers",
                path="data_options.workers",
            )
        )


@dataclass
class _WorkerLimits(StepJobLimits):
    """The limits of the workers: one that works is enough.

    Attributes:
        connected: Returns how many processes are connected.
    """

    connected: Any = None

    def look(
        self,
        job: Mapping[str, Any],
        pods: Sequence[Mapping[str, Any]],
        events: Sequence[Mapping[str, Any]],
    ) -> Judgement | None:
        """Return a verdict if no worker is there and a limit is reached."""
        if self.connected():
            self._since.clear()
            self.next_limit = float(self.job.settings.pending_timeout_seconds)
            return None
        there = [
            pod
            for pod in pods
            if pod["status"].get("phase") in ("Pending", "Running") and not is_being_deleted(pod)
        ]
        one = {**job, "spec": {**job["spec"], "completions": 1}}
        return super().look(one, there, events)
