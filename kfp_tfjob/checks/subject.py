"""The subject of the checks: a job in a namespace of a cluster, which no check creates.

It keeps what several checks read, such as the nodes, so each of these requests is made once. Called
by `engine.py`, and by the programs that run checks: preflight, the launcher, `doctor` and `submit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kfp_tfjob.cluster.api_errors import (
    ClusterUnavailableError,
    ForbiddenError,
    NotFoundError,
    webhook_is_away,
)
from kfp_tfjob.cluster.backend import JobExistsError, JobRefusedError
from kfp_tfjob.cluster.client import PATIENCE, ClusterClient
from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import AUTOMATIC
from kfp_tfjob.jobs.labels import QUEUE_LABEL
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.jobs.spec import JobSpec

from .step_pods import StepPod


@dataclass(frozen=True)
class Subject:
    """A job to check, and the pods of steps in the same run.

    Attributes:
        api: The cluster's API, in the namespace of the runs.
        spec: The job.
        account: The service account of the runs; empty for this process's account.
        run_id: The run.
        task_key: The key of the task that launches the job; usually empty.
        step_pods: The pods of steps to compare with the nodes.
    """

    api: ClusterClient
    spec: JobSpec
    account: str = ""
    run_id: str = "doctor"
    task_key: str = ""
    step_pods: Sequence[StepPod] = ()

    @property
    def job(self) -> Object:
        """The job's manifest."""
        return build_job(self.spec, Identity(self.run_id, 1, task_key=self.task_key))

    @cached_property
    def settled(self) -> Subject:
        """The same subject with a definite kind of job instead of `train_options.job: auto`.

        Raises:
            ConfigurationError: The cluster runs no kind of job that auto may choose.
            ClusterUnavailableError: The API server did not respond in time.
        """
        if self.spec.options.job != "auto":
            return self
        kind = choose(self.api, lambda kind: self._with_kind(kind).job)
        return replace(self._with_kind(kind), api=self.api.of(kind))

    def _with_kind(self, kind: JobKind) -> Subject:
        return replace(self, spec=replace(self.spec, kind=kind))

    @cached_property
    def nodes(self) -> list[Object]:
        """All nodes of the cluster."""
        return self.api.list("/api/v1/nodes")


def open_cluster(seconds: float, kind: JobKind) -> ClusterClient:
    """Return a client of the cluster for a program that a person waits for.

    Args:
        seconds: How long a failed call is repeated.
        kind: The kind of the jobs.

    Raises:
        ConfigurationError: There is neither a service account of a pod nor a kubeconfig.
    """
    return ClusterClient.from_environment(replace(PATIENCE, seconds=seconds), kind)


def choose(api: ClusterClient, manifest: Callable[[JobKind], Object]) -> JobKind:
    """Return the first kind of AUTOMATIC that the cluster runs; jobs are created as dry runs.

    With a queue, it is the first kind whose job comes back suspended, because the queue manages it.

    Args:
        api: The cluster.
        manifest: Returns the job's manifest for a kind.

    Raises:
        ConfigurationError: The cluster runs no kind of AUTOMATIC.
        ClusterUnavailableError: The API server did not respond in time.
    """
    not_queued: list[JobKind] = []
    forbidden: list[JobKind] = []
    missing: list[str] = []
    for kind in AUTOMATIC:
        job = manifest(kind)
        try:
            accepted_job = dry_run(api.of(kind), job)
        except (JobExistsError, JobRefusedError):
            return kind  # its controller answers; other checks report the refusal
        except ForbiddenError:
            forbidden.append(kind)  # it may exist, so it is chosen if no other kind can be
        except NotFoundError as error:
            missing.append(str(error))
        except ClusterUnavailableError as error:
            if not webhook_is_away(error.__cause__):
                raise
            missing.append(f"{kind.called} is not responding")
        else:
            if kind.suspends(accepted_job) or QUEUE_LABEL not in job["metadata"]["labels"]:
                return kind
            not_queued.append(kind)
    if not_queued or forbidden:
        return (not_queued or forbidden)[0]
    ways = ", or ".join(f"{kind.controller} with `{kind.install}`" for kind in AUTOMATIC)
    raise ConfigurationError(
        Problem(
            f"this cluster runs neither {' nor '.join(f'{kind.name}s' for kind in AUTOMATIC)}",
            received="; ".join(missing),
            expected=" or ".join(kind.controller for kind in AUTOMATIC),
            fix=f"ask an administrator to install {ways}",
            name="operator_absent",
        )
    )


def dry_run(api: ClusterClient, manifest: Object) -> Object:
    """Return a job as the cluster would store it, without creating it."""
    return api.request("POST", api.jobs(), {"dryRun": "All"}, manifest)
