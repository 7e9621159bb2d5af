"""Creates training jobs through the SDK of the training operator, `kubeflow-training`.

This module works around three defects of the SDK: its models drop fields that they do not know, its
call has no time limit, and it hides the API server's answer in a RuntimeError. The SDK is imported
only when a job is created.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiException

from kfp_tfjob.cluster.backend import JobRefusedError
from kfp_tfjob.cluster.client import CALL_SECONDS, ClusterClient, user_agent
from kfp_tfjob.cluster.errors import ApiError
from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.errors import Problem


def create_job(api: ClusterClient, manifest: Object) -> None:
    """Create a job of the training operator, by one call.

    Raises:
        JobRefusedError: The SDK would drop fields.
        Exception: One of CALL_FAILED.
    """
    from kubeflow.training import TrainingClient, __version__
    from kubeflow.training.constants import constants

    sdk = TrainingClient(client_configuration=api.client.configuration, job_kind=api.kind.name)
    calls = sdk.custom_api
    calls.api_client.user_agent = f"{user_agent()} kubeflow-training/{__version__}"
    calls.create_namespaced_custom_object = partial(
        calls.create_namespaced_custom_object, _request_timeout=CALL_SECONDS
    )
    model = constants.JOB_PARAMETERS[api.kind.name]["model"]
    if lost := list(lost_fields(sdk.api_client, manifest, model)):
        raise JobRefusedError(*(lost_field(f"{api.kind.name}{path}", it) for path, it in lost))
    job: Any = sdk.api_client.deserialize(SimpleNamespace(data=json.dumps(manifest)), model)
    try:
        sdk.create_job(job=job, namespace=api.namespace)
    except RuntimeError as error:
        found = error.__cause__ or error.__context__ or error
        raise (ApiError.of(found) if isinstance(found, ApiException) else found) from None


def lost_fields(client: Any, given: Object, model: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that the typed models change or drop."""
    try:
        read = client.deserialize(SimpleNamespace(data=json.dumps(given)), model)
    except (AttributeError, TypeError, ValueError):  # a list for a map, or without what is required
        yield "", given
        return
    yield from _lost(given, client.sanitize_for_serialization(read), "")


def lost_field(path: str, received: object) -> Problem:
    """Return the problem of a field that `lost_fields` has found."""
    return Problem(
        f"{path} would be lost",
        received=received,
        expected="fields and types of the Kubernetes API 1.30, which kubeflow-training supports",
        fix=f"correct {path}, or remove it",
        path=path,
    )


def _lost(given: Any, kept: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            yield from _lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, value in enumerate(given):
            yield from _lost(value, kept[index], f"{path}[{index}]")
    elif given != kept:
        yield path, given
