"""The `cluster` commands of the documents do what they show, one page after the other."""

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.docs.blocks import Block, pages_with, run

pytestmark = pytest.mark.cluster
PAGES = pages_with("cluster")


@pytest.mark.parametrize("blocks", PAGES.values(), ids=PAGES)
def test_page(blocks: list[Block], cluster: Cluster, tmp_path: Path) -> None:
    # The namespace of the operator, which has no Kubeflow Pipelines here, is there between tests.
    where = ("-n", "kubeflow", "--ignore-not-found")
    cluster.kubectl("delete", "secret", "objstore-cred", *where)
    environment = {"KUBECONFIG": str(cluster.kubeconfig)}
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    run(blocks, tmp_path, 300, cluster.program("kubectl").parent, **environment)
