"""Fixtures of the tests on a real control plane; `make test-cluster` runs them.

They attach to the cluster that is there, be it of `make test-cluster` or of `python -m
tests.cluster.cluster` in another terminal; without one, a session in one process starts its own.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kfp_tfjob.common.errors import ConfigurationError, Problem
from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.storage.store import Store
from tests.cluster.cluster import SCARCE_NODE, STATE, Cluster
from tests.cluster.kueue_controller import Kueue
from tests.cluster.launches import BUCKET, Launch, new_launch
from tests.cluster.node import SCARCE, Node, tolerate
from tests.cluster.workflows import Workflow

_HERE = Path(__file__).parent
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that is there, or one of our own."""
    if there := Cluster.attached():
        yield there
    elif "PYTEST_XDIST_WORKER" in os.environ:
        raise ConfigurationError(
            Problem("several processes need a cluster that is there", fix="make test-cluster")
        )
    else:
        with Cluster() as started:
            yield started


@pytest.fixture(autouse=True)
def _beside_others(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[None]:
    """Hold a lock that tests share, or have for themselves where they ask for `alone`.

    One test at a time has the node with GPUs: three of their jobs ask for more cores than it has.
    """
    if "kueue" in request.fixturenames:  # it holds the lock for all tests of its module
        yield
        return
    with ExitStack() as held:
        if "scarce" in request.fixturenames:
            held.enter_context(_locked("scarce.lock"))
        how = fcntl.LOCK_EX if "alone" in request.fixturenames else fcntl.LOCK_SH
        held.enter_context(_locked("tests.lock", how))
        yield


@contextmanager
def _locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    with open(STATE / name, "a") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[Kueue]:
    """Kueue on this cluster, while no other module's test runs.

    Its webhooks see every job, and refuse them all while it starts.
    """
    with _locked("tests.lock"):
        controller = Kueue(cluster)
        try:
            controller.install()
            yield controller
        finally:
            controller.remove()


@pytest.fixture
def node(cluster: Cluster) -> Iterator[Node]:
    """A node of its own, which the test may lose."""
    found = cluster.add_node()
    yield found
    cluster.remove_node(found)


@pytest.fixture
def alone(cluster: Cluster) -> Cluster:
    """A cluster whose servers the test may stop: no other test runs at the same time."""
    return cluster


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test alone; what is in it is shown if the test fails."""
    with cluster.namespace() as name:
        yield name
        report = request.node.stash.get(_REPORT, None)
        if report is not None and report.failed:
            print(cluster.picture(name))


@pytest.fixture
def restricted(cluster: Cluster, namespace: str) -> str:
    """A namespace under Pod Security `restricted`."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(namespace, {"metadata": {"labels": label}})
    return namespace


@pytest.fixture(scope="session")
def launch_store(cluster: Cluster) -> Store:
    store = cluster.objects.store()
    store.make_bucket(BUCKET)
    return store


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> JobKind:
    """The kind of the jobs of a launch; `on_both_kinds` gives a test one after the other.

    For the others it is KIND of the environment, by default TFJob.
    """
    return getattr(request, "param", kind_named(os.environ.get("KIND", "")))


@pytest.fixture
def launch(
    cluster: Cluster, namespace: str, launch_store: Store, kind: JobKind
) -> Iterator[Launch]:
    with new_launch(cluster, namespace, launch_store, kind=kind) as found:
        yield found


@pytest.fixture
def another_launch(
    cluster: Cluster, launch_store: Store, kind: JobKind
) -> Iterator[Callable[[], Launch]]:
    """Makes launches of the same kind in namespaces of their own."""
    with ExitStack() as stack:

        def make() -> Launch:
            namespace = stack.enter_context(cluster.namespace())
            return stack.enter_context(new_launch(cluster, namespace, launch_store, kind=kind))

        yield make


@pytest.fixture
def workflow(launch: Launch) -> Iterator[Workflow]:
    found = Workflow(launch.cluster, launch.namespace).create(launch.step.run_id)
    yield found
    if found.get():
        found.patch({"metadata": {"finalizers": []}})


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


@pytest.fixture
def scarce(launch: Launch) -> Iterator[dict[str, object]]:
    """Settings of pods for GPUs: one node has eight, the others none; only this test asks."""
    name = f"{launch.namespace}.test/gpu"
    launch.cluster.fake_gpus(8, resource=name)
    yield {"gpu_resource": name, "tolerations": [tolerate(SCARCE, SCARCE_NODE)]}
    launch.cluster.fake_gpus(0, resource=name)


@pytest.fixture
def launch_on_own_store(cluster: Cluster, namespace: str) -> Iterator[Launch]:
    """A launch whose store is `launch.objects`, an S3 server that the test may stop."""
    server = cluster.store_server(f"objects-{namespace}")
    server.start()
    store = server.store()
    store.make_bucket(BUCKET)
    with new_launch(cluster, namespace, store, server) as found:
        yield found
    server.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, which train; end with those that nothing may run beside."""

    def turn(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ()) if item.path.parent == _HERE else ()
        if "the_trainer_runs" in item.name or "trainings" in names:
            return 0
        return 2 if {"alone", "kueue"} & {*names} else 1

    items.sort(key=turn)
