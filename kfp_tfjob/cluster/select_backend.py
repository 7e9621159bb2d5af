"""Chooses the back end for jobs: a cluster, or processes on this machine."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import replace

from kfp_tfjob.cluster.backend import Backend
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import DEFAULT
from kfp_tfjob.storage.errors import ConfigurationError, Problem

BACKEND_VARIABLE = "KFP_TFJOB_BACKEND"


def is_local() -> bool:
    """Tell whether the environment asks for jobs as processes on this machine."""
    return os.environ.get(BACKEND_VARIABLE) == "local"


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
