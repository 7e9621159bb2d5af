"""Restarts in place, and the wait for peers, around commands of a few lines."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.local.replica import SECONDS, Replica, tf_config
from tests.waiting import until

# What every command starts with: a line for each life, and a way to talk to the supervisor.
START = """
import os, pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
restarts = os.environ["RESTARTS"]
with open(here / "lives", "a") as file:
    file.write(f"{restarts} {os.getpid()}\\n")
def say(line):
    os.write(int(os.environ["SUPERVISOR_PIPE"]), (line + "\\n").encode())
"""
Start = Callable[..., subprocess.Popen]


@pytest.fixture
def start(replica: Replica, tmp_path: Path) -> Start:
    def run(program: str, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-S", "-c", START + program, str(tmp_path)]
        return replica.start(*command, **{"MAX_RESTARTS": "5"} | environment)

    return run


def lives(folder: Path) -> list[list[str]]:
    path = folder / "lives"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_what_was_killed_starts_again_and_its_words_are_forgotten(start: Start, tmp_path: Path):
    program = """
pathlib.Path(os.environ["TERMINATION_LOG"]).write_text("I lost a peer")
if restarts == "0":
    os._exit(138)
if restarts == "1":
    os.kill(os.getpid(), 9)
pathlib.Path(os.environ["TERMINATION_LOG"]).write_text("")
"""
    process = start(program)
    assert process.wait(SECONDS) == 0
    assert [life[0] for life in lives(tmp_path)] == ["0", "1", "2"]
    log = process.stdout.read()
    assert "restart 1 of 5: " in log
    assert "restart 2 of 5" in log
    assert (tmp_path / "words").read_text() == ""
    assert (tmp_path / "output/completion.json").exists()


def test_a_crash_loop_ends_with_the_reason(start: Start, tmp_path: Path):
    program = "say(f'steps 4{restarts} 50'); os.abort()"
    process = start(program)
    assert process.wait(SECONDS) == 1
    assert [life[0] for life in lives(tmp_path)] == ["0", "1", "2"]
    words = (tmp_path / "words").read_text()
    assert "SIGABRT, 3 times" in words and "steps 43 to 50" in words


def test_what_left_the_group_of_a_command_does_not_outlive_it(start: Start, tmp_path: Path):
    """It would hold the ports and the GPUs of the next one, and write what that one writes."""
    program = """
import subprocess
left = here / "left"
if restarts == "0":
    inner = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid); input()"
    daemon = subprocess.Popen(
        [sys.executable, "-S", "-c", inner],
        start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    left.write_text(f"{daemon.pid} {int(daemon.stdout.readline())}")
    os.set_inheritable(daemon.stdin.fileno(), True)
    subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True)
    os.kill(os.getpid(), 9)
alive = [pid for pid in left.read_text().split() if pathlib.Path("/proc", pid).exists()]
os._exit(3 if alive else 0)
"""
    assert start(program).wait(SECONDS) == 0
    assert [count for count, _ in lives(tmp_path)] == ["0", "1"]


def test_a_users_own_command_has_one_life(start: Start, tmp_path: Path):
    assert start("os.kill(os.getpid(), 9)", MAX_RESTARTS="").wait(SECONDS) == 137
    assert len(lives(tmp_path)) == 1


def test_a_signal_in_the_pause_ends_it(start: Start, tmp_path: Path):
    process = start("os._exit(138)", MAX_RESTARTS="1000")
    until(lambda: len(lives(tmp_path)) >= 4)  # from here on it pauses for two seconds and more
    process.terminate()
    assert process.wait(SECONDS) == 143


def test_a_trainer_that_waits_for_its_peers_is_killed_at_once(start: Start, tmp_path: Path):
    """There is nothing to save yet, and SIGTERM does not reach TensorFlow in these moments."""
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("waiting")
(here / "ready").touch()
time.sleep(600)
"""
    process = start(program)
    until((tmp_path / "ready").exists)
    process.terminate()
    assert process.wait(SECONDS) == 143


def test_a_signal_that_came_too_early_is_repeated_once_it_is_heard(start: Start, tmp_path: Path):
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(here / "ready").touch()
while not (here / "go").exists():
    time.sleep(0.01)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
say("started")
time.sleep(600)
"""
    process = start(program)
    until((tmp_path / "ready").exists)
    process.terminate()
    time.sleep(0.3)
    (tmp_path / "go").touch()
    assert process.wait(SECONDS) == 143


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nonsense_in_the_pipe_is_not_kept(start: Start, tmp_path: Path):
    program = """
say("steps " + "9" * 5000 + " 1")
mouth = int(os.environ["SUPERVISOR_PIPE"])
os.write(mouth, b"steps 1 2 3 4 \\xff\\n")
for _ in range(1000):
    os.write(mouth, bytes(1 << 16))
os.close(mouth)
(here / "kib").write_text(pathlib.Path(f"/proc/{os.getppid()}/status").read_text())
"""
    assert start(program).wait(SECONDS) == 0
    status = (tmp_path / "kib").read_text().split()
    assert int(status[status.index("VmHWM:") + 1]) < 50_000


def test_the_peers_that_do_not_come_are_named(start: Start, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as here:
        hosts = [f"127.0.0.1:{port}" for port in (here.getsockname()[1], 1, 2, 3)]
        program = "say('waiting'); time.sleep(600)"
        process = start(program, START_DEADLINE="3", TF_CONFIG=tf_config(hosts, 2))
        assert process.wait(SECONDS) == 142
    assert len(lives(tmp_path)) == 1
    words = (tmp_path / "words").read_text()
    refused = (
        "worker 0 (127.0.0.1:1: Connection refused), worker 2 (127.0.0.1:3: Connection refused)"
    )
    assert words.endswith(f"within 3 s: {refused}")


@pytest.mark.slow
def test_a_look_at_peers_that_do_not_answer_holds_up_no_signal(start: Start):
    with socket.create_server(("", 0), backlog=0) as full:
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # and no other gets in
            hosts = [f"127.1.{at}.1:{port}" for at in range(250)]
            config = tf_config(["127.0.0.1:1", *hosts], 0)
            program = "say('waiting'); time.sleep(600)"
            process = start(program, START_DEADLINE="600", TF_CONFIG=config)
            time.sleep(11)  # it begins to look after 10 s, and needs more than 30 for that
            process.terminate()
            assert process.wait(15) == 143


def test_a_name_server_that_does_not_answer_holds_up_nothing(start: Start, tmp_path: Path):
    slow = f"""
import pathlib, socket, time
def ask(*_):
    pathlib.Path({str(tmp_path / "asked")!r}).touch()
    time.sleep(600)
socket.getaddrinfo = ask
"""
    (tmp_path / "sitecustomize.py").write_text(slow)
    config = {"TF_CONFIG": tf_config(["127.0.0.1:1", "127.0.0.1:2"], 1)}
    config["PYTHONPATH"] = str(tmp_path)
    process = start("", START_DEADLINE="1", **config)
    assert process.wait(SECONDS) == 142
    assert "chief (127.0.0.1:1: " in (tmp_path / "words").read_text()
    (tmp_path / "asked").unlink()
    process = start("", START_DEADLINE="600", **config)
    until((tmp_path / "asked").exists)
    process.terminate()
    assert process.wait(SECONDS) == 143
    assert lives(tmp_path) == []
