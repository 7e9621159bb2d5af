"""No process of a run outlives its command line, however that ended."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kfp_tfjob.pipelines.local import processes, run
from kfp_tfjob.pipelines.local.home import Home
from tests.waiting import until

# Starts a child in a session of its own which ignores SIGTERM, and ends: the child is an orphan.
DEAF = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
)
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
"""

COMMAND_LINE = """
import subprocess, sys, time
watchdog = [sys.executable, "-m", "kfp_tfjob.pipelines.local.processes", sys.argv[1]]
subprocess.Popen(watchdog, stdin=subprocess.PIPE)
print(1, flush=True)
time.sleep(600)
"""


@pytest.fixture
def token() -> Iterator[str]:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    processes.end(name, 0)


def start_orphan(token: str) -> None:
    environment = os.environ | {processes.TOKEN: token}
    started = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE
    )
    assert started.stdout.readline() == b"1\n"  # it ignores SIGTERM from here on
    started.wait()


def test_an_orphan_that_ignores_the_first_signal_is_ended(token: str) -> None:
    start_orphan(token)
    assert len(processes.carriers(token)) == 1
    assert processes.end(token, grace=0.5) == 1
    assert processes.carriers(token) == []


def test_a_run_in_a_copy_of_the_folder_ends_no_process_of_the_original(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    token = run._new_token(home)
    start_orphan(token)
    copy = Home(shutil.copytree(home.folder, tmp_path / "copy"))
    assert run._new_token(copy) != token
    assert len(processes.carriers(token)) == 1
    run._new_token(home)
    assert processes.carriers(token) == []


def test_the_watchdog_acts_when_the_command_line_is_killed(token: str) -> None:
    start_orphan(token)
    command = [sys.executable, "-c", COMMAND_LINE, token]
    command_line = subprocess.Popen(command, stdout=subprocess.PIPE)
    command_line.stdout.readline()
    assert processes.carriers(token)
    command_line.send_signal(signal.SIGKILL)
    command_line.wait()
    until(lambda: not processes.carriers(token))
