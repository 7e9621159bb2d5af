"""Fixtures of the tests on a real control plane; `make test-cluster` runs them.

With KUBECONFIG set they use that cluster: it must have the training-operator and the images of
`components/images.py`, and tests that need the host of the control plane are skipped.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.store import Store
from tests.cluster.access import Access
from tests.cluster.cluster import Cluster
from tests.cluster.launches import GPUS, Launch, check, new_launch, store_of

log = logging.getLogger(__name__)


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


@pytest.fixture(scope="session")
def table() -> Iterator[list[tuple[str, str, int, int, int]]]:
    """The rows that tests add; shown when the last one is done."""
    rows: list[tuple[str, str, int, int, int]] = []
    yield rows
    lines = [f"{'fault':46} {'verdict':18} {'code':>4} {'TFJobs':>6} {'GPUs':>4}"]
    lines += [f"{a:46} {b:18} {c:4d} {d:6d} {e:4d}" for a, b, c, d, e in rows]
    log.info("%d faults\n%s", len(rows), "\n".join(lines))


@pytest.fixture(scope="session")
def launch_store(cluster, tmp_path_factory) -> Iterator[Store]:
    if not isinstance(cluster, Cluster):
        pytest.skip("needs control over the servers and nodes, and KUBECONFIG names a cluster")
    cluster.fake_gpus(GPUS)
    yield from store_of(cluster, tmp_path_factory.mktemp("secret"))
    cluster.fake_gpus(0)


@pytest.fixture
def launch(own_cluster: Cluster, namespace: str, launch_store: Store) -> Iterator[Launch]:
    found = new_launch(own_cluster, namespace, launch_store)
    yield found
    found.close()


@pytest.fixture
def row(launch: Launch, table, request) -> Callable[..., None]:
    """Check how a launch ended, and add it to the table."""

    return check(launch, table, request.node.name)
