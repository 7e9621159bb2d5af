"""Reads the objects of deploy/ for one namespace and service account, as kustomize renders them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from kfp_tfjob.jobs.objects import Object
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# In a checkout beside the packages, in the wheel inside the package.
FOLDER = Path(__file__).parents[1] / "deploy"
STANDALONE, MULTI_USER = "pipeline-runner", "default-editor"
_OF_CLUSTER = ("ClusterRole", "ClusterRoleBinding")


def objects(namespace: str, account: str, optional: Sequence[str] = ()) -> list[Object]:
    """Return the objects that a namespace of runs needs, and those of deploy/optional.

    Raises:
        ConfigurationError: The installation lacks the files.
    """
    folders = ("base", *(f"optional/{name}" for name in optional))
    return [
        _placed(found, namespace, account) for folder in folders for found in _read(FOLDER / folder)
    ]


def _read(folder: Path) -> Iterator[Object]:
    """Yield a folder's objects, with its common labels."""
    try:
        settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
        labels: dict[str, str] = {}
        for item in settings.get("labels", ()):
            labels |= item["pairs"]
        for name in settings["resources"]:
            found = yaml.safe_load((folder / name).read_text())
            metadata = found["metadata"]
            if labels:
                metadata["labels"] = metadata.get("labels", {}) | labels
            yield found
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "this installation of kfp-tfjob lacks its manifests",
                received=str(error),
                expected=f"the files of deploy/ in {FOLDER}",
                fix="reinstall kfp-tfjob from its wheel",
            )
        ) from error


def _placed(found: Object, namespace: str, account: str) -> Object:
    metadata = found["metadata"]
    if found["kind"] not in _OF_CLUSTER:
        metadata["namespace"] = namespace
    elif found["kind"] == "ClusterRoleBinding":
        # Several namespaces may have one, and each has its own subjects.
        metadata["name"] = f"{found['roleRef']['name']}-{namespace}"
    for subject in found.get("subjects", ()):
        subject |= {"name": account, "namespace": namespace}
    return found
