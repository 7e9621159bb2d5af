"""Workflows of Argo as objects that no controller cares for: what Kubernetes itself has of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kubernetes.client.exceptions import ApiException

from tests.cluster.access import Access

_VERSION = ("argoproj.io", "v1alpha1")
_KIND = {"apiVersion": "/".join(_VERSION), "kind": "Workflow"}


def definition() -> str:
    """Return the kind as JSON; its objects may have any fields, as those of Argo."""
    names = {"plural": "workflows", "singular": "workflow", "kind": "Workflow"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": _VERSION[1], "served": True, "storage": True}
    version["schema"] = {"openAPIV3Schema": schema}
    spec = {"group": _VERSION[0], "names": names, "scope": "Namespaced", "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return json.dumps(kind | {"metadata": {"name": "workflows.argoproj.io"}, "spec": spec})


@dataclass(frozen=True)
class Workflow:
    """A run as Kubeflow Pipelines makes it."""

    cluster: Access
    namespace: str
    name: str = "run-x"

    def create(self, run_id: str = "") -> Self:
        """Make it, found by the label of its run, and return it."""
        labels = {"pipeline/runid": run_id} if run_id else {}
        body = _KIND | {"metadata": {"name": self.name, "labels": labels}, "spec": {}}
        body["status"] = {"phase": "Running"}
        self.cluster.custom.create_namespaced_custom_object(*self._path[:-1], body)
        return self

    def get(self) -> dict[str, Any] | None:
        try:
            return self.cluster.custom.get_namespaced_custom_object(*self._path)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def patch(self, body: Mapping[str, Any]) -> None:
        self.cluster.custom.patch_namespaced_custom_object(*self._path, body)

    def terminate(self) -> None:
        """Do what Kubeflow Pipelines does when a person ends a run."""
        self.patch({"spec": {"activeDeadlineSeconds": 0}})

    def delete(self) -> None:
        """Delete it; one with a finalizer stays."""
        self.cluster.custom.delete_namespaced_custom_object(*self._path)

    def reference(self) -> dict[str, str]:
        """Return what an owned object names it by."""
        found = self.get()
        assert found is not None
        return _KIND | {"name": self.name, "uid": found["metadata"]["uid"]}

    @property
    def _path(self) -> tuple[str, str, str, str, str]:
        return (*_VERSION, self.namespace, "workflows", self.name)
