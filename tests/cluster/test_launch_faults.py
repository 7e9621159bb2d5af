"""The table of faults: for each the verdict, the exit code, the TFJobs left and the GPUs held."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.store import Store
from tests.cluster.cluster import Cluster
from tests.cluster.launches import Launch, new_launch, store_of
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)

GPUS = 4
_FREED_SECONDS = 60


@pytest.fixture(scope="module")
def table() -> Iterator[list[tuple[str, str, int, int, int]]]:
    """The rows that tests add; shown when the last one is done."""
    rows: list[tuple[str, str, int, int, int]] = []
    yield rows
    lines = [f"{'fault':46} {'verdict':18} {'code':>4} {'TFJobs':>6} {'GPUs':>4}"]
    lines += [f"{a:46} {b:18} {c:4d} {d:6d} {e:4d}" for a, b, c, d, e in rows]
    log.info("%d faults\n%s", len(rows), "\n".join(lines))


@pytest.fixture(scope="module")
def store(cluster, tmp_path_factory) -> Iterator[Store]:
    if not isinstance(cluster, Cluster):
        pytest.skip("needs control over the servers and nodes, and KUBECONFIG names a cluster")
    cluster.fake_gpus(GPUS)
    yield from store_of(cluster, tmp_path_factory.mktemp("secret"))
    cluster.fake_gpus(0)


@pytest.fixture
def launch(own_cluster: Cluster, namespace: str, store: Store) -> Iterator[Launch]:
    found = new_launch(own_cluster, namespace, store)
    yield found
    found.close()


@pytest.fixture
def row(launch: Launch, table, request) -> Callable[..., None]:
    """Check how a launch ended, and add it to the table."""

    def check(verdict: str, code: int, jobs: int, gpus: int = 0) -> None:
        assert launch.ended is not None
        found = (launch.ended.verdict, launch.ended.code)
        assert found == (verdict, code), launch.ended.message
        assert wait_until(lambda: launch.gpus_held() == gpus, _FREED_SECONDS), launch.picture()
        assert len(launch.jobs()) == jobs, launch.picture()
        name = request.node.name.removeprefix("test_").replace("_", " ")
        table.append((name, verdict, code, len(launch.jobs()), launch.gpus_held()))

    return check


def test_nothing_is_wrong(launch, row):
    ended = launch.run(launch.spec("time.sleep(1)", workers=2, gpus=1))
    row("succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
    assert launch.step.store.read_manifest(launch.step.run.manifest).attempt == 1


def test_trainer_exits_with_1(launch, row):
    ended = launch.run(launch.spec("print('no such column'); sys.exit(1)", gpus=1))
    row("user_error", 1, jobs=1)
    assert "no such column" in ended.message and "chief-0 ended with exit code 1" in ended.message


def test_worker_exits_with_3(launch, row):
    body = "time.sleep(60) if me == 'chief-0' else sys.exit('rotten'  if 0 else 3)"
    ended = launch.run(launch.spec(body, workers=1, gpus=1))
    row("user_error", 3, jobs=1)
    assert "worker-0 ended with exit code 3" in ended.message


def test_out_of_memory(launch, row):
    body = "x = []\nwhile True: x.append(b'x' * 10_000_000)"
    launch.run(launch.spec(body, gpus=1))
    row("out_of_memory", 2, jobs=1)
