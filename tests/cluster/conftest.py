"""Fixtures of the tests on a real control plane; `make test-cluster` runs them.

With KUBECONFIG set they use that cluster: it must have the training-operator and the images of
`options/images.py`, and tests that need the host of the control plane are skipped. Else they
attach to the cluster that is there, be it of `make test-cluster` or of `python -m
tests.cluster.cluster` in another terminal; without one, a session in one process starts its own.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfp_tfjob.jobs.kind import JobKind
from kfp_tfjob.jobs.kinds import kind_named
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.storage.errors import ConfigurationError, Problem
from kfp_tfjob.storage.store import Store
from tests.cluster.access import Access
from tests.cluster.cluster import SCARCE_NODE, STATE, Cluster
from tests.cluster.launches import Launch, Row, check, new_launch, store_of
from tests.cluster.node import SCARCE, tolerate
from tests.cluster.object_store import ObjectStore

_HERE = Path(__file__).parent
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Access]:
    """The cluster that is named by KUBECONFIG, the one that is there, or one of our own."""
    if named := os.environ.get("KUBECONFIG"):
        yield Access(Path(named))
    elif there := Cluster.attached():
        yield there
    elif "PYTEST_XDIST_WORKER" in os.environ:
        raise ConfigurationError(
            Problem("several processes need a cluster that is there", fix="make test-cluster")
        )
    else:
        with Cluster() as started:
            yield started


@pytest.fixture(autouse=True)
def _beside_others(request: pytest.FixtureRequest, cluster: Access) -> Iterator[None]:
    """Hold a lock that tests share, or have for themselves where they ask for `alone`.

    One test at a time has the node with GPUs: three of their jobs ask for more cores than it has.
    """
    if not isinstance(cluster, Cluster):
        yield
        return
    with open(STATE / "scarce.lock", "a") as node, open(STATE / "tests.lock", "a") as lock:
        if "scarce" in request.fixturenames:
            fcntl.flock(node, fcntl.LOCK_EX)
        alone = "alone" in request.fixturenames
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture
def own_cluster(cluster: Access) -> Cluster:
    """A cluster to which the test may add nodes and S3 servers."""
    if not isinstance(cluster, Cluster):
        pytest.skip("needs control over the servers and nodes, and KUBECONFIG names a cluster")
    return cluster


@pytest.fixture
def alone(own_cluster: Cluster) -> Cluster:
    """A cluster whose servers the test may stop: no other test runs at the same time."""
    return own_cluster


@pytest.fixture
def namespace(cluster: Access, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test alone; what is in it is shown if the test fails."""
    with cluster.namespace() as name:
        yield name
        report = request.node.stash.get(_REPORT, None)
        if report is not None and report.failed and isinstance(cluster, Cluster):
            print(cluster.picture(name))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Note something that was measured; it is shown at the end."""
    return lambda text: record_property("figure", text)


@pytest.fixture(scope="session")
def launch_store(cluster: Access, tmp_path_factory: pytest.TempPathFactory) -> Store:
    if not isinstance(cluster, Cluster):
        pytest.skip("needs control over the servers and nodes, and KUBECONFIG names a cluster")
    return store_of(cluster.objects, tmp_path_factory.mktemp("secret"))


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> JobKind:
    """The kind of the jobs of a launch; `on_both_kinds` gives a test one after the other.

    For the others it is KIND of the environment, by default TFJob.
    """
    return getattr(request, "param", kind_named(os.environ.get("KIND", "")))


@pytest.fixture
def launch(
    own_cluster: Cluster, namespace: str, launch_store: Store, kind: JobKind
) -> Iterator[Launch]:
    with new_launch(own_cluster, namespace, launch_store, kind=kind) as found:
        yield found


@pytest.fixture
def scarce(launch: Launch) -> Iterator[dict[str, object]]:
    """Settings of pods for GPUs: one node has eight, the others none; only this test asks."""
    name = f"{launch.namespace}.test/gpu"
    launch.cluster.fake_gpus(8, resource=name)
    yield {"gpu_resource": name, "tolerations": [tolerate(SCARCE, SCARCE_NODE)]}
    launch.cluster.fake_gpus(0, resource=name)


@pytest.fixture
def own_store(own_cluster: Cluster) -> Iterator[ObjectStore]:
    """An S3 server that the test may stop."""
    started = own_cluster.own_store()
    yield started
    started.stop()


@pytest.fixture
def launch_on_own_store(
    own_cluster: Cluster, namespace: str, own_store: ObjectStore, tmp_path: Path
) -> Iterator[Launch]:
    """A launch whose store is `launch.objects`."""
    store = store_of(own_store, tmp_path)
    with new_launch(own_cluster, namespace, store, own_store) as found:
        yield found


@pytest.fixture
def row(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., None]:
    """Check how a launch ended, and add it to the table of faults."""

    def ended(
        launch: Launch, verdict: str, code: int, jobs: int, gpus: int = 0, name: str = ""
    ) -> None:
        fault = name or request.node.originalname.removeprefix("test_").replace("_", " ")
        fault += "" if launch.kind is TFJOB else f" ({launch.kind.name})"
        record_property("job fault", check(launch, Row(fault, verdict, code, jobs, gpus)))

    return ended


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, which trains; end with those that nothing may run beside."""

    def turn(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ()) if item.path.parent == _HERE else ()
        return 0 if "dataset" in names else 2 if "alone" in names else 1

    items.sort(key=turn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what was measured and the table of faults, from whichever process it comes."""
    reports = [
        report
        for category in ("passed", "failed")
        for report in terminalreporter.stats.get(category, [])
        if report.when == "call"
    ]
    noted = [noted for report in reports for noted in report.user_properties]
    figures = [text for kind, text in noted if kind == "figure"]
    rows = sorted(tuple(found) for kind, found in noted if kind == "job fault")
    if figures:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(figures))
    if rows:
        terminalreporter.section(f"{len(rows)} faults")
        width = max(len(found[0]) for found in rows)
        title = f"{'fault':{width}} {'verdict':18} {'code':>4} {'jobs':>6} {'GPUs':>4}"
        lines = [f"{a:{width}} {b:18} {c:4d} {d:6d} {e:4d}" for a, b, c, d, e in rows]
        terminalreporter.write_line("\n".join([title, *lines]))
