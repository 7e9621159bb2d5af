"""The runs of a model in TensorBoard, in a pod under Pod Security `restricted`."""

from __future__ import annotations

import json

import pytest
import yaml

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.cluster import Cluster
from tests.cluster.launches import BUCKET, ROOT
from tests.cluster.processes import wait_until
from tests.cluster.test_deploy_serving import rendered, settings
from tests.local.published import VERDICT

pytestmark = pytest.mark.cluster


def test_it_starts_in_its_image(own_cluster: Cluster, namespace: str, launch_store: Store) -> None:
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    own_cluster.core.patch_namespace(namespace, {"metadata": {"labels": label}})
    own_cluster.storage_secret(namespace)
    verdict = VERDICT | {"model_name": "my-model"}
    run = Layout(S3Address(BUCKET, namespace)).run("r1")
    launch_store.write(run.verdict, json.dumps(verdict).encode())
    found = rendered(own_cluster, ROOT / "deploy" / "optional" / "tensorboard", namespace)
    settings(found, namespace)
    own_cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(found))
    where = ("-n", namespace, "--timeout=300s")
    own_cluster.kubectl("rollout", "status", "deployment/tensorboard", *where)
    (pod,) = own_cluster.core.list_namespaced_pod(namespace).items

    def said() -> str:
        return own_cluster.core.read_namespaced_pod_log(pod.metadata.name, namespace)

    assert wait_until(lambda: "my-model" in said(), 240), said()
