"""Notifications to a real HTTP server; no webhook changes what a step does."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import DataError, Problem
from kfp_tfjob.components import notify
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.components.notify_end import send_end_notice
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.manifest import Manifest
from kfp_tfjob.storage.secret_keys import WEBHOOK_KEY
from kfp_tfjob.storage.store import Store
from tests.faults import proxy as faults
from tests.faults.proxy import Fault
from tests.http_server import Handler, serving
from tests.local.published import VERDICT

TOKEN = "T0123-secret-of-the-channel"
# Seconds that a webhook keeps callers waiting for, and a time that only such a wait reaches: twelve
# are the limit, and a busy machine takes its own time.
LONG, FAR_TOO_LONG = 600, 60
FAILS = DataError(Problem("no rows", received=0, expected="some", fix="add rows", name="no-rows"))


class Hook(Handler):
    """Takes notifications, and replies as it is told."""

    def do_POST(self) -> None:
        self.server.got.append((self.path, json.loads(self.body() or b"null")))
        self.server.reply(self)

    do_GET = do_POST


def ok(hook: Hook) -> None:
    hook.answer(b"ok")


def redirect(hook: Hook) -> None:
    hook.send_response(307)
    hook.send_header("Location", f"{hook.server.url}/elsewhere")
    hook.send_header("Content-Length", "0")
    hook.end_headers()


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
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with serving(Hook, got=[], reply=ok) as server:
        monkeypatch.setenv(WEBHOOK_KEY, f"{server.url}/services/{TOKEN}")
        yield server


@pytest.fixture
def step(store: Store, base) -> Step:
    return Step("finish", "run-1", Layout(base), store)


def notice() -> notify.Notice:
    return notify.failure("run-1", Failure.of("prepare_data", FAILS))


@pytest.fixture
def run(run_step, monkeypatch):
    """Runs a step; returns its exit code and what it printed."""
    # A busy machine needs more than the seconds that users wait.
    monkeypatch.setattr(notify, "STORE_SECONDS", 60)
    return run_step


@contextmanager
def soon() -> Iterator[None]:
    """Fail when what happens inside waits for a webhook."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < FAR_TOO_LONG


def test_a_step_that_fails_says_so_with_its_remedy(hook, run, step):
    code, text = run(FAILS)
    assert code == 3
    ((path, document),) = hook.got
    assert path.endswith(TOKEN)
    assert document["outcome"] == "failed" and document["verdict"] == "user_error"
    assert document["remedy"] == "add rows" and document["code"] == 3
    assert document["docs"] == "docs/failures.md#no-rows"
    assert document["text"].splitlines()[-1] == f"docs: {document['docs']}"
    assert document["addresses"] == {"run": str(step.run.base)}
    assert "prepare_data (user_error)\nno rows." in document["text"]
    assert TOKEN not in text and "webhook at 127.0.0.1" in text
    run(FAILS)  # a retry of the run
    assert len(hook.got) == 2


def test_a_step_that_works_and_one_of_a_local_run_say_nothing(hook, run, monkeypatch):
    assert run()[0] == 0
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    run(FAILS)
    assert hook.got == []


@pytest.mark.parametrize("answer", [redirect, drip, lie])
def test_a_webhook_that_is_broken_changes_nothing(hook, run, store, step, answer):
    hook.reply = answer
    with soon():
        code, text = run(FAILS)
    assert code == 3
    assert Failure.from_bytes(store.read(step.run.failure("json"))).verdict == "user_error"
    assert TOKEN not in text and "/elsewhere" not in text
    assert [path for path, _ in hook.got] == [f"/services/{TOKEN}"], "no redirect was followed"
    if answer is not lie:
        assert "notified" in text


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


def test_the_end_of_a_run_whose_store_is_away_is_named_in_the_log(
    hook, proxy, step, base, caplog, monkeypatch
):
    monkeypatch.setattr(notify, "STORE_SECONDS", 1.0)
    proxy.faults.append(Fault(faults.slow_down, method=".*", times=float("inf")))
    away = Step("publish", "run-1", Layout(base), Store(proxy.endpoint))
    with soon():
        send_end_notice(away, "m")
    assert hook.got == []
    assert "was not notified: the run's records could not be read" in caplog.text
    monkeypatch.delenv(WEBHOOK_KEY)
    requests = len(proxy.seen)
    send_end_notice(away, "m")
    assert len(proxy.seen) == requests, "without a webhook, nothing is read"


@pytest.fixture
def exit_task(step, monkeypatch):
    """Runs the exit task of a run whose cluster has this left."""

    def run(*failed: FailedTask, terminated: bool = False, **left: Any) -> None:
        found = ClusterReport(failed=list(failed), terminated=terminated, **left)
        monkeypatch.setattr(finish, "end_jobs", lambda run_id: found)
        finish.run_as_exit_task("run-1", str(step.layout.root), "", "", "m")

    return run


def task(name: str, said: str, **more: Any) -> FailedTask:
    return FailedTask(name, False, said, "2026-11-22T14:55:20Z", **more)


@pytest.mark.parametrize(
    ("said", "left", "told"),
    [
        ("OOMKilled", {}, "out_of_memory"),
        ("OOMKilled", {"terminated": True}, None),
        (None, {"trouble": "forbidden"}, "cancelled"),
    ],
)
def test_the_exit_task_tells_only_what_no_step_has_told(hook, exit_task, said, left, told):
    failed = [task("prepare_data", said)] if said else []
    exit_task(*failed, **left)
    assert [document["verdict"] for _, document in hook.got] == [told] * bool(told)
    # A last retry may be killed after a try that recorded its failure and was not told.
    exit_task(*failed, **left)
    assert len(hook.got) == (2 if told == "out_of_memory" else bool(told))


def test_the_exit_task_does_not_repeat_a_step(hook, run, step, exit_task):
    run(FAILS)
    line = Failure.of("prepare_data", FAILS).to_line()
    exit_task(task("prepare_data", "exit code 3", lines=[line]))
    # The step could not reach the store, so only its log has the record.
    step.store.delete(step.run.failure("json"))
    exit_task(task("prepare_data", "exit code 3", lines=[line]))
    assert len(hook.got) == 1


def test_the_exit_task_tells_of_a_champion_whose_step_was_killed(
    hook, step, exit_task, monkeypatch
):
    monkeypatch.setattr(notify, "STORE_SECONDS", 60)
    step.store.write(step.run.verdict, json.dumps(VERDICT | {"model_name": "m"}).encode())
    version = str(step.layout.model("m").version(1))
    record = Champion(1, 1, version, "run-1", "w", "s", "d", {}, str(step.run.verdict))
    step.store.write(step.layout.model("m").champion(1), record.to_bytes())
    exit_task(task("publish", "pod deleted"))
    assert [document["outcome"] for _, document in hook.got] == ["published"]
    assert "docs" not in hook.got[0][1]


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
