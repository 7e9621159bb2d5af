"""Reads the objects of deploy/ for one namespace and service account, as kustomize renders them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kfp_tfjob.cluster.backend import Object
from kfp_tfjob.storage.errors import ConfigurationError, Problem

# In a checkout beside the packages, in the wheel inside the package.
FOLDER = Path(__file__).parents[1] / "deploy"
STANDALONE, MULTI_USER = "pipeline-runner", "default-editor"
# What base contains none of; a folder of deploy/optional each.
OPTIONAL = ("nodes", "quota", "restricted")
PART_OF = {"app.kubernetes.io/part-of": "kfp-tfjob"}
# Kind to the path of its group and its plural; None as namespace marks kinds of the whole cluster.
_PATHS = {
    "Role": ("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "LimitRange": ("/api/v1", "limitranges"),
    "Secret": ("/api/v1", "secrets"),
}
_OF_CLUSTER = {
    "ClusterRole": ("/apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Namespace": ("/api/v1", "namespaces"),
}


def objects(namespace: str, account: str, optional: Sequence[str] = ()) -> list[Object]:
    """Return the objects that a namespace of runs needs.

    Args:
        namespace: The namespace of the runs.
        account: The service account of the runs.
        optional: Names of OPTIONAL.

    Raises:
        ConfigurationError: The installation lacks the files.
    """
    folders = ("base", *(f"optional/{name}" for name in OPTIONAL if name in optional))
    return [
        _placed(found, namespace, account) for folder in folders for found in _read(FOLDER / folder)
    ]


def secret(namespace: str, name: str, values: Mapping[str, str]) -> Object:
    """Return the Secret of the store."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(PART_OF)}
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque"}
    return kind | {"metadata": metadata, "stringData": dict(values)}


def path_of(found: Mapping[str, Any]) -> str:
    """Return the path of an object in the API."""
    kind, metadata = found["kind"], found["metadata"]
    if kind in _OF_CLUSTER:
        group, plural = _OF_CLUSTER[kind]
        return f"{group}/{plural}/{metadata['name']}"
    group, plural = _PATHS[kind]
    return f"{group}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def is_of_cluster(found: Mapping[str, Any]) -> bool:
    """Tell whether an object belongs to no namespace."""
    return found["kind"] in _OF_CLUSTER


def _read(folder: Path) -> Iterator[Object]:
    """Yield the objects of a folder, with its common labels."""
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
                fix="install kfp-tfjob again from its wheel",
            )
        ) from error


def _placed(found: Object, namespace: str, account: str) -> Object:
    metadata = found["metadata"]
    if found["kind"] == "Namespace":
        metadata["name"] = namespace
    elif found["kind"] in _PATHS:
        metadata["namespace"] = namespace
    elif found["kind"] == "ClusterRoleBinding":
        # Several namespaces may have one, and each has its own subjects.
        metadata["name"] = f"{found['roleRef']['name']}-{namespace}"
    for subject in found.get("subjects", ()):
        subject |= {"name": account, "namespace": namespace}
    return found
