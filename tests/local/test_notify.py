"""Notifications to a real HTTP server: once for each try; no webhook changes what a step does."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kfp_tfjob.components import notify
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.cluster import Left
from kfp_tfjob.components.finish.engine import RunReport
from kfp_tfjob.components.launch_tfjob.engine import tell_end
from kfp_tfjob.components.launch_tfjob.launch import Launch
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.record import read_ends
from kfp_tfjob.storage.errors import DataError, Problem
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.options import WEBHOOK_KEY
from kfp_tfjob.storage.store import Store
from tests.faults import proxy as faults
from tests.faults.proxy import Fault
from tests.waiting import until

TOKEN = "T0123-secret-of-the-channel"
# Seconds that a webhook keeps callers waiting for, and a time that only such a wait reaches: five
# are the limit, and a busy machine takes its own time.
LONG, FAR_TOO_LONG = 600, 60
STEP = """
import sys
from kfp_tfjob.components import notify
from kfp_tfjob.components.step import step
notify.STORE_SECONDS = 60  # a busy machine needs more than the second that users wait
with step("prepare_data", "run-1", sys.argv[1]) as context:
    1 / 0
"""
FAILS = DataError(Problem("no rows", received=0, expected="some", fix="add rows"))


class Hook(BaseHTTPRequestHandler):
    """Takes notifications, and answers as it is told."""

    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.server.answer(self)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.answer: Callable[[Hook], None] = ok

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/{TOKEN}"

    def handle_error(self, *_: object) -> None:
        """Say nothing: clients that hang up are part of the tests."""


def ok(hook: Hook) -> None:
    hook.send_response(200)
    hook.send_header("Content-Length", "2")
    hook.end_headers()
    hook.wfile.write(b"ok")


def error(hook: Hook) -> None:
    hook.send_error(500, TOKEN)


def redirect(hook: Hook) -> None:
    hook.send_response(307)
    hook.send_header("Location", f"http://127.0.0.1:{hook.server.server_port}/elsewhere")
    hook.end_headers()


def hang(hook: Hook) -> None:
    time.sleep(LONG)


def drip(hook: Hook) -> None:
    """Send a byte a second, so that no timeout between two bytes ends it."""
    for byte in b"HTTP/1.1 200 OK\r\nX-Header: " + b"x" * LONG:
        hook.wfile.write(bytes([byte]))
        hook.wfile.flush()
        time.sleep(1)


def lie(hook: Hook) -> None:
    """Promise a body without end."""
    hook.send_response(200)
    hook.send_header("Content-Length", str(1 << 40))
    hook.end_headers()
    while True:
        hook.wfile.write(b"x" * 65536)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(WEBHOOK_KEY, server.url)
    monkeypatch.setenv("KFP_POD_UID", "pod-1")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def step(store: Store, base) -> Step:
    return Step("finish", "run-1", Layout(base), store)


NO_ROWS = Problem("no rows", fix="add rows")


def notice() -> notify.Notice:
    return notify.failure("run-1", Failure.of("prepare_data", DataError(NO_ROWS)))


@pytest.fixture
def run(run_step, monkeypatch):
    """Runs a step in a pod; returns its exit code and what it printed."""
    # A busy machine needs more than the second that users wait.
    monkeypatch.setattr(notify, "STORE_SECONDS", 60)

    def run(error: Exception | None = None, pod: str = "pod-1") -> tuple[int, str]:
        monkeypatch.setenv("KFP_POD_UID", pod)
        return run_step(error)

    return run


@contextmanager
def soon() -> Iterator[None]:
    """Fail when what happens inside waits for a webhook."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < FAR_TOO_LONG


def test_a_step_that_fails_says_so_with_its_remedy(hook, run, store, step):
    code, text = run(FAILS)
    assert code == 3
    ((path, document),) = hook.got
    assert path.endswith(TOKEN)
    assert document["outcome"] == "failed" and document["verdict"] == "user_error"
    assert document["remedy"] == "add rows" and document["code"] == 3
    assert document["addresses"] == {"run": str(step.run.base)}
    assert "prepare_data (user_error)\nno rows." in document["text"]
    assert TOKEN not in text and "webhook at 127.0.0.1" in text
    (record,) = store.list(step.run.notices)
    assert record.address.name == "pod-1.json"
    assert TOKEN not in store.read(record.address).decode()
    # The same pod does not say it again; a retry of the run does.
    run(FAILS)
    assert len(hook.got) == 1
    run(FAILS, pod="pod-2")
    assert len(hook.got) == 2


def test_a_step_that_works_and_one_of_a_local_run_say_nothing(hook, run):
    assert run()[0] == 0
    run(FAILS, pod="")
    assert hook.got == []


@pytest.mark.parametrize("answer", [redirect, drip, lie])
def test_a_webhook_that_is_broken_changes_nothing(hook, run, store, step, answer):
    hook.answer = answer
    with soon():
        code, text = run(FAILS)
    assert code == 3
    assert Failure.from_bytes(store.read(step.run.failure("json"))).verdict == "user_error"
    assert TOKEN not in text and "/elsewhere" not in text
    assert [path for path, _ in hook.got] == [f"/services/{TOKEN}"], "no redirect was followed"
    if answer not in (lie,):
        assert "was not notified" in text


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "ftp://x/y"])
def test_a_webhook_that_is_away_changes_nothing(hook, step, monkeypatch, url):
    monkeypatch.setenv(WEBHOOK_KEY, url)
    with soon():
        notify.notify(notice(), step.store, step.run)


def test_a_server_that_accepts_and_is_silent_for_ever(step, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(WEBHOOK_KEY, f"https://127.0.0.1:{silent.getsockname()[1]}/{TOKEN}")
        monkeypatch.setenv("KFP_POD_UID", "pod-1")
        with soon():
            notify.notify(notice(), step.store, step.run)


def test_a_store_that_is_away_does_not_keep_the_notification(hook, proxy, step, base):
    proxy.faults.append(Fault(faults.slow_down, method=".*", times=float("inf")))
    away = Step("finish", "run-1", Layout(base), Store(proxy.endpoint))
    with soon():
        notify.notify(notice(), away.store, away.run)
    assert len(hook.got) == 1
    notify.notify(notice(), None, None)
    assert len(hook.got) == 2


def test_the_launcher_of_a_run_that_was_ended_says_so(hook, step, spec_of, monkeypatch):
    monkeypatch.setattr(notify, "STORE_SECONDS", 60)
    launch = Launch(step, spec_of(), backend=None)
    step.store.write(step.run.attempt(1), b"{}")
    tell_end(launch, "a person terminated it")
    tell_end(launch, "")
    end = read_ends(step.store, step.run)[1]
    assert (end.attempt, end.verdict) == (1, "cancelled") and end.job
    ((_, document),) = hook.got
    assert document["outcome"] == "cancelled" and document["step"] == "finish"
    assert "a person terminated it" in document["message"] and document["remedy"]
    assert document["model_name"]


@pytest.fixture
def spec_of():
    from kfp_tfjob.jobs.spec import JobSpec
    from tests.unit.launch_parameters import DEFAULTS

    return lambda: JobSpec.parse(**DEFAULTS)


def test_the_exit_task_tells_only_what_no_step_has_told(hook, step, monkeypatch):
    failure = Failure("prepare_data", 137, "out_of_memory", "prepare_data ran out of memory.")
    report = RunReport("", failure)
    monkeypatch.setenv("KFP_POD_UID", "exit-1")
    finish.tell(step, "m", report, Left(pods=["pod-1", "exit-1"]))
    ((_, document),) = hook.got
    assert document["verdict"] == "out_of_memory" and document["model_name"] == "m"
    # A step of this try was first: its pod is there.
    monkeypatch.setenv("KFP_POD_UID", "pod-2")
    notify.notify(notice(), step.store, step.run)
    assert len(hook.got) == 2
    monkeypatch.setenv("KFP_POD_UID", "exit-2")
    finish.tell(step, "m", report, Left(pods=["pod-2", "exit-2"]))
    # The pods cannot be listed, but the notification is the same.
    finish.tell(step, "m", RunReport("", Failure(*_fields(notice()))), Left())
    assert len(hook.got) == 2


def _fields(found: notify.Notice) -> tuple[Any, ...]:
    return found.step, found.code, found.verdict, found.message


def test_a_step_that_is_killed_while_it_notifies_is_not_told_twice(hook, base, step, store):
    hook.answer = hang
    process = subprocess.Popen([sys.executable, "-c", STEP, str(base)], stdout=subprocess.DEVNULL)
    until(lambda: hook.got)
    process.send_signal(signal.SIGKILL)
    process.wait()
    failure = Failure.from_bytes(store.read(step.run.failure("json")))
    finish.tell(step, "m", RunReport("", failure), Left(pods=["pod-1"]))
    assert len(hook.got) == 1


def test_the_gpu_hours_of_all_attempts_are_told(hook, step, store):
    """Those of the attempt whose output is complete are used, whatever its record says."""
    end = {"job": "j", "namespace": "", "code": 0, "sentence": "", "remedy": "", "pods": []}
    for attempt, verdict in enumerate(("preempted_or_lost", "orphaned"), start=1):
        held = {"attempt": attempt, "verdict": verdict, "conditions": []}
        held["gpu_seconds"] = {"pending": 1800.0, "running": 3600.0 * attempt}
        store.write(step.run.attempt(attempt), b"{}")
        store.write(step.run.attempt_end(attempt), json.dumps(end | held).encode())
    store.write(step.run.manifest, Manifest("output", (), "run-1", 2).to_bytes())
    notify.notify(notice(), step.store, step.run)
    ((_, document),) = hook.got
    assert document["gpu_hours"] == {"used": 2.0, "pending": 1.0, "lost": 1.0}
