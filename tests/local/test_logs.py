"""Logs in a real store: each line once, whatever was killed; and what `kfp-tfjob logs` shows."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kfp_tfjob.cluster import log_writer
from kfp_tfjob.cluster.log_lines import LogLine, stamp_of
from kfp_tfjob.cluster.log_reader import LogReader
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines import logs as engine
from kfp_tfjob.pipelines.cli import main
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store
from tests.faults import proxy as faults
from tests.faults.proxy import Fault, FaultProxy

ROOT = Path(__file__).parents[2]
BEGAN = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def lines(number: int, replicas: int = 1, text: str = "step {} loss 0.25") -> list[LogLine]:
    """Return lines of several replicas and containers; some have equal times."""
    return [
        LogLine(
            stamp_of(BEGAN + index // 3 * 0.002),
            f"worker-{index % replicas}" + ("/uploader" if index % 7 == 0 else ""),
            text.format(index),
        )
        for index in range(number)
    ]


@pytest.fixture
def run(base) -> RunLayout:
    return Layout(base).run("r")


def stored(store: Store, run: RunLayout) -> list[str]:
    """Return the lines of every replica, one replica after the other."""
    return expected(LogReader(store, run, 1).new_lines())


def expected(given: Iterable[LogLine]) -> list[str]:
    return sorted(f"{line.where} {line.text}" for line in given)


def missing(note: str) -> int:
    """Return the number of lines in a note."""
    return int(note.removeprefix("(").split()[0].replace(",", ""))


def write(store: Store, run: RunLayout, given: Iterable[LogLine], attempt: int = 1) -> None:
    writer = LogWriter(store, run, attempt)
    put(writer, given)
    writer.end()
    writer.close(600)


def put(writer: LogWriter, given: Iterable[LogLine]) -> None:
    for line in given:
        writer.put(line)


def test_lines_of_several_replicas_come_back_in_the_order_of_their_times(store, run):
    given = lines(5000, replicas=3)
    write(store, run, given)
    reader = LogReader(store, run, 1)
    found = list(reader.new_lines())
    assert [line.stamp for line in found] == [line.stamp for line in given]
    assert stored(store, run) == expected(given)
    assert list(reader.new_lines()) == []
    assert store.numbers(run.replica_logs) == [1]


def test_messages_of_the_kubelet_are_not_stored(store, run):
    write(store, run, [LogLine("", "chief-0", "failed to open log"), *lines(1)])
    assert stored(store, run) == expected(lines(1))


def test_a_new_pod_of_a_replica_is_read_from_its_start(store, run):
    """Its node may have a clock that is behind."""
    given = lines(100)
    later = [line._replace(text=f"again {line.text}") for line in given]
    write(store, run, given)
    write(store, run, [*given, *later])
    write(store, run, later)
    assert stored(store, run) == expected([*given, *later])


def test_launchers_that_write_at_the_same_time_store_every_line_once(store, run, monkeypatch):
    """An old launcher is not always gone when the next one begins."""
    monkeypatch.setattr(log_writer, "STORE_SECONDS", 0.05)
    given = lines(4000)

    def launcher(seed: int) -> None:
        writer, pace = LogWriter(store, run, 1), random.Random(seed)
        for line in given:
            writer.put(line)
            if pace.random() < 0.02:
                time.sleep(pace.random() * 0.05)
        writer.end()
        writer.close(600)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(launcher, range(3)))
    assert stored(store, run) == expected(given)


def test_a_store_that_is_away_delays_nothing_and_loses_nothing(proxy: FaultProxy, run, store):
    away = Fault(faults.slow_down, method=".*", times=float("inf"))
    proxy.faults.append(away)
    writer = LogWriter(Store(proxy.endpoint), run, 1)
    given = lines(5000, replicas=4)
    put(writer, given)
    assert writer.flush(0.1) is False
    away.times = 0  # it comes back only when everything was put
    writer.end()
    writer.close(600)
    assert stored(store, run) == expected(given)


def test_a_store_that_never_answers_ends_the_writer_within_its_bound(proxy, run, caplog):
    proxy.faults.append(Fault(faults.slow_down, method=".*", times=float("inf")))
    writer = LogWriter(Store(proxy.endpoint), run, 1)
    put(writer, lines(100))
    writer.end()
    began = time.monotonic()
    writer.close(1)
    assert time.monotonic() - began < 30
    assert "100 lines" in caplog.text


def noise(number: int, replicas: int = 1) -> list[LogLine]:
    """Return lines of 4 kB that gzip halves."""
    source = random.Random(1)
    return [
        LogLine(stamp_of(BEGAN + i), f"worker-{i % replicas}", source.randbytes(2000).hex())
        for i in range(number)
    ]


@pytest.mark.parametrize(("limit", "replicas"), [("LIMIT", 1), ("MEMORY", 4)])
def test_of_a_long_log_the_end_is_kept(store, run, monkeypatch, limit, replicas):
    monkeypatch.setattr(log_writer, limit, 3 << 20)
    given = noise(4000, replicas)
    write(store, run, given)
    sizes = [file.size for file in store.list(run.attempt_logs(1))]
    assert len(sizes) == replicas
    assert (1 << 20) < sum(sizes) < (3 << 20) + 300_000
    found = list(LogReader(store, run, 1).new_lines())
    notes = [line.text for line in found if not line.stamp]
    kept = [line for line in found if line.stamp]
    assert sum(map(missing, notes)) == len(given) - len(kept) > 0
    for replica in {line.where for line in given}:
        mine = [line.text for line in given if line.where == replica]
        theirs = [line.text for line in kept if line.where == replica]
        assert theirs == mine[-len(theirs) :]


def test_any_text_comes_back(store, run):
    texts = ["", " ", "\x0b", "\u2028", "a\rb", "[x] y", "# 3 lines", "\x00", "\ud800", "\x85"]
    given = [LogLine(stamp_of(BEGAN + i), "chief-0", text) for i, text in enumerate(texts)]
    write(store, run, given)
    found = [line.text for line in LogReader(store, run, 1).new_lines()]
    assert found == [*texts[:8], "?", texts[9]]


def test_following_reads_what_is_new(store, run):
    given = lines(3000, replicas=2)
    writer, reader = LogWriter(store, run, 1), LogReader(store, run, 1)
    found: list[str] = []
    for begin in range(0, len(given), 1000):
        put(writer, given[begin : begin + 1000])
        assert writer.flush(60)
        new = [f"{line.where} {line.text}" for line in reader.new_lines()]
        assert len(new) == 1000
        found += new
    writer.end()
    writer.close(60)
    assert sorted(found) == expected(given)


LAUNCHER = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from kfp_tfjob.cluster import log_writer
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local.test_logs import BEGAN, lines

log_writer.STORE_SECONDS = 0.05
print("ready", flush=True)
writer = log_writer.LogWriter(Store(), Layout.parse(sys.argv[1]).run("r"), 1)
began = float(sys.argv[2])
for index, line in enumerate(lines(3000, replicas=2)):
    while time.time() < began + index * 0.002:
        time.sleep(0.002)
    writer.put(line)
writer.end()
writer.close(600)
"""


def test_whenever_the_launcher_is_killed_every_line_is_stored_once(store, run, base):
    """The lines come by the clock; every launcher reads all that there are, and then new ones."""
    chance, kills, began = random.Random(4), 0, time.time()
    command = [sys.executable, "-c", LAUNCHER, str(base), str(began)]
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        try:
            process.wait(0.1 + chance.random() + kills**2 / 20)  # a busy machine gets there too
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            assert kills < 60, "no launcher ever ends"
    given = lines(3000, replicas=2)
    assert stored(store, run) == expected(given)
    assert kills >= 2  # a slow machine starts fewer in these 6 s


def said(attempt: int, **texts: str) -> list[LogLine]:
    """Return the words of each replica, one a second."""
    return [
        LogLine(stamp_of(BEGAN + 1000 * attempt + at), name.replace("_", "-"), text)
        for name, words in texts.items()
        for at, text in enumerate(words.split())
    ]


@pytest.fixture
def logs(store, run, monkeypatch, tmp_path):
    """The command, for a run of two attempts."""
    uploader = LogLine(stamp_of(BEGAN + 1000), "chief-0/uploader", "u0")
    write(store, run, [*said(1, chief_0="a0 a1", worker_0="w0 w1"), uploader])
    write(store, run, said(2, chief_0="b0 \x1b[2Jevil\x07 b2", worker_0="v0"), attempt=2)
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
        write(store, run, said(3, chief_0="c0 c1"), attempt=3)
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
    write(store, run, lines(6_000))
    command = f"{sys.executable} -m kfp_tfjob.pipelines logs {run.base} | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert ended.stdout == "[worker-0/uploader] step 0 loss 0.25\n"
    assert "Traceback" not in ended.stderr
