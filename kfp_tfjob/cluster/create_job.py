"""Creates training jobs through the SDK of the training operator, `kubeflow-training`.

This module works around three defects of the SDK: its models drop unknown fields, its call is
without a time limit, and it hides the API server's response in a RuntimeError. The SDK is imported
only when a job is created, because the import is slow. Called by `KubernetesBackend.create`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from kubernetes.client import ApiException

from kfp_tfjob.common.errors import Problem
from kfp_tfjob.jobs.objects import Object

from .api_errors import ApiError
from .backend import JobRefusedError
from .client import CALL_SECONDS, ClusterClient, user_agent


def create_job(api: ClusterClient, manifest: Object) -> None:
    """Create a job of the training operator with one call.

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
        raise JobRefusedError(
            *(lost_field(f"{api.kind.name}{path}", value) for path, value in lost)
        )
    job: Any = sdk.api_client.deserialize(SimpleNamespace(data=json.dumps(manifest)), model)
    try:
        sdk.create_job(job=job, namespace=api.namespace)
    except RuntimeError as error:
        cause = error.__cause__ or error.__context__ or error
        raise (ApiError.of(cause) if isinstance(cause, ApiException) else cause) from None


def lost_fields(client: Any, manifest: Object, model: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that the typed models change or drop.

    Args:
        client: An ApiClient, which converts objects to models.
        manifest: The object.
        model: The name of the model for it, for example `V1Pod`.
    """
    try:
        typed = client.deserialize(SimpleNamespace(data=json.dumps(manifest)), model)
    except (AttributeError, TypeError, ValueError):  # a wrong type, or a required field is missing
        yield "", manifest
        return
    yield from _differences(manifest, client.sanitize_for_serialization(typed), "")


def lost_field(path: str, received: object) -> Problem:
    """Return the problem of a field from `lost_fields`."""
    return Problem(
        f"{path} would be lost",
        received=received,
        expected="fields and types of the Kubernetes API 1.30, which kubeflow-training supports",
        fix=f"correct {path}, or remove it",
        path=path,
    )


def _differences(original: Any, converted: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the original value of each field that differs after the conversion."""
    if isinstance(original, Mapping) and isinstance(converted, Mapping):
        for key, value in original.items():
            yield from _differences(value, converted.get(key), f"{path}.{key}")
    elif (
        isinstance(original, list)
        and isinstance(converted, list)
        and len(original) == len(converted)
    ):
        for index, value in enumerate(original):
            yield from _differences(value, converted[index], f"{path}[{index}]")
    elif original != converted:
        yield path, original
