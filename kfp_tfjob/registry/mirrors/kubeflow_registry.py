"""The Kubeflow Model Registry: a model version for each version, and the champion as a property.

The registry has no aliases, so a custom property of the model names the champion's version. `sync`
runs in a process of its own, which `mirror.py` starts by this module's name.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from . import METRIC

if TYPE_CHECKING:
    from model_registry import ModelRegistry

    from ..mirror import MirrorContent, MirrorVersion

URL, TOKEN = "MODEL_REGISTRY_URL", "MODEL_REGISTRY_TOKEN"
_CHAMPION = "champion"  # the registered model's property
_FORMAT = ("savedmodel", "2")
_API_VERSIONS = ("v1", "v1alpha3")  # newest first
_API_VERSION = re.compile(r"(?<=^/api/model_registry/)v1[a-z0-9]*")
_SECONDS = 5  # for one request that finds the API version; `mirror.sync` limits the whole update


def sync(content: MirrorContent) -> str:
    """Register the versions that the registry does not have, and name the champion.

    Args:
        content: The versions and the champion that the registry should have afterwards.

    Returns:
        A message with the number of added and changed versions.

    Raises:
        RuntimeError: The registry reported success, but does not show the champion.
    """
    registry = _open()
    name = content["model"]
    model = registry.get_registered_model(name)
    existing = (
        {version.name for version in registry.get_model_versions(name)} if model else set[str]()
    )
    added, changed = 0, 0
    for entry in content["versions"]:
        version = str(entry["version"])
        facts = {key: str(value) for key, value in entry["facts"].items()}
        if version not in existing:
            registry.register_model(
                name,
                entry["uri"],
                version=version,
                model_format_name=_FORMAT[0],
                model_format_version=_FORMAT[1],
                version_description=entry["why"],
                metadata=facts,
            )
            added += 1
            continue
        if registry.get_model_artifact(name, version) is None:
            changed += _add_artifact(registry, name, entry)
        registered = registry.get_model_version(name, version)
        if registered is not None:
            existing_properties = dict(registered.custom_properties or {})
            # An update replaces all properties, and users may have added their own.
            properties = {
                key: value
                for key, value in existing_properties.items()
                if key not in entry["fact_names"] and not key.startswith(METRIC)
            } | facts
            if properties != existing_properties:
                registered.custom_properties = properties
                registry.update(registered)
                changed += 1
    champion = str(content["champion"])
    model = registry.get_registered_model(name)
    if model is not None and (model.custom_properties or {}).get(_CHAMPION) != champion:
        model.custom_properties = {**(model.custom_properties or {}), _CHAMPION: champion}
        registry.update(model)
        changed += 1
        model = registry.get_registered_model(name)
    if model is None or (model.custom_properties or {}).get(_CHAMPION) != champion:
        raise RuntimeError("the champion was written, but the registry does not show it")
    changes = f"{added} added, {changed} changed" if added or changed else "up to date"
    return f"{changes}; the champion is version {champion}"


def _add_artifact(registry: ModelRegistry, name: str, entry: MirrorVersion) -> int:
    """Add a version's address, which is missing if a process was killed in register_model.

    Returns:
        The number of changes, 1.
    """
    registered = registry.get_model_version(name, str(entry["version"]))
    # register_model's second half is not public in the client.
    registry.async_runner(
        registry._register_model_artifact(
            registered,
            name,
            entry["uri"],
            model_format_name=_FORMAT[0],
            model_format_version=_FORMAT[1],
        )
    )
    return 1


def _open() -> ModelRegistry:
    """Return a client that uses the server's API version.

    A client release contains the paths of one API version, and patch releases differ: 0.3.14 uses
    v1alpha3, 0.3.15 uses v1. A server of release 0.3.8 offers only v1alpha3.
    """
    from model_registry import ModelRegistry
    from mr_openapi import ApiClient

    address, token = os.environ[URL].rstrip("/"), os.environ.get(TOKEN)
    version = _server_api_version(address, token)
    serialize = ApiClient.param_serialize

    def serialize_with_version(client: ApiClient, *, resource_path: str, **arguments: Any) -> Any:
        path = _API_VERSION.sub(version, resource_path, count=1)
        return serialize(client, resource_path=path, **arguments)

    # The class is patched, not an object, because the client creates its ApiClient itself. Nothing
    # else in this process uses the class: see __main__.py.
    if version:
        ApiClient.param_serialize = serialize_with_version
    return ModelRegistry(address, author="kfp-tfjob", user_token=token)


def _server_api_version(address: str, token: str | None) -> str:
    """Return the newest API version that the server answers; empty if it answers none."""
    for version in _API_VERSIONS:
        request = Request(f"{address}/api/model_registry/{version}/registered_models?pageSize=1")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=_SECONDS):
                return version
        except HTTPError as error:
            if error.code != 404:
                return version  # the client reports this error in more detail
        except OSError:
            return ""
    return ""
