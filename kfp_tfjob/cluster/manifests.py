"""Reads the objects of deploy/ for one namespace and service account, as kustomize renders them.

A user needs no kustomize then, and what `install` prints is what the checks expect. Called by
`install.py`, `doctor.py` and `namespace.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.objects import Object

# A link in a checkout, where deploy/ is next to the packages; the wheel contains the files.
FOLDER = Path(__file__).parents[1] / "deploy"
STANDALONE, MULTI_USER = "pipeline-runner", "default-editor"
_OF_CLUSTER = ("ClusterRole", "ClusterRoleBinding")


def objects(namespace: str, account: str, optional: Sequence[str] = ()) -> list[Object]:
    """Return the objects that a namespace needs for runs.

    Args:
        namespace: The namespace.
        account: The service account that gets the permissions.
        optional: Folders of deploy/optional whose objects are added.

    Raises:
        ConfigurationError: The installation lacks the files.
    """
    folders = ("base", *(f"optional/{name}" for name in optional))
    return [
        _adapt(manifest, namespace, account)
        for folder in folders
        for manifest in _read(FOLDER / folder)
    ]


def _read(folder: Path) -> Iterator[Object]:
    """Yield a folder's objects with the labels that its kustomization.yaml adds."""
    try:
        settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
        labels: dict[str, str] = {}
        for entry in settings.get("labels", ()):
            labels |= entry["pairs"]
        for name in settings["resources"]:
            manifest = yaml.safe_load((folder / name).read_text())
            metadata = manifest["metadata"]
            if labels:
                metadata["labels"] = metadata.get("labels", {}) | labels
            yield manifest
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "this installation of kfp-tfjob lacks its manifests",
                received=str(error),
                expected=f"the files of deploy/ in {FOLDER}",
                fix="reinstall kfp-tfjob from its wheel",
            )
        ) from error


def _adapt(manifest: Object, namespace: str, account: str) -> Object:
    """Set an object's namespace, and the account as the subject of a binding."""
    metadata = manifest["metadata"]
    if manifest["kind"] not in _OF_CLUSTER:
        metadata["namespace"] = namespace
    elif manifest["kind"] == "ClusterRoleBinding":
        # Several namespaces may have a binding, each with its own subjects.
        metadata["name"] = f"{manifest['roleRef']['name']}-{namespace}"
    for subject in manifest.get("subjects", ()):
        subject |= {"name": account, "namespace": namespace}
    return manifest
