"""What the pod tells the supervisor by PODINFO_DIR: heartbeats and stop-within; a missing chief."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.replica import SECONDS, Replica
from tests.waiting import until

# A trainer that saves when it is told to stop.
SAVES = """
import signal, sys, time, pathlib
def save(*_):
    pathlib.Path(sys.argv[1], "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(600)
"""
IGNORES = """
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(600)
"""
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(replica: Replica, tmp_path: Path) -> Start:
    (tmp_path / "podinfo").mkdir()

    def run(program: str, **environment: str) -> subprocess.Popen:
        values = {"PODINFO_DIR": str(tmp_path / "podinfo")} | environment
        return replica.start(sys.executable, "-c", program, str(tmp_path), **values)

    return run


def _beat_until_ready(folder: Path) -> None:
    """Be a launcher, as long as the command takes to start."""
    beats = itertools.count()
    until(
        lambda: (
            (folder / "podinfo/heartbeat").write_text(str(next(beats)))
            and (folder / "ready").exists()
        )
    )


def test_an_orphan_that_does_not_listen_is_killed(start: Start, tmp_path: Path):
    process = start(IGNORES, ORPHAN_TIMEOUT="3")
    _beat_until_ready(tmp_path)
    assert process.wait(SECONDS) == 5
    assert not (tmp_path / "saved").exists()


def test_it_saves_and_ends_with_5_once_the_heartbeat_stands_still(start: Start, tmp_path: Path):
    process = start(SAVES, ORPHAN_TIMEOUT="4")
    _beat_until_ready(tmp_path)
    for beat in range(30):  # six seconds, longer than the timeout
        (tmp_path / "podinfo/heartbeat").write_text(f"later {beat}")
        time.sleep(0.2)
        assert process.poll() is None
    assert process.wait(SECONDS) == 5
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "words").read_text().startswith("orphaned")


def test_a_command_that_is_done_is_no_orphan(start: Start):
    assert start("", ORPHAN_TIMEOUT="60").wait(SECONDS) == 0


def test_stop_within_is_an_order_to_stop(start: Start, tmp_path: Path):
    process = start(SAVES)
    until((tmp_path / "ready").exists)
    (tmp_path / "podinfo/stop-within").write_text("60s")
    assert process.wait(SECONDS) == 143
    assert (tmp_path / "saved").exists()


def test_who_does_not_stop_in_a_third_of_the_time_is_killed(start: Start, tmp_path: Path):
    process = start(IGNORES)
    until((tmp_path / "ready").exists)
    (tmp_path / "podinfo/stop-within").write_text("6s")
    began = time.monotonic()
    assert process.wait(SECONDS) == 143
    assert time.monotonic() - began >= 2


def test_what_is_no_duration_is_no_order_to_stop_and_no_time_is_the_end(
    start: Start, tmp_path: Path
):
    process = start(IGNORES)
    until((tmp_path / "ready").exists)
    for order, shown in ((b"soon", "soon"), (b"\xff", "\ufffd")):
        (tmp_path / "podinfo/stop-within").write_bytes(order)
        assert any("stop-within" in line and repr(shown) in line for line in process.stdout)
        assert process.poll() is None
    (tmp_path / "podinfo/stop-within").write_text("0s")
    assert process.wait(SECONDS) == 143


def test_a_worker_waits_for_its_chief_only_so_long(start: Start, tmp_path: Path):
    cluster = {"chief": ["no-such-chief.invalid:2222"], "worker": ["localhost:2223"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    process = start(SAVES, TF_CONFIG=json.dumps(config), START_DEADLINE="2", PODINFO_DIR="")
    assert process.wait(SECONDS) == 142
    assert not (tmp_path / "ready").exists()
    for chief in ("localhost:2222", "[::1]:2222"):
        cluster["chief"] = [chief]
        assert start("", TF_CONFIG=json.dumps(config), START_DEADLINE="2").wait(SECONDS) == 0
