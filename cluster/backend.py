"""Where jobs run: the interface of a back end.

A back end takes a job of any kind as a plain dict and shows jobs and pods in the shape Kubernetes
gives them, so that the launcher, the verdict and what people read are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from kfp_tfjob.storage.errors import ConfigurationError, StepError

Object = dict[str, Any]


class JobExistsError(StepError):
    """There is a job of this name already; whether it is ours is for the launcher to find out."""


class JobRefusedError(ConfigurationError):
    """The back end will never take this manifest; its words are in the message."""

    verdict = "refused"


class Backend(Protocol):
    """What the launcher needs of a place where jobs run.

    Every method may raise StepError when the back end is away for longer than it was given.
    """

    def owner(self) -> Object | None:
        """Return the ownerReference of jobs, so that they go with their run; None without one."""
        ...

    def watch_workflow(
        self, run_id: str, owner: Object | None, seconds: int
    ) -> AbstractContextManager[Callable[[], str]]:
        """While it is open, stop every job of a run as soon as the run itself is ended.

        Args:
            run_id: The run.
            owner: What `owner` returned.
            seconds: What a chief and its sidecar have to end then.

        Returns:
            A context whose value tells what ended the run; nothing while it is wanted.
        """
        ...

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create a job.

        Raises:
            JobExistsError: The name is taken.
            JobRefusedError: The manifest is not accepted, now or ever.
        """
        ...

    def get(self, name: str) -> Object | None:
        """Return the job with its status, or None when there is none of this name."""
        ...

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a job: metadata.labels, status.phase and the container statuses."""
        ...

    def wait_for_change(self, name: str, timeout: float) -> None:
        """Wait until a job or a pod of it is not what `get` last showed, or `timeout` seconds."""
        ...

    def logs(self, name: str) -> Iterator[str]:
        """Yield the lines of all containers as they appear, until the job has ended.

        A line begins with `[chief-0] `, or `[chief-0/uploader] ` for any container but the
        main one.
        """
        ...

    def silence(self, name: str) -> float | None:
        """Return the seconds since the chief's last line; None while it cannot be heard."""
        ...

    def events(self, name: str) -> list[Object]:
        """Return what controllers said of a job or pod, newest last, as far as one may know it."""
        ...

    def nodes(self) -> list[Object] | None:
        """Return the nodes of the cluster, or None where this process may not know them."""
        ...

    def annotate(self, name: str, values: Mapping[str, str]) -> None:
        """Write annotations on a job; that it cannot be done is no error."""
        ...

    def annotate_chief(self, name: str, values: Mapping[str, str]) -> None:
        """Write annotations on the chief's pod, which follows them in PODINFO_DIR."""
        ...

    def delete(self, name: str) -> None:
        """End a job and remove it; return when its pods are gone. No job is no error."""
        ...
