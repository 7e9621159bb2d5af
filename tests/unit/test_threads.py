"""A thread whose code fails reports it and goes on, or ends in a state that others see."""

import ast
import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from kfp_tfjob.cluster import job_watch, log_writer
from kfp_tfjob.cluster.follower import Follower
from kfp_tfjob.cluster.local.container import LocalContainer
from kfp_tfjob.cluster.local.pod import LocalPod
from kfp_tfjob.cluster.log_lines import LogLine
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.cluster.pod_logs import PodLogs
from kfp_tfjob.cluster.run_watch import WorkflowWatcher
from kfp_tfjob.pipelines.local.output import PlainSteps, Relay
from kfp_tfjob.serving.batcher import Batcher
from kfp_tfjob.serving.request_columns import Rows
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.supervisor import stop
from kfp_tfjob.uploader import watch as sidecar
from tests.conftest import PACKAGES
from tests.unit.cluster_objects import pod
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BUGS = (ValueError, TypeError, KeyError, AttributeError, MemoryError)
CHIEF = pod("chief-0")
CHIEF["metadata"]["uid"] = "u"


def failing(kind: type[Exception], times: int, then: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that fails so many times, and then does its work."""
    left = [times]

    def call(*given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise kind("planted")
        return then(*given, **named)

    return call


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    """Returns the records that have a traceback."""
    caplog.set_level(logging.INFO)
    return lambda: [it for it in caplog.records if it.exc_info and "planted" in str(it.exc_info[1])]


@pytest.mark.parametrize("kind", BUGS)
def test_the_writer_of_logs_goes_on(kind: type[Exception], monkeypatch, logged) -> None:
    stored: list[bytes] = []
    store: Any = Mock(write=lambda address, data, content: stored.append(data))
    store.with_patience.return_value = store
    monkeypatch.setattr(log_writer, "STORE_SECONDS", 0.05)
    compress = failing(kind, 3, log_writer.gzip.compress)
    monkeypatch.setattr(log_writer, "gzip", SimpleNamespace(compress=compress))
    writer = LogWriter(store, Layout.parse("s3://bucket").run("r"), 1)
    writer.put(LogLine("2026-01-01T00:00:00Z", "chief-0", "a line"))
    until(lambda: stored)
    writer.end()
    writer.close(60)
    assert len(logged()) == 1  # once, with its traceback


def test_the_writer_of_logs_names_the_bug_at_its_end(monkeypatch, caplog) -> None:
    store: Any = Mock()
    store.with_patience.return_value = store
    monkeypatch.setattr(
        log_writer, "gzip", SimpleNamespace(compress=failing(KeyError, 1 << 30, bytes))
    )
    writer = LogWriter(store, Layout.parse("s3://bucket").run("r"), 1)
    writer.put(LogLine("2026-01-01T00:00:00Z", "chief-0", "a line"))
    writer.end()
    writer.close(1)
    assert "planted" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("kind", BUGS)
def test_a_watch_goes_on(kind: type[Exception], logged) -> None:
    events = [{"type": "ADDED", "object": CHIEF}]
    taken: list[object] = []
    broken: list[str] = []
    closed = threading.Event()
    api: Any = SimpleNamespace(watch=lambda path, query: iter(events))

    def take(event: str, item: object) -> None:
        taken.append(item)
        closed.set()

    job_watch.watch(api, "pods", {}, failing(kind, 1, take), closed, broken.append)
    assert (taken, broken) == ([CHIEF], [kind.__name__]) and len(logged()) == 1


def test_a_log_whose_reader_fails_does_not_seem_silent(logged) -> None:
    started = threading.Event()

    def pods() -> list[Any]:
        if started.is_set() and threading.current_thread() is not threading.main_thread():
            raise KeyError("planted")
        started.set()
        return [CHIEF]

    api: Any = SimpleNamespace(
        kind=Mock(container="tensorflow", log_name=lambda replica, container: replica),
        core=lambda *_: "/pods",
        lines=lambda *_: iter([b"2026-01-01T10:00:00.5Z a step"]),
    )
    logs = PodLogs(api, pods, started.is_set)
    list(logs)
    assert logs.silence("chief-0") is None and len(logged()) == 1


def test_a_line_that_cannot_be_shown_is_dropped(monkeypatch, logged) -> None:
    """Otherwise the streams would block, and a healthy job would count as stalled."""
    lines = [LogLine("2026-01-01T00:00:00Z", "chief-0", text) for text in ("a", "b", "c")]
    keep: Any = Mock()
    follower = Follower(Mock(logs=lambda name: iter(lines)), "j", keep)
    monkeypatch.setattr("builtins.print", failing(BrokenPipeError, 2, lambda *_, **__: None))
    follower.start()
    follower.finish(60)
    assert follower.last_lines("chief-0", 9) == ["a", "b", "c"]
    assert keep.end.called and len(logged()) == 1


def test_a_run_that_cannot_be_stopped_is_not_waited_for(logged) -> None:
    taken = threading.Event()
    api: Any = Mock()
    watcher = WorkflowWatcher(api, "r", {"name": "w", "uid": "u"}, dict, 1, lambda why: taken.set())
    watcher._stopping = Mock(stop=failing(KeyError, 1, dict), keep_warm=failing(TypeError, 1, dict))
    watcher._why = "a user terminated it"
    watcher._worker.start()
    watcher._events.put("changed")
    until(watcher._stopped.is_set)
    assert taken.wait(60) and watcher._worker.is_alive()
    watcher.__exit__()
    assert len(logged()) == 2


def test_the_annotations_are_read_again_after_a_bug(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "stop-within").write_text("60s")
    said: list[str] = []
    monkeypatch.setattr(stop, "log", said.append)
    monkeypatch.setattr(stop, "_LOOK_SECONDS", 0.01)
    seconds = failing(KeyError, 3, stop.StopWithin.seconds)
    monkeypatch.setattr(stop.StopWithin, "seconds", lambda self: seconds(self))
    found = stop.Stop()
    found.follow(tmp_path, 600)
    until(lambda: bool(found))
    found.by_force = True  # ends the thread
    assert sum("planted" in it for it in said) == 1


def test_a_container_always_ends(tmp_path: Path, monkeypatch, logged) -> None:
    command = [sys.executable, "-c", "print('x\\n' * 100_000)"]

    def refuse(line: str) -> None:
        raise BrokenPipeError("planted")

    made = LocalContainer("c", command, {}, tmp_path, False, refuse, threading.Event().set)
    assert made.ended.wait(60) and made.exit_code == 0 and logged()
    monkeypatch.setattr(LocalContainer, "_run_once", failing(KeyError, 1, lambda self: None))
    made = LocalContainer("c", command, {}, tmp_path, False, refuse, threading.Event().set)
    assert made.ended.wait(60) and made.exit_code == 128


def test_a_pod_always_ends(tmp_path: Path, monkeypatch, logged) -> None:
    spec = {"terminationGracePeriodSeconds": 1, "containers": []}
    template = {"metadata": {"labels": {}, "annotations": {}}, "spec": spec}
    folders = (tmp_path / name for name in ("claims", "secrets", "pod"))
    made = LocalPod("p", {}, template, *folders, {}, lambda *_: None, threading.Event().set)
    monkeypatch.setattr(made, "_make_volumes", failing(KeyError, 1, dict))
    made.start()
    made.join()
    assert made.phase == "Failed" and made.reason and len(logged()) == 1


def test_a_pipeline_is_read_to_its_end_though_nobody_sees_its_lines(tmp_path: Path) -> None:
    code = """print("Executing task 'prepare-data'"); print("    a line\\n" * 50_000)"""
    printing = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    relay = Relay(
        printing, tmp_path / "pipeline.log", PlainSteps(failing(BrokenPipeError, 9, print))
    )
    relay.start()
    assert printing.wait(60) == 0
    relay.join()
    assert (tmp_path / "pipeline.log").read_text().count("a line") == 50_000


def test_a_sidecar_without_time_exits_whatever_happens(monkeypatch, logged) -> None:
    codes: list[int] = []
    monkeypatch.setattr(sidecar.os, "_exit", codes.append)
    monkeypatch.setattr(sidecar, "scan", failing(KeyError, 1, dict))
    own = Mock(returned=False, _complete_at_end=False, _grace=Mock(over=lambda _: True))
    sidecar._Sidecar._exit_when_overdue(own)
    assert codes == [145] and len(logged()) == 1


def test_a_request_gets_an_answer_though_its_rows_cannot_be_joined() -> None:
    broken: Any = Rows(1, Mock(__iter__=failing(KeyError, 1, dict)))

    async def ask() -> None:
        with ThreadPoolExecutor(1) as pool:
            batcher = Batcher(lambda loaded, rows: np.zeros(1), pool, 0.01, 1)
            await asyncio.wait_for(batcher.predict(Mock(), broken), 60)

    with pytest.raises(Exception) as caught:
        asyncio.run(ask())
    assert not isinstance(caught.value, TimeoutError)


# What happens if a thread's function fails, by file and function.
THREADS = {
    ("components/launch_tfjob/engine.py", "record_cancelled"): "not recorded, as if too late",
    ("components/prepare_data/executors/processes.py", "_end_with_parent"): "it only waits",
    ("components/webhook.py", "run"): "logged; the notification is not complete",
    ("kfp_tfjob/cluster/follower.py", "self._read"): "logged; lines are dropped",
    ("kfp_tfjob/cluster/job_watch.py", "watch"): "logged, and begun again",
    ("kfp_tfjob/cluster/local/container.py", "self._read"): "logged; lines are dropped",
    ("kfp_tfjob/cluster/local/container.py", "self._run"): "logged; the container has ended",
    ("kfp_tfjob/cluster/local/pod.py", "self._run"): "logged; the pod has failed",
    ("kfp_tfjob/cluster/log_writer.py", "self._send"): "logged, and tried again",
    ("kfp_tfjob/cluster/pod_logs.py", "self._read"): "logged; the replica counts as not heard",
    ("kfp_tfjob/cluster/run_watch.py", "call"): "logged; on_exit counts as done",
    ("kfp_tfjob/cluster/run_watch.py", "self._follow"): "as watch",
    ("kfp_tfjob/cluster/run_watch.py", "self._work"): "each of its parts logs, and it goes on",
    ("kfp_tfjob/serving/follower.py", "self._loop"): "poll logs, and it goes on",
    ("kfp_tfjob/serving/sampler.py", "self._loop"): "flush logs, and it goes on",
    ("kfp_tfjob/supervisor/stop.py", "self._follow"): "logged, and begun again",
    ("kfp_tfjob/supervisor/supervise.py", "log_absent_peers"): "it only logs who is absent",
    ("trainer/checkpoint_writer.py", "self._write"): "the training gets the error",
    ("uploader/watch.py", "self._exit_when_overdue"): "logged; the sidecar exits",
}


def test_every_thread_has_an_answer() -> None:
    found = set()
    for package in PACKAGES:
        for path in sorted((ROOT / "kfp_tfjob" / package).resolve().rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "threading.Thread":
                    continue
                (target,) = (it.value for it in node.keywords if it.arg == "target")
                found.add((str(path.relative_to(ROOT)), ast.unparse(target)))
    assert found == THREADS.keys()
