"""Folders of deploy/ whose controllers do not run here: their CRDs check them in the API server."""

from __future__ import annotations

import pytest
import yaml

from kfp_tfjob.jobs.objects import Object
from tests.cluster.cluster import Cluster
from tests.cluster.custom_resources import define
from tests.cluster.launches import ROOT
from tests.cluster.test_deploy_serving import rendered

pytestmark = pytest.mark.cluster

DEPLOY = ROOT / "deploy"
FOLDERS = ["optional/karpenter", "optional/monitoring", "serving/keda", "serving/kserve"]


def _dry_run(cluster: Cluster, found: list[Object]) -> str:
    how = ("--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    return cluster.kubectl("apply", *how, stdin=yaml.safe_dump_all(found))


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_definitions_accept(own_cluster: Cluster, namespace: str, folder: str) -> None:
    define(own_cluster, folder)
    found = rendered(own_cluster, DEPLOY / folder, namespace)
    said = _dry_run(own_cluster, found)
    assert said.count(" serverside-applied ") == len(found), said
