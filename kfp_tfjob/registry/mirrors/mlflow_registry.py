"""The model registry of MLflow: a model version for each version, and the alias `champion`."""

# pyright: reportMissingImports=false
from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from kfp_tfjob.registry.mirror import Wanted

ALIAS = "champion"
_PREFIX = "kfp_tfjob."  # of the tags
_REFUSED = re.compile(r"[^\w.\- :/]")
_LONGEST_KEY = 250


def sync(wanted: Wanted) -> str:
    """Register the versions that MLflow does not have, and point the alias to the champion.

    Args:
        wanted: What it shall have.

    Returns:
        What was done.

    Raises:
        RuntimeError: MLflow rejects a version, or says that it is done, and it is not. Everything
            else is done all the same.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    name = wanted["model"]
    known = _known(client, name)
    added, changed = 0, 0
    refused = []
    for item in wanted["versions"]:
        version = str(item["version"])
        tags = {tag_key(key): str(value) for key, value in item["facts"].items()}
        there = known.get(version)
        try:
            if there is None:
                known[version] = client.create_model_version(
                    name, source=item["uri"], tags=tags, description=item["why"]
                )
                added += 1
                continue
            for key, value in tags.items():
                if there.tags.get(key) != value:
                    client.set_model_version_tag(name, there.version, key, value)
                    changed += 1
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            refused.append(f"version {version}: {error.message}")
    champion = known.get(str(wanted["champion"]))
    if champion and _alias(client, name) != str(champion.version):
        client.set_registered_model_alias(name, ALIAS, champion.version)
        changed += 1
    if refused:
        raise RuntimeError(f"MLflow refuses {'; '.join(refused)}")
    assert champion is not None  # one that is not there was rejected
    if _alias(client, name) != str(champion.version):
        raise RuntimeError(f"the alias {ALIAS} was set, but MLflow does not show it")
    if not added and not changed:
        return f"up to date: the alias {ALIAS} is version {champion.version} there"
    return (
        f"{added} added, {changed} changed; the alias {ALIAS} is version {champion.version} there"
    )


def tag_key(fact: str) -> str:
    """Return the key of a tag for a fact: MLflow takes no `@` or `%`, and wants a clean path.

    A class's name may have any character, and is part of the names of its metrics.
    """
    key = _REFUSED.sub("_", f"{_PREFIX}{fact}")[:_LONGEST_KEY]
    return "/".join("_" if part in ("", ".", "..") else part for part in key.split("/"))


def _known(client: MlflowClient, name: str) -> dict[str, ModelVersion]:
    """Return what MLflow has, by the number of our version; the model is created if needed."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, tags={f"{_PREFIX}managed": "true"})
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found: dict[str, ModelVersion] = {}
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=200, page_token=token)
        for it in page:
            number = it.tags.get(f"{_PREFIX}version", "")
            # Two runs may have added the same version: the first one counts.
            if number and (number not in found or int(it.version) < int(found[number].version)):
                found[number] = it
        token = page.token
        if not token:
            return found


def _alias(client: MlflowClient, name: str) -> str:
    """Return the version that has the alias; empty if none has."""
    return str(client.get_registered_model(name).aliases.get(ALIAS, ""))
