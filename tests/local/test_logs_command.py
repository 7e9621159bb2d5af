"""`kfp-tfjob logs` on a real store: which lines it shows, and when it stops to follow."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kfp_tfjob.cluster.log_lines import LogLine, stamp_of
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.pipelines import logs as engine
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.storage.failure_record import Failure
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store

BEGAN = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def write(store: Store, run: RunLayout, attempt: int, said: dict[str, list[str]]) -> None:
    """Store lines, a second after one another, of every name in turn."""
    writer = LogWriter(store, run, attempt)
    most = max(len(texts) for texts in said.values())
    for index in range(most):
        for where, texts in said.items():
            if index < len(texts):
                at = stamp_of(BEGAN + 1000 * attempt + index)
                writer.put(LogLine(at, where, texts[index]))
    writer.end()
    writer.close(20)


@pytest.fixture
def run(store: Store, base) -> RunLayout:
    layout = Layout(base).run("r1")
    first = {"chief-0": ["a0", "a1"], "chief-0/uploader": ["u0"], "worker-0": ["w0", "w1"]}
    write(store, layout, 1, first)
    write(store, layout, 2, {"chief-0": ["b0", "\x1b[2Jevil\x07", "b2"], "worker-0": ["v0"]})
    return layout


@pytest.fixture
def logs(run, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "_POLL_SECONDS", 0.1)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, address: str = "") -> Result:
        return CliRunner().invoke(main, ["logs", address or str(run.base), *arguments])

    return call


def shown(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line for line in result.stdout.splitlines() if not line.startswith("---")]


def test_all_lines_of_all_attempts_in_the_order_of_time(logs):
    found = logs()
    assert shown(found) == [
        "[chief-0] a0",
        "[chief-0/uploader] u0",
        "[worker-0] w0",
        "[chief-0] a1",
        "[worker-0] w1",
        "[chief-0] b0",
        "[worker-0] v0",
        r"[chief-0] \x1b[2Jevil\x07",
        "[chief-0] b2",
    ]
    assert found.stderr.splitlines() == ["--- attempt 2"]


def test_the_lines_that_are_wanted(logs):
    for replica in ("worker", "worker-0"):
        found = shown(logs("--replica", replica))
        assert [line.partition("] ")[2] for line in found] == ["w0", "w1", "v0"]
    found = logs("--replica", "wroker-0")
    assert found.exit_code == 2 and "wroker-0" in found.stderr


def test_times_and_json(logs):
    *_, line = shown(logs("--replica", "worker", "--timestamps"))
    assert line == "2026-01-01T00:33:20.000000000Z [worker-0] v0"
    *_, line, _ = shown(logs("--json"))
    assert json.loads(line) == {
        "attempt": 2,
        "time": "2026-01-01T00:33:21.000000000Z",
        "where": "chief-0",
        "text": "\x1b[2Jevil\x07",
    }


def test_a_run_that_does_not_exist_and_one_without_a_log(logs, store, base, tmp_path):
    found = logs(address=str(Layout(base).run("other").base))
    assert found.exit_code == 3 and found.stderr
    store.write(Layout(base).run("new").attempt(1), b"{}")
    found = logs(address=str(Layout(base).run("new").base))
    assert found.exit_code == 3 and "--follow" in found.stderr
    found = logs(address="s3://test/elsewhere/x")
    assert found.exit_code == 2 and found.stderr
    found = logs("--home", str(tmp_path / "home"), address="20260101-000000-abcd")
    assert found.exit_code == 2 and found.stderr


def test_following_ends_with_the_run(logs, store, run, monkeypatch):
    first, echo = threading.Event(), click.echo

    def note(*words: object, **more: object) -> None:
        echo(*words, **more)
        first.set()

    monkeypatch.setattr(click, "echo", note)

    def train() -> None:
        assert first.wait(300)  # until the lines of before are shown
        write(store, run, 3, {"chief-0": ["c0", "c1"]})
        time.sleep(0.5)
        store.write(run.failure("json"), Failure("launch_tfjob", 1, "user_error", "bad").to_bytes())
        end = {"attempt": 3, "job": "j", "namespace": "", "verdict": "user_error", "code": 1}
        end |= {"sentence": "", "remedy": "", "conditions": [], "pods": []}
        store.write(run.attempt(3), b"{}")
        store.write(run.attempt_end(3), json.dumps(end).encode())

    training = threading.Thread(target=train)
    training.start()
    found = logs("--follow")
    training.join()
    assert [line.partition("] ")[2] for line in shown(found)][-3:] == ["b2", "c0", "c1"]


def test_a_pipe_that_is_closed_ends_it(run, store):
    write(store, run, 3, {"chief-0": [f"line {index}" for index in range(6_000)]})
    command = f"{sys.executable} -m kfp_tfjob.pipelines logs {run.base} | head -1"
    ended = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert ended.stdout == "[chief-0] a0\n"
    assert "Traceback" not in ended.stderr
