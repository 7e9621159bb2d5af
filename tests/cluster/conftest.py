"""Fixtures of the tests on a real control plane; `make test-cluster` runs them.

With KUBECONFIG set they use that cluster: it must have the training-operator and the images of
`components/images.py`, and tests that need the host of the control plane are skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.access import Access
from tests.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Access]:
    """The cluster that is named by KUBECONFIG, or one of our own for this session."""
    if named := os.environ.get("KUBECONFIG"):
        yield Access(Path(named))
        return
    with Cluster() as started:
        yield started


@pytest.fixture
def own_cluster(cluster: Access) -> Cluster:
    """A cluster whose servers and nodes the test may stop, and which has an S3 server."""
    if not isinstance(cluster, Cluster):
        pytest.skip("needs control over the servers and nodes, and KUBECONFIG names a cluster")
    return cluster


@pytest.fixture
def namespace(cluster: Access) -> Iterator[str]:
    """A namespace of this test alone."""
    with cluster.namespace() as name:
        yield name
