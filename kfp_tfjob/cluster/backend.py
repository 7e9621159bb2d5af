"""Defines the interface of a back end, which runs jobs on a cluster or on this machine.

A back end takes a job of any kind as a plain dict. It shows jobs and pods as Kubernetes does, so
the launcher, the verdicts and the reports are the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.errors import ConfigurationError, StepError

BACKEND_VARIABLE = "KFP_TFJOB_BACKEND"
# Takes why the run ended; empty if only this process has to go.
Farewell = Callable[[str], None]


class JobExistsError(StepError):
    """A job of this name exists; the launcher finds out whether it is ours."""


class JobRefusedError(ConfigurationError):
    """The back end will never accept this manifest; the message has its reason."""

    verdict = "refused"


class Backend(Protocol):
    """The operations that the launcher needs to run jobs; the defaults are those without a cluster.

    Every method may raise StepError if the back end is unreachable for longer than allowed.
    """

    def owner(self) -> Object | None:
        """Return the ownerReference that deletes jobs with their run, or None."""
        return None

    def watch_workflow(
        self, run_id: str, owner: Object | None, seconds: int, farewell: Farewell
    ) -> AbstractContextManager[Callable[[], str]]:
        """Return a context that stops every job of a run as soon as the run ends.

        Args:
            run_id: The run.
            owner: The result of `owner`.
            seconds: How long a chief and its sidecar have to stop.
            farewell: Called once in its own thread when this process is about to be killed:
                after the jobs of an ended run are stopped, or on SIGTERM.

        Returns:
            A context; its value returns why the run ended, or "" while it has not.
        """
        return nullcontext(lambda: "")

    def create(self, manifest: Object) -> None:
        """Create a job.

        Raises:
            JobExistsError: The name is taken.
            JobRefusedError: The back end will never accept the manifest.
        """
        ...

    def get(self, name: str) -> Object | None:
        """Return the job with its status, or None if it does not exist."""
        ...

    def pods(self, name: str) -> list[Object]:
        """Return a job's pods: metadata.labels, status.phase and the container statuses."""
        ...

    def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait for a change of a job or its pods since `get`, at most `timeout` seconds."""
        ...

    def logs(self, name: str) -> Iterator[LogLine]:
        """Yield the lines of all containers as they appear, until the job has ended."""
        ...

    def silence(self, name: str) -> float | None:
        """Return the seconds since the chief's last line; None while its log cannot be read."""
        ...

    def events(self, name: str) -> list[Object]:
        """Return the events of a job or pod, newest last; none without the right to read them."""
        return []

    def place_in_queue(self, queue: str, workload: str) -> int | None:
        """Return the place of a Workload in a LocalQueue, from 1; None if it is not known."""
        return None

    def nodes(self) -> list[Object] | None:
        """Return the cluster's nodes, or None without the right to list them."""
        return None

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Set annotations of the chief's pod, which reads them in PODINFO_DIR."""
        ...

    def delete(self, name: str) -> None:
        """Delete a job and return when its pods are gone; a missing job is not an error."""
        ...


def is_local() -> bool:
    """Return whether the environment asks for jobs as processes on this machine."""
    return os.environ.get(BACKEND_VARIABLE) == "local"
