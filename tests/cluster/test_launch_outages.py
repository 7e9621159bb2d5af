"""Faults below a job: its node, its sidecar, the store, the operator, the API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kind import JobKind
from tests.cluster.cluster import Cluster
from tests.cluster.launches import UNTIL_GO, Launch, new_launch, on_both_kinds
from tests.cluster.node import EXTRA, Node, tolerate
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def node(own_cluster: Cluster) -> Iterator[Node]:
    """A node that the test may lose."""
    found = own_cluster.add_node()
    yield found
    own_cluster.remove_node(found)


@pytest.fixture
def another_launch(
    own_cluster: Cluster, launch_store, kind: JobKind
) -> Iterator[Callable[[], Launch]]:
    """Makes launches of the same kind in namespaces of their own."""
    with ExitStack() as stack:

        def make() -> Launch:
            namespace = stack.enter_context(own_cluster.namespace())
            return stack.enter_context(new_launch(own_cluster, namespace, launch_store, kind=kind))

        yield make


def _preferring(node: Node) -> dict[str, Any]:
    """Return the settings of a pod that is put on a node as long as it is there."""
    names = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    prefer = [{"weight": 100, "preference": {"matchExpressions": [names]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer}}
    return {"affinity": affinity, "tolerations": [tolerate(EXTRA, node.name)]}


def _end(launch: Launch, attempt: int = 1) -> dict[str, Any]:
    return json.loads(launch.step.store.read(launch.step.run.attempts / f"{attempt:04d}.end.json"))


@on_both_kinds
def test_node_lost(launch, row, node):
    there = {"worker": _preferring(node)}
    body = "time.sleep(0 if attempt > 1 else 600)"
    launch.start(launch.spec(body, workers=1, pod=there, stall_timeout_seconds=600))
    launch.wait_said(replica="worker-0")
    assert launch.node_of("worker-0") == node.name
    node.kill()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2
    assert "DeletionByTaintManager" in _end(launch)["sentence"]


@on_both_kinds
def test_node_not_ready_and_back_with_the_old_chief(launch, row, node):
    """The chief is given up while it runs on; when its node is back it must not write any more."""
    body = (
        "while attempt == 1:\n"
        "    (output / 'model/weights.bin').write_bytes(os.urandom(1000))\n"
        "    time.sleep(0.5)\n"
    )
    there = {"chief": _preferring(node)}
    launch.start(launch.spec(body, pod=there))
    launch.wait_said()
    assert launch.node_of() == node.name
    node.freeze()
    try:
        ended = launch.join()
        store, run = launch.step.store, launch.step.run
        manifest = store.read(run.manifest)
    finally:
        node.thaw()
    launch.wait_for(lambda: launch.phase() == "")
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2
    assert store.read(run.manifest) == manifest and json.loads(manifest)["attempt"] == 2
    assert store.read(run.output / "model/weights.bin") == b"w" * 1000


def test_sidecar_killed_twice(launch, row):
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.wait_said()
    for times in (1, 2):
        launch.wait_for(launch.kill_sidecar)
        launch.wait_for(lambda times=times: launch.sidecar_restarts() == times)
    launch.go()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1


def test_sidecar_crash_loops(launch, row):
    launch.start(launch.spec(UNTIL_GO, gpus=1, store_deadline_seconds=8, max_attempts=1))
    launch.wait_said()
    over = threading.Event()

    def crash() -> None:
        while not over.wait(0.05):
            launch.kill_sidecar()

    crashing = threading.Thread(target=crash)
    crashing.start()
    try:
        launch.wait_for(launch.sidecar_restarts)
        launch.go()
        ended = launch.join()
    finally:
        over.set()
        crashing.join()
    row(launch, "store_unavailable", 145, jobs=0)
    assert "uploader" in ended.message and "137" in ended.message, ended.message


def test_sidecar_cannot_store_in_time(launch_on_own_store, row):
    launch = launch_on_own_store
    launch.start(launch.spec(UNTIL_GO, gpus=1, store_deadline_seconds=10))
    launch.wait_said()
    launch.objects.stop()
    try:
        launch.go()
        launch.wait_for(lambda: launch.phase() in ("Failed", "") and not launch.ended)
    finally:
        launch.objects.start()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 2
    end = _end(launch)
    assert end["verdict"] == "store_unavailable" and end["code"] == 145


def test_operator_goes_away(launch, another_launch, row, alone):
    """One outage: for a job that ends in it, for launchers with and without patience."""
    patient, impatient, new, late = launch, *(another_launch() for _ in range(3))
    patient.start(patient.spec(UNTIL_GO, gpus=1))
    impatient.start(impatient.spec(UNTIL_GO, gpus=1, operator_timeout_seconds=20))
    for each in (patient, impatient):
        each.wait_said()
    controller = alone.jobset if launch.kind is JOBSET else alone.operator
    controller.stop()
    try:
        new.start(new.spec(gpus=1), new.backend(operator_seconds=4))
        for each in (patient, impatient):
            each.go()
        new.join()
        impatient.join()
        patient.wait_for(lambda: patient.phase() == "Succeeded")
        late.start(late.spec(gpus=1))
        time.sleep(1)  # of the minute for which it tries
    finally:
        controller.start()
    patient.join()
    late.join()
    row(new, "operator_absent", 2, jobs=0, name="operator down at create")
    assert "webhook" in new.ended.message
    row(impatient, "operator_absent", 2, jobs=0, name="operator does not come back")
    assert "20 s" in impatient.ended.message
    row(patient, "succeeded", 0, jobs=1, name="operator down mid run")
    row(late, "succeeded", 0, jobs=1, name="operator down at create for a moment")


def test_api_server_restarted_mid_run(launch, row, alone):
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.wait_said()
    alone.apiserver.restart()
    assert wait_until(lambda: all(alone.node_is_ready(name) for name in alone.nodes), 120)
    launch.go()
    ended = launch.join()
    row(launch, "succeeded", 0, jobs=1)
    assert ended.launched.attempts == 1
