"""What replicas print is in the store, line by line as Kubernetes has it, and stays there."""

import random
import subprocess

import pytest

from kfp_tfjob.cluster.log_reader import LogReader
from tests.cluster.launches import Launch

pytestmark = pytest.mark.cluster

_LINES = 3000
# Two streams of a container, and lines faster than the clock of a slow machine ticks.
_TALKS = f"""
for number in range({_LINES}):
    print("line", number, flush=True, file=sys.stderr if number % 5 == 0 else sys.stdout)
    if number % 10 == 0:
        time.sleep(0.1)
"""


def _in_kubernetes(launch: Launch, replica: str, container: str) -> list[str]:
    where = (launch.pod(replica), launch.namespace)
    log = launch.cluster.core.read_namespaced_pod_log(*where, container=container)
    return log.splitlines()


def _in_store(launch: Launch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in LogReader(launch.step.store, launch.step.run, 1).new_lines():
        found.setdefault(line.where, []).append(line.text)
    return found


def test_the_log_of_a_launcher_that_is_killed_again_and_again(launch, monkeypatch):
    monkeypatch.setenv("STORE_SECONDS", "0.5")
    chance, kills = random.Random(7), 0
    while True:
        process = launch.start_process(_TALKS, workers=1)
        launch.wait_for(launch.jobs)  # a launcher killed before leaves its job to attempt 2
        try:
            code = process.wait(3 + 4 * chance.random() + kills)  # in the end, one gets through
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert code == 0
    stored = _in_store(launch)
    files = LogReader(launch.step.store, launch.step.run, 1).files()
    for replica in ("chief-0", "worker-0"):
        assert sorted(stored[replica]) == sorted(_in_kubernetes(launch, replica, "tensorflow"))
    uploader = _in_kubernetes(launch, "chief-0", "uploader")
    assert sorted(stored["chief-0/uploader"]) == sorted(uploader)
    assert all(len(of_replica) <= kills + 1 for of_replica in files.values())
    assert kills >= 3
    launch.backend().delete(launch.name())
    assert _in_store(launch) == stored, "the log outlives its pods"
