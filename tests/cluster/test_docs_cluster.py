"""The `cluster` commands of the documents do what they show, one page after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.docs.blocks import DOCUMENTS, ROOT, blocks_of, script

pytestmark = pytest.mark.cluster

PAGES = {
    str(path.relative_to(ROOT)): found
    for path in DOCUMENTS
    if (found := [it for it in blocks_of(path) if "cluster" in it.classes])
}


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, own_cluster: Cluster, tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if path.name not in (".git", "site"):
            (tmp_path / path.name).symlink_to(path)
    # The namespace of the operator, which has no Kubeflow Pipelines here, is there between tests.
    where = ("-n", "kubeflow", "--ignore-not-found")
    own_cluster.kubectl("delete", "secret", "objstore-cred", *where)
    places = (
        Path(sys.executable).parent,
        own_cluster.program("kubectl").parent,
        os.environ["PATH"],
    )
    done = subprocess.run(
        ["bash", "-c", script(PAGES[page])],
        cwd=tmp_path,
        env=os.environ
        | {"PATH": os.pathsep.join(map(str, places)), "KUBECONFIG": str(own_cluster.kubeconfig)}
        | {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
