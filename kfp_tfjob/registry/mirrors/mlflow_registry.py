"""MLflow's model registry: a model version for each version, and the alias `champion`.

A version is linked to the MLflow run of its training, and that run is tagged as the champion's.
MLflow sets the link only when it creates a version. `mirror.py` starts it as a separate process.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import TYPE_CHECKING

from .. import tracking
from ..tracking import TAG_PREFIX

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

    from ..mirror import MirrorContent, MirrorVersion

ALIAS = "champion"


def sync(content: MirrorContent) -> str:
    """Register the versions that MLflow does not have, and point the alias to the champion.

    Args:
        content: The versions and the champion that MLflow should have afterwards.

    Returns:
        A message with the number of added and changed versions.

    Raises:
        RuntimeError: MLflow rejected a version, or reported success but does not show the alias.
            The other versions were registered all the same.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    name = content["model"]
    experiments = tracking.all_experiments(client)
    existing = _registered_versions(client, name)
    added, changed = 0, 0
    refused = []
    for entry in content["versions"]:
        version = str(entry["version"])
        tags = {
            tracking.key(f"{TAG_PREFIX}{name}"): str(value)
            for name, value in entry["facts"].items()
        }
        registered = existing.get(version)
        try:
            if registered is None:
                run = _run_of(client, experiments, entry)
                existing[version] = client.create_model_version(
                    name,
                    source=entry["uri"],
                    run_id=run.info.run_id if run else None,
                    tags=tags,
                    description=entry["why"],
                )
                added += 1
                continue
            for key, value in tags.items():
                if registered.tags.get(key) != value:
                    client.set_model_version_tag(name, registered.version, key, value)
                    changed += 1
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            refused.append(f"version {version}: {error.message}")
    champion = existing.get(str(content["champion"]))
    if champion and _alias(client, name) != str(champion.version):
        client.set_registered_model_alias(name, ALIAS, champion.version)
        changed += 1
    if refused:
        raise RuntimeError(f"MLflow refuses {'; '.join(refused)}")
    assert (
        champion is not None
    )  # if MLflow had rejected the version, this function would have raised
    if _alias(client, name) != str(champion.version):
        raise RuntimeError(f"the alias {ALIAS} was set, but MLflow does not show it")
    (entry,) = (entry for entry in content["versions"] if entry["version"] == content["champion"])
    champion_run = _run_of(client, experiments, entry)
    tracking.tag_champion(client, experiments, name, str(entry["version"]), champion_run)
    if not added and not changed:
        return f"up to date: the alias {ALIAS} is version {champion.version} there"
    return (
        f"{added} added, {changed} changed; the alias {ALIAS} is version {champion.version} there"
    )


def _run_of(client: MlflowClient, experiments: list[str], entry: MirrorVersion) -> Run | None:
    """Return the MLflow run of the training that produced a version; None if there is none."""
    facts = entry["facts"]
    return tracking.find_run(client, experiments, facts["run_id"], facts.get("task_key", ""))


def _registered_versions(client: MlflowClient, name: str) -> dict[str, ModelVersion]:
    """Return MLflow's versions by the number of ours; the model is created if needed."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, tags={f"{TAG_PREFIX}managed": "true"})
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    registered: dict[str, ModelVersion] = {}
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=200, page_token=token)
        for version in page:
            number = version.tags.get(f"{TAG_PREFIX}version", "")
            # Two runs may have added the same version: the first one counts.
            if number and (
                number not in registered or int(version.version) < int(registered[number].version)
            ):
                registered[number] = version
        token = page.token
        if not token:
            return registered


def _alias(client: MlflowClient, name: str) -> str:
    """Return the version with the alias; empty if there is none."""
    return str(client.get_registered_model(name).aliases.get(ALIAS, ""))
