"""`kfp-tfjob install`, by an administrator and by others, on the real API server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "not-to-be-shown"}


class Install:
    """The command in one namespace.

    Attributes:
        kubeconfig: Of the person.
        environment: Of the process, besides the kubeconfig.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.namespace, self.kubeconfig = namespace, cluster.kubeconfig
        self.environment: dict[str, str] = {}

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code and what was printed."""
        hidden = {name: "" for name in os.environ if name.startswith("AWS_")}
        here = {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            [
                *(sys.executable, "-m", "kfp_tfjob.pipelines", "install"),
                *("--namespace", self.namespace, *arguments),
            ],
            env=os.environ | hidden | here | self.environment,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr and KEYS["AWS_SECRET_ACCESS_KEY"] not in done.stdout
        return done.returncode, done.stdout + done.stderr

    def actions(self, *arguments: str) -> dict[str, str]:
        """Return what is done with each kind."""
        said = self("--json", *arguments)[1]
        return {item["kind"]: item["action"] for item in json.loads(said)["objects"]}


@pytest.fixture
def install(own_cluster: Cluster, namespace: str) -> Install:
    return Install(own_cluster, namespace)


def _role(cluster: Cluster, namespace: str) -> client.V1Role:
    return client.RbacAuthorizationV1Api(cluster.api).read_namespaced_role("kfp-tfjob", namespace)


def test_shown_then_applied_then_in_place(own_cluster: Cluster, install: Install) -> None:
    kinds = ("Role", "RoleBinding", "NetworkPolicy")
    code, said = install()
    assert code == 1 and "Nothing was changed" in said
    assert "there is no service account pipeline-runner" in said
    assert install.actions() == dict.fromkeys(kinds, "create")
    code, said = install("--apply")
    assert code == 0
    removal = f"kubectl delete -n {install.namespace} role/kfp-tfjob rolebinding/kfp-tfjob"
    assert f"{removal} networkpolicy/kfp-tfjob-replicas" in said
    version = _role(own_cluster, install.namespace).metadata.resource_version
    code, said = install()
    assert code == 0 and "Everything is in place" in said
    assert install.actions("--apply") == dict.fromkeys(kinds, "keep")
    assert _role(own_cluster, install.namespace).metadata.resource_version == version
    # What it applied is what kubectl applies: the other way changes nothing either.
    command = removal.split()[1:]
    own_cluster.kubectl(*command)
    assert install()[0] == 1


def test_the_account_changes(own_cluster: Cluster, install: Install) -> None:
    install("--apply")
    code, said = install("--multi-user")
    assert code == 1
    assert "change   RoleBinding kfp-tfjob" in said
    assert "-  name: pipeline-runner" in said and "+  name: default-editor" in said
    assert install("--multi-user", "--apply")[0] == 0
    rbac = client.RbacAuthorizationV1Api(own_cluster.api)
    binding = rbac.read_namespaced_role_binding("kfp-tfjob", install.namespace)
    assert [subject.name for subject in binding.subjects] == ["default-editor"]


def test_what_someone_else_has_set_stays(own_cluster: Cluster, install: Install) -> None:
    install("--apply")
    mine = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    rbac = client.RbacAuthorizationV1Api(own_cluster.api)
    body = {"rules": mine}
    rbac.patch_namespaced_role("kfp-tfjob", install.namespace, body, field_manager="a-person")
    for arguments in ((), ("--apply",), ("--apply", "--multi-user")):
        code, said = install(*arguments)
        assert code == 2 and "Role kfp-tfjob was changed by someone else" in said
        assert "a-person" in said and ".rules" in said
    assert len(_role(own_cluster, install.namespace).rules) == 1
    binding = rbac.read_namespaced_role_binding("kfp-tfjob", install.namespace)
    assert binding.subjects[0].name == "pipeline-runner"  # nothing is applied by halves


def test_a_secret_is_created_once(own_cluster: Cluster, install: Install) -> None:
    code, said = install("--secret-from-env", "--apply")
    assert code == 2 and "no AWS_ACCESS_KEY_ID and no AWS_SECRET_ACCESS_KEY" in said
    install.environment = KEYS
    assert install.actions("--secret-from-env")["Secret"] == "create"
    code, said = install("--secret-from-env", "--apply")
    assert code == 0 and "with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY from your" in said
    install.environment = KEYS | {"AWS_ACCESS_KEY_ID": "other"}
    assert install.actions("--secret-from-env", "--apply")["Secret"] == "keep"
    stored = own_cluster.core.read_namespaced_secret("objstore-cred", install.namespace).data
    assert {name: base64.b64decode(value).decode() for name, value in stored.items()} == KEYS


def test_optional_parts(own_cluster: Cluster, install: Install) -> None:
    pod: dict[str, Any] = {"name": "x", "image": "x", "securityContext": {"privileged": True}}
    body = {"metadata": {"name": "x"}, "spec": {"containers": [pod]}}
    own_cluster.core.create_namespaced_pod(install.namespace, body)
    parts = ("--with", "nodes", "--with", "quota", "--with", "restricted")
    code, said = install(*parts)
    assert code == 1
    assert "change   Namespace" in said and "enforce: restricted" in said
    assert "existing pods in namespace" in said and "privileged" in said  # the server's warning
    code, said = install(*parts, "--apply")
    assert code == 0
    assert f"clusterrolebinding/kfp-tfjob-nodes-{install.namespace}" in said
    try:
        labels = own_cluster.core.read_namespace(install.namespace).metadata.labels
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        quota = own_cluster.core.read_namespaced_resource_quota("kfp-tfjob", install.namespace)
        assert quota.spec.hard["pods"] == "50"
    finally:
        for command in said.partition("Undo it with: kubectl ")[2].split(" && kubectl "):
            own_cluster.kubectl(*command.split())
    labels = own_cluster.core.read_namespace(install.namespace).metadata.labels
    assert not any("pod-security" in name for name in labels)


def test_those_who_may_not(own_cluster: Cluster, install: Install) -> None:
    rules = [{"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"]}]
    rules[0]["verbs"] = ["get", "create", "patch"]
    install.kubeconfig = own_cluster.kubeconfig_for(install.namespace, "person", rules)
    try:
        install.environment = KEYS
        code, said = install("--secret-from-env")
    finally:
        Path(install.kubeconfig).unlink()
    assert code == 2
    for called in ("Role kfp-tfjob", "RoleBinding kfp-tfjob", "Secret objstore-cred"):
        assert f"you may not apply {called}" in said
    assert "NetworkPolicy" not in said and "administrator" in said


def test_a_namespace_that_is_not_there(install: Install) -> None:
    install.namespace = "not-there"
    code, said = install()
    assert code == 2 and said.count("there is no namespace not-there") == 1
    assert "kubectl create namespace not-there" in said
