"""The death of a process ends the others at once, also where TensorFlow could not tell them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.local.trainer_jobs import ROOT, SECONDS, Job, Start

# Neither replica can hear of anything from TensorFlow while it is in code of the user.
CODE = """
import json, os, pathlib, time
import keras
from kfp_tfjob.trainer.models import mlp

CHIEF = json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"

def stay(chief, restarts):
    if (CHIEF, os.environ["RESTARTS"]) == (chief, restarts):
        pathlib.Path(os.environ["JOB_DIR"], "stays" + restarts).touch()
        time.sleep(3600)

def build_model(dataset):
    stay(False, "1")
    return mlp(dataset)

class Stays(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        stay(True, "0")

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

def callbacks(dataset):
    return [Stays()]
"""


@pytest.mark.parametrize("ends", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_replica_that_hears_nothing_of_tensorflow_ends_with_its_peer(
    jobs: Start, ends: int
) -> None:
    job = jobs("watched", 2, code=CODE, MAX_RESTARTS="3")
    job.until((job.folder / "0" / "stays0").exists)
    job.until(lambda: len(_connections(job)) > 0)
    chief = job.trainer(0)
    for said in (b"", b"GET / HTTP/1.0\r\n\r\n", bytes(48)):
        _say_to_the_watch(job, said)
    assert job.trainer(0) == chief and "restart" not in job.log()

    os.kill(job.trainer(1), signal.SIGKILL)
    job.until_in(0, "another replica was lost (worker 0: its process has ended)")
    job.until_in(0, "restart 1 of 3: another replica was lost")  # that is 138

    if ends == 1:
        return
    job.until((job.folder / "1" / "stays1").exists)
    job.until(lambda: len(_connections(job)) > 0)
    os.kill(job.trainer(0), signal.SIGKILL)
    job.until_in(1, "another replica was lost (chief: its process has ended)")


JOINS = """
import sys, threading, time
from kfp_tfjob.trainer.peer_watch import PeerMonitor

watch = PeerMonitor("worker 0")
join = (("127.0.0.1", int(sys.argv[1])), bytes(16))
threading.Thread(target=watch._join, args=join, daemon=True).start()
time.sleep(60)
"""


@pytest.mark.slow
def test_a_chief_that_greets_late_is_watched_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS)
        port = str(server.getsockname()[1])
        worker = subprocess.Popen(
            [sys.executable, "-c", JOINS, port], env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        chief, _ = server.accept()
        with chief:
            time.sleep(4)  # it builds its model
            chief.sendall(b"chief".ljust(32))
        assert worker.wait(SECONDS) == 138


def _say_to_the_watch(job: Job, said: bytes) -> None:
    """Connect to the chief as something that is no replica, until it hangs up."""
    with socket.create_connection(("127.0.0.1", _port(job)), 60) as stray:
        stray.sendall(said)
        stray.shutdown(socket.SHUT_WR)
        assert stray.recv(1) == b""


def _port(job: Job) -> int:
    """Return the port of the chief's watch: that on which it listens beside TensorFlow's."""
    (port,) = {port for port, _, state in _sockets(job) if state == "0A"} - set(job.ports)
    return port


def _connections(job: Job) -> list[int]:
    """Return the ports of the workers that are connected to the watch."""
    watch = _port(job)
    return [peer for port, peer, state in _sockets(job) if port == watch and state == "01"]


def _sockets(job: Job) -> set[tuple[int, int, str]]:
    """Return the TCP sockets of the chief's trainer: port, port of the peer, and state."""
    process = Path(f"/proc/{job.trainer(0)}")
    owned, found = set(), set()
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            owned.add(os.readlink(descriptor))
    for table in ("tcp", "tcp6"):
        for line in (process / "net" / table).read_text().splitlines()[1:]:
            _, local, peer, state, *_ = fields = line.split()
            if f"socket:[{fields[9]}]" in owned:
                found.add((int(local[-4:], 16), int(peer[-4:], 16), state))
    return found
