"""Where jobs run: the interface of a back end, and the choice of one.

A back end takes a TFJob as a plain dict and shows jobs and pods in the shape Kubernetes has them,
so that the launcher, the verdict and what people read are the same everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from storage.errors import ConfigurationError, Problem, StepError

CHOICE = "KFP_TFJOB_BACKEND"
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

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create a job.

        Raises:
            JobExistsError: The name is taken.
            JobRefusedError: The manifest is not accepted, now or ever.
        """
        ...

    def get(self, name: str) -> Object | None:
        """Return the TFJob with its status, or None when there is none of this name."""
        ...

    def pods(self, name: str) -> list[Object]:
        """Return the pods of a job: metadata.labels, status.phase and the container statuses."""
        ...

    def watch(self, name: str, timeout: float) -> None:
        """Wait until a job or a pod of it is not what `get` last showed, or `timeout` seconds."""
        ...

    def logs(self, name: str) -> Iterator[str]:
        """Yield the lines of all containers as they appear, until the job has ended.

        A line begins with `[chief-0] `, or `[chief-0/uploader] ` for a container that is not
        `tensorflow`.
        """
        ...

    def delete(self, name: str) -> None:
        """End a job and remove it; return when its pods are gone. No job is no error."""
        ...


def open_backend() -> AbstractContextManager[Backend]:
    """Return the back end that the environment names.

    Raises:
        ConfigurationError: This version does not have it.
    """
    choice = os.environ.get(CHOICE) or "kubernetes"
    if choice == "local":
        from components.launch_tfjob.backends.local import LocalBackend

        return LocalBackend.from_environment()
    raise ConfigurationError(
        Problem(
            "this version has no such back end for jobs",
            received=choice,
            expected="local",
            fix=f"set {CHOICE}=local, or run with `kfp-tfjob run`",
        )
    )
