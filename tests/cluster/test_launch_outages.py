"""Faults below a job: its node, its sidecar, the store, the operator, the API server."""

import json
import threading
import time

import pytest

from kfp_tfjob.jobs.jobset import JOBSET
from tests.cluster.launches import UNTIL_GO, on_both_kinds
from tests.cluster.node import preferring
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.cluster


@on_both_kinds
def test_node_lost(launch, node):
    there = {"worker": preferring(node)}
    body = "time.sleep(0 if attempt > 1 else 600)"
    launch.start(launch.spec(body, workers=1, pod=there, stall_timeout_seconds=600))
    launch.wait_said(replica="worker-0")
    assert launch.node_of("worker-0") == node.name
    node.kill()
    launch.succeeds(attempts=2)
    assert "DeletionByTaintManager" in launch.end_record()["sentence"]


@on_both_kinds
def test_node_not_ready_and_back_with_the_old_chief(launch, node):
    """The chief is given up while it runs on; when its node is back it must not write any more."""
    body = (
        "while attempt == 1:\n"
        "    (output / 'model/weights.bin').write_bytes(os.urandom(1000))\n"
        "    time.sleep(0.5)\n"
    )
    there = {"chief": preferring(node)}
    launch.start(launch.spec(body, pod=there))
    launch.wait_said()
    assert launch.node_of() == node.name
    node.freeze()
    try:
        launch.join()
        store, run = launch.step.store, launch.step.run
        manifest = store.read(run.manifest)
    finally:
        node.thaw()
    launch.wait_for(lambda: launch.phase() == "")
    launch.succeeds(attempts=2)
    assert store.read(run.manifest) == manifest and json.loads(manifest)["attempt"] == 2
    assert store.read(run.output / "model/weights.bin") == b"w" * 1000


def test_sidecar_killed_twice(launch):
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.wait_said()
    for times in (1, 2):
        launch.wait_for(launch.kill_sidecar)
        launch.wait_for(lambda times=times: launch.sidecar_restarts() == times)
    launch.go()
    launch.succeeds()


def test_sidecar_crash_loops(launch):
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
    launch.ended_with("store_unavailable", 145, jobs=0)
    assert "uploader" in ended.message and "137" in ended.message, ended.message


def test_sidecar_cannot_store_in_time(launch_on_own_store):
    launch = launch_on_own_store
    launch.start(launch.spec(UNTIL_GO, gpus=1, store_deadline_seconds=10))
    launch.wait_said()
    launch.objects.stop()
    try:
        launch.go()
        launch.wait_for(lambda: launch.phase() in ("Failed", "") and not launch.ended)
    finally:
        launch.objects.start()
    launch.succeeds(attempts=2)
    end = launch.end_record()
    assert end["verdict"] == "store_unavailable" and end["code"] == 145


def test_operator_goes_away(launch, another_launch, alone):
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
    new.ended_with("operator_absent", 2, jobs=0)
    assert "webhook" in new.ended.message
    impatient.ended_with("operator_absent", 2, jobs=0)
    assert "20 s" in impatient.ended.message
    patient.ended_with("succeeded", 0, jobs=1)
    late.ended_with("succeeded", 0, jobs=1)


def test_api_server_restarted_mid_run(launch, alone):
    launch.start(launch.spec(UNTIL_GO, gpus=1))
    launch.wait_said()
    alone.apiserver.restart()
    assert wait_until(lambda: all(alone.node_is_ready(name) for name in alone.nodes), 120)
    launch.go()
    launch.succeeds()
