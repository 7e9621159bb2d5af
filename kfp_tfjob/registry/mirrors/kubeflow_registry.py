"""The Kubeflow Model Registry: a model version for each version, and the champion as a property."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    from model_registry import ModelRegistry

    from kfp_tfjob.registry.mirror import Wanted, WantedVersion

URL, TOKEN = "MODEL_REGISTRY_URL", "MODEL_REGISTRY_TOKEN"
_CHAMPION = "champion"  # the property of the registered model
_FORMAT = ("savedmodel", "2")
_VERSIONS = ("v1", "v1alpha3")  # of the API, newest first
_VERSION = re.compile(r"(?<=^/api/model_registry/)v1[a-z0-9]*")
_SECONDS = 5


def sync(wanted: Wanted) -> str:
    """Register the versions that the registry does not have, and name the champion.

    Args:
        wanted: What it shall have.

    Returns:
        What was done.

    Raises:
        RuntimeError: The registry says that it is done, and it is not.
    """
    registry = _open()
    name = wanted["model"]
    model = registry.get_registered_model(name)
    known = {it.name for it in registry.get_model_versions(name)} if model else set()
    added, changed = 0, 0
    for item in wanted["versions"]:
        version = str(item["version"])
        facts = {key: str(value) for key, value in item["facts"].items()}
        if version not in known:
            registry.register_model(
                name,
                item["uri"],
                version=version,
                model_format_name=_FORMAT[0],
                model_format_version=_FORMAT[1],
                version_description=item["why"],
                metadata=facts,
            )
            added += 1
            continue
        if registry.get_model_artifact(name, version) is None:
            changed += _complete(registry, name, item)
        there = registry.get_model_version(name, version)
        if there is not None and dict(there.custom_properties or {}) != facts:
            there.custom_properties = facts
            registry.update(there)
            changed += 1
    champion = str(wanted["champion"])
    model = registry.get_registered_model(name)
    if model is not None and (model.custom_properties or {}).get(_CHAMPION) != champion:
        model.custom_properties = {**(model.custom_properties or {}), _CHAMPION: champion}
        registry.update(model)
        changed += 1
        model = registry.get_registered_model(name)
    if model is None or (model.custom_properties or {}).get(_CHAMPION) != champion:
        raise RuntimeError("the champion was written, but the registry does not show it")
    done = f"{added} added, {changed} changed" if added or changed else "up to date"
    return f"{done}; the champion is version {champion}"


def _complete(registry: ModelRegistry, name: str, item: WantedVersion) -> int:
    """Add a version's address, which a killed process has left out."""
    there = registry.get_model_version(name, str(item["version"]))
    # The client has no public call for the second half of register_model.
    registry.async_runner(
        registry._register_model_artifact(
            there,
            name,
            item["uri"],
            model_format_name=_FORMAT[0],
            model_format_version=_FORMAT[1],
        )
    )
    return 1


def _open() -> ModelRegistry:
    """Return a client that uses the version of the API that the server has.

    A client has the paths of one version of the API, and clients that differ in the last number
    have other ones: 0.3.14 v1alpha3, 0.3.15 v1. A server of release 0.3.8 has v1alpha3 alone.
    """
    from model_registry import ModelRegistry
    from mr_openapi import ApiClient

    address, token = os.environ[URL].rstrip("/"), os.environ.get(TOKEN)
    version = _version_of(address, token)
    serialize = ApiClient.param_serialize

    def of_version(client: ApiClient, *, resource_path: str, **given: Any) -> Any:
        path = _VERSION.sub(version, resource_path, count=1)
        return serialize(client, resource_path=path, **given)

    if version:  # the process is there for this registry only: see __main__.py
        ApiClient.param_serialize = of_version
    return ModelRegistry(address, author="kfp-tfjob", user_token=token)


def _version_of(address: str, token: str | None) -> str:
    """Return the newest version of the API that the server answers, "" where none is found."""
    for version in _VERSIONS:
        asked = Request(f"{address}/api/model_registry/{version}/registered_models?pageSize=1")
        if token:
            asked.add_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(asked, timeout=_SECONDS):
                return version
        except HTTPError as error:
            if error.code != 404:
                return version  # the client says better what is wrong
        except OSError:
            return ""
    return ""
