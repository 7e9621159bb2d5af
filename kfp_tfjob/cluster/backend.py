"""Defines the interface of a back end, which runs jobs on a cluster or on this machine.

A back end takes a job of any kind as a plain dict. It returns jobs and pods in Kubernetes' form, so
the launcher, the verdicts and the reports are the same everywhere. `kubernetes.py` and
`local/backend.py` implement it; the launcher calls it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kfp_tfjob.common.errors import ConfigurationError, StepError
from kfp_tfjob.jobs.objects import Object

from .log_lines import LogLine

BACKEND_VARIABLE = "KFP_TFJOB_BACKEND"
# Gets the reason why the run ended; empty if only this process must exit.
ExitCallback = Callable[[str], None]


class JobExistsError(StepError):
    """A job of this name exists; the launcher checks whether it belongs to this run."""


class JobRefusedError(ConfigurationError):
    """The back end will never accept this manifest; the message contains its reason."""

    verdict = "refused"


class Backend(Protocol):
    """The operations that the launcher needs to run jobs; the defaults apply without a cluster.

    Every method may raise StepError if the back end is unreachable for longer than allowed.
    """

    def owner(self) -> Object | None:
        """Return the ownerReference that makes Kubernetes delete jobs with their run; or None."""
        return None

    def watch_workflow(
        self, run_id: str, owner: Object | None, seconds: int, on_exit: ExitCallback
    ) -> AbstractContextManager[Callable[[], str]]:
        """Return a context that stops every job of a run as soon as the run ends.

        Args:
            run_id: The run.
            owner: The run's ownerReference, from `owner`.
            seconds: The time that a chief and its sidecar have to stop.
            on_exit: Called once in its own thread when this process is about to be killed: after
                an ended run's jobs were stopped, or on SIGTERM.

        Returns:
            A context. Its value is a function that returns the reason why the run ended, or an
            empty string while it has not.
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
        """Return the job with its status; None if it does not exist."""
        ...

    def pods(self, name: str) -> list[Object]:
        """Return a job's pods with metadata.labels, status.phase and the container statuses."""
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
        """Return a job's or pod's events, newest last; empty without the right to read them."""
        return []

    def place_in_queue(self, queue: str, workload: str) -> int | None:
        """Return a Workload's place in a LocalQueue, from 1; None if unknown."""
        return None

    def nodes(self) -> list[Object] | None:
        """Return the cluster's nodes; None without the right to list them."""
        return None

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Set annotations of the chief's pod, whose containers read them in PODINFO_DIR."""
        ...

    def delete(self, name: str) -> None:
        """Delete a job and return when its pods are gone; a missing job is not an error."""
        ...


def is_local() -> bool:
    """Return whether the environment asks for jobs as processes on this machine."""
    return os.environ.get(BACKEND_VARIABLE) == "local"
