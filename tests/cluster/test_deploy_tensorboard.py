"""The runs of a model in TensorBoard, in a pod under Pod Security `restricted`."""

from __future__ import annotations

import json

import pytest

from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.cluster.cluster import Cluster
from tests.cluster.launches import BUCKET, ROOT
from tests.cluster.processes import wait_until
from tests.cluster.test_deploy_serving import settings
from tests.local.published import VERDICT

pytestmark = pytest.mark.cluster


def test_it_starts_in_its_image(cluster: Cluster, restricted: str, launch_store: Store) -> None:
    cluster.storage_secret(restricted)
    verdict = VERDICT | {"model_name": "my-model"}
    run = Layout(S3Address(BUCKET, restricted)).run("r1")
    launch_store.write(run.verdict, json.dumps(verdict).encode())
    found = cluster.rendered(ROOT / "deploy" / "optional" / "tensorboard", restricted)
    settings(found, restricted)
    cluster.apply(found)
    where = ("-n", restricted, "--timeout=300s")
    cluster.kubectl("rollout", "status", "deployment/tensorboard", *where)
    (pod,) = cluster.core.list_namespaced_pod(restricted).items

    def said() -> str:
        return cluster.core.read_namespaced_pod_log(pod.metadata.name, restricted)

    assert wait_until(lambda: "my-model" in said(), 240), said()
