"""`kfp-tfjob install` with kubectl on the real API server."""

from __future__ import annotations

import subprocess
import sys

import pytest
from kubernetes import client

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster


def _install(*arguments: str) -> str:
    command = [sys.executable, "-m", "kfp_tfjob.pipelines", "install", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_applied_changed_and_deleted(cluster: Cluster, namespace: str) -> None:
    here = ("--namespace", namespace)
    how = ("apply", "--server-side", "-f", "-")
    said = cluster.kubectl(*how, stdin=_install(*here, "--with", "quota"))
    assert said.count(" serverside-applied") == 5
    cluster.kubectl(*how, stdin=_install(*here, "--multi-user"))
    rbac = client.RbacAuthorizationV1Api(cluster.api)
    binding = rbac.read_namespaced_role_binding("kfp-tfjob", namespace)
    assert [(it.name, it.namespace) for it in binding.subjects] == [("default-editor", namespace)]
    role = rbac.read_namespaced_role("kfp-tfjob", namespace)
    assert {"tfjobs", "jobsets"} <= {name for rule in role.rules for name in rule.resources}
    cluster.kubectl("delete", "-f", "-", stdin=_install(*here, "--with", "quota"))
    assert not rbac.list_namespaced_role(namespace).items
