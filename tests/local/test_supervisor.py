"""The supervisor around real commands: exit codes, signals, the record, the barrier, its orders."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from kfp_tfjob.supervisor.output_files import files, inventory
from tests.local.replica import SECONDS, Replica, tf_config
from tests.waiting import until


@pytest.mark.parametrize(
    ("program", "environment", "end"),
    [
        (
            "import os; os.write(int(os.environ['SUPERVISOR_PIPE']), b'steps 40 41\\n'); exit(3)",
            {},
            {"code": 3, "signal": 0, "step": 40, "reason": "data is missing or corrupt"},
        ),
        (
            "import os, time; os.kill(os.getppid(), 15); time.sleep(600)",
            {},
            {"code": 143, "signal": 15, "step": 0, "reason": "stopped by a signal"},
        ),
        ("", {"ATTEMPT": "one"}, None),
        ("exit(3)", {"FLUSH_BARRIER": ""}, None),  # without a sidecar nothing would store it
    ],
)
def test_the_chief_records_its_end_for_the_sidecar(
    replica: Replica, program: str, environment: dict[str, str], end: dict | None
):
    values = {"FLUSH_BARRIER": "1"} | environment
    code, _ = replica.run(sys.executable, "-c", program, **values)
    path = replica.output / ".uploader/end.json"
    if end is None:
        assert not path.exists()
        return
    found = json.loads(path.read_text())
    assert found.pop("seconds") >= 0 and datetime.fromisoformat(found.pop("time"))
    assert found == {"run_id": "run", "attempt": 2} | end
    assert code == end["code"]


def test_sets_of_strings_have_one_order_in_every_replica(replica: Replica) -> None:
    assert replica.run("sh", "-c", "echo seed=$PYTHONHASHSEED; exit 3")[1].count("seed=0\n") == 1
    own = replica.run("sh", "-c", "echo seed=$PYTHONHASHSEED; exit 3", PYTHONHASHSEED="7")
    assert "seed=7\n" in own[1]


def test_a_program_that_hangs_before_its_first_line_counts_as_silent(replica: Replica) -> None:
    process = replica.start("sleep", "600")
    assert process.stdout and process.stdout.readline().endswith(" starting sleep\n")


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _cluster(kind: str, index: int, chiefs: int = 1, workers: int = 1, name: str = "chief") -> str:
    hosts = {name: ["c:1"] * chiefs, "worker": [f"w{at}:1" for at in range(workers)]}
    return json.dumps({"cluster": hosts, "task": {"type": kind, "index": index}})


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("raise SystemExit(3)", 3, "data is missing or corrupt"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("import signal; signal.raise_signal(signal.SIGALRM)", 142, "did not appear"),
    ],
)
def test_the_exit_code_of_the_command_is_passed_on(
    replica: Replica, program: str, code: int, words: str
) -> None:
    assert replica.run(sys.executable, "-c", program)[0] == code
    assert words in replica.words.read_text()
    assert not replica.completion.exists()


def test_the_last_words_of_the_command_are_kept(replica: Replica) -> None:
    program = "import os; open(os.environ['TERMINATION_LOG'], 'w').write('mine'); os._exit(1)"
    assert replica.run(sys.executable, "-c", program)[0] == 1
    assert replica.words.read_text() == "mine"


def test_a_command_that_is_not_there_is_wrong_configuration(replica: Replica) -> None:
    code, output = replica.run("no-such-program")
    assert code == 2
    assert "no-such-program" in output


def test_an_output_that_cannot_be_written_is_told(replica: Replica, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert replica.run("true", OUTPUT_DIR=str(tmp_path / "file" / "output"))[0] == 2
    assert "file/output" in replica.words.read_text()


@pytest.mark.parametrize(
    ("config", "writes"),
    [
        (_cluster("chief", 0), True),
        (_cluster("worker", 0), False),
        (_cluster("worker", 0, chiefs=0, workers=2).replace('"chief": [], ', ""), True),
        (_cluster("worker", 1, chiefs=0, workers=2).replace('"chief": [], ', ""), False),
    ],
)
def test_only_the_chief_leaves_the_record(replica: Replica, config: str, writes: bool) -> None:
    assert replica.run("true", TF_CONFIG=config, EXPECTED_REPLICAS="2")[0] == 0
    assert replica.completion.exists() == writes
    assert replica.words.read_text() == ""
    if writes:
        record = json.loads(replica.completion.read_text())
        assert (record["run_id"], record["attempt"]) == ("run", 2)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("", "3 replicas"),
        (_cluster("chief", 0), "1 chief and 1 workers"),
        (_cluster("master", 0, workers=2, name="master"), "type Master"),
        ("{", "TF_CONFIG"),
        ('{"cluster": {"worker": 3}, "task": {}}', "TF_CONFIG"),
        (_cluster("worker", 2, workers=2), "worker 2"),
        (_cluster("chief", 0, workers=2).replace("w1", "w0"), "w0:1"),
        (_cluster("chief", 0, workers=2).replace("w1:1", "w1"), "w1 "),
    ],
)
def test_another_cluster_than_promised_is_refused(
    replica: Replica, config: str, words: str
) -> None:
    assert replica.run("true", TF_CONFIG=config, EXPECTED_REPLICAS="3")[0] == 2
    assert words in replica.words.read_text()
    assert not replica.completion.exists()


def test_a_program_of_workers_gets_no_chief_although_the_operator_names_one(
    replica: Replica,
) -> None:
    """The operator's TF_CONFIG won. The chief still writes, and the barrier counts it."""
    program = "import json, os, sys; print(sys.argv[1], json.loads(os.environ['TF_CONFIG']))"
    operators = {"TF_CONFIG": _cluster("chief", 0), "EXPECTED_REPLICAS": "2"}
    command = (sys.executable, "-c", program, "rank=$(RANK)")
    code, output = replica.run(*command, **operators, CHIEF_IN_TF_CONFIG="0")
    seen = {"cluster": {"worker": ["c:1", "w0:1"]}, "task": {"type": "worker", "index": 0}}
    assert code == 0
    assert f"rank=0 {seen | {'environment': 'cloud'}}" in output
    assert replica.completion.exists()
    assert "'chief'" in replica.run(*command, **operators)[1]


def test_an_evaluator_need_not_be_in_the_cluster(replica: Replica) -> None:
    config = _cluster("evaluator", 0, workers=2)
    assert replica.run("true", TF_CONFIG=config, EXPECTED_REPLICAS="3")[0] == 0


@pytest.mark.parametrize("name", ["START_DEADLINE", "ATTEMPT"])
def test_what_is_no_number_is_refused_before_the_command_runs(
    replica: Replica, tmp_path: Path, name: str
) -> None:
    code, _ = replica.run("touch", str(tmp_path / "ran"), **{name: "soon"})
    assert code == 2
    assert f"{name} " in replica.words.read_text() and "'soon'" in replica.words.read_text()
    assert not (tmp_path / "ran").exists()


def _start_one_that_stops(replica: Replica, tmp_path: Path, code: int) -> subprocess.Popen[str]:
    """Return a supervisor whose command ends with a code when it is told to stop."""
    program = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(600)\n"
    )
    process = replica.start(sys.executable, "-c", program, FLUSH_BARRIER="1")
    until((tmp_path / "ready").exists)
    return process


def test_a_log_that_nobody_reads_any_more_ends_nothing(replica: Replica, tmp_path: Path) -> None:
    process = _start_one_that_stops(replica, tmp_path, 143)
    process.stdout.close()
    process.terminate()
    assert process.wait(SECONDS) == 143
    assert replica.words.read_text()
    assert not (replica.output / ".uploader/flush-request.json").exists()


def test_a_command_that_ends_with_0_because_it_was_told_to_is_not_done(
    replica: Replica, tmp_path: Path
) -> None:
    process = _start_one_that_stops(replica, tmp_path, 0)
    process.terminate()
    assert process.wait(SECONDS) == 143
    assert not replica.completion.exists()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(replica: Replica, tmp_path: Path, end: signal.Signals) -> None:
    """The command and, unless the supervisor is killed itself, what the command started."""
    program = (
        "import os, pathlib, subprocess, time\n"
        "inner = subprocess.Popen(['sleep', '600'])\n"
        f"path = pathlib.Path({str(tmp_path / 'pids')!r})\n"
        "path.with_suffix('.part').write_text(f'{os.getpid()} {inner.pid}')\n"
        "path.with_suffix('.part').rename(path)\n"
        "time.sleep(600)\n"
    )
    process = replica.start(sys.executable, "-c", program)
    until((tmp_path / "pids").exists)
    command, inner = map(int, (tmp_path / "pids").read_text().split())
    process.send_signal(end)
    process.wait(SECONDS)
    try:
        until(lambda: not _alive(command))
        if end is signal.SIGTERM:
            until(lambda: not _alive(inner))
    finally:
        if _alive(inner):
            os.kill(inner, signal.SIGKILL)


# A trainer that logs while it saves, and needs a moment for it.
SAVES_LATE = """
import pathlib, signal, sys, time
def save(*_):
    print("saving", flush=True)
    time.sleep(1)
    print("saved", flush=True)
    pathlib.Path("saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(600)
"""
# One that needs its worker processes to end its current step.
SAVES_WITH_WORKERS = """
import multiprocessing, pathlib, signal, sys, time
def save(*_):
    global is_stopping
    is_stopping = True
is_stopping = False
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, save)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        while not is_stopping:
            pool.map(time.sleep, [0.2] * 4)
            pathlib.Path("ready").touch()
    pathlib.Path("saved").touch()
    sys.exit(143)
"""
CALLS = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@pytest.mark.parametrize("program", [SAVES_LATE, SAVES_WITH_WORKERS])
@pytest.mark.parametrize(
    "command",
    [
        ["PYTHON", "train.py"],
        ["sh", "-c", "PYTHON train.py; echo $?"],
        ["bash", "-c", "(PYTHON train.py; echo $?) 2>&1 | tee log.txt"],
        ["PYTHON", "-c", CALLS, "train.py"],
        ["./run.sh"],
    ],
)
def test_a_program_saves_however_it_was_started(
    replica: Replica,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    program: str,
) -> None:
    """A shell ends at the signal, and a program's own workers must not."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(program)
    Path("run.sh").write_text(f"#!/bin/sh\n{sys.executable} train.py\necho $?\n")
    Path("run.sh").chmod(0o755)
    process = replica.start(*(word.replace("PYTHON", sys.executable) for word in command))
    until(Path("ready").exists)
    process.terminate()
    assert process.wait(SECONDS) == 143
    assert Path("saved").exists()


def test_the_barrier_waits_for_the_answer_to_its_own_request(replica: Replica) -> None:
    replica.output.mkdir()
    (replica.output / "model.keras").write_bytes(b"12345")
    process = replica.start("true", FLUSH_BARRIER="1", STORE_DEADLINE="60")
    request = replica.request()
    assert (request["attempt"], request["files"]) == (2, 2)  # the model and the record
    assert inventory(replica.output) == (2, request["inventory"])
    replica.reply(id="of an earlier attempt", state="stored", stored=2, missing=[])
    replica.reply(id=request["id"], state="storing", stored=1, missing=["model.keras"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    replica.reply(id=request["id"], state="stored", stored=2, missing=[], message="")
    assert process.wait(SECONDS) == 0


def test_what_is_missing_at_the_deadline_is_named_whatever_its_encoding(replica: Replica) -> None:
    process = replica.start("true", FLUSH_BARRIER="1", STORE_DEADLINE="5", PYTHONIOENCODING="ascii")
    reply = {"id": replica.request()["id"], "state": "storing", "stored": 0}
    replica.reply(**reply, missing=["completion.json", "a file \udcff"], message="503 é")
    assert process.wait(SECONDS) == 145
    words = replica.words.read_text()
    assert "0 of 1" in words and "503 é" in words
    assert "completion.json" in words and "a file \\udcff" in words


def test_output_that_can_never_be_stored_is_not_waited_for(replica: Replica) -> None:
    process = replica.start("true", FLUSH_BARRIER="1", STORE_DEADLINE=str(SECONDS))
    request = replica.request()
    why = "a file name is not UTF-8"
    replica.reply(id=request["id"], state="impossible", stored=1, missing=["x"], message=why)
    assert process.wait(SECONDS) == 2
    assert why in replica.words.read_text()


def test_a_sidecar_that_never_answers_is_named(replica: Replica) -> None:
    code, output = replica.run("true", FLUSH_BARRIER="1", STORE_DEADLINE="6")
    assert code == 145
    assert "still waiting" in output
    assert "sidecar" in replica.words.read_text()


@pytest.mark.slow
def test_a_folder_that_changes_at_the_barrier_is_counted_again(replica: Replica) -> None:
    replica.output.mkdir()
    for name in ("model.keras", "late"):
        (replica.output / name).write_bytes(b"12345")
    process = replica.start("true", FLUSH_BARRIER="1", STORE_DEADLINE="60")
    first = replica.request()
    (replica.output / "late").unlink()
    until(lambda: replica.request()["files"] == 2)
    again = replica.request()
    assert again["id"] != first["id"]
    assert (2, again["inventory"]) == inventory(replica.output)
    replica.reply(id=again["id"], state="stored", stored=2, missing=[], message="")
    assert process.wait(SECONDS) == 0


def test_a_signal_ends_the_barrier_at_once(replica: Replica) -> None:
    process = replica.start("true", FLUSH_BARRIER="1", STORE_DEADLINE="600")
    replica.request()
    process.terminate()
    assert process.wait(SECONDS) == 143
    assert replica.completion.exists()


def test_what_vanishes_while_it_is_counted_does_not_count(tmp_path: Path) -> None:
    for name in ("kept", "gone/inner", "z"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = files(tmp_path)
    next(found)
    shutil.rmtree(tmp_path)  # of which the first look has found all
    assert not list(found)
    with pytest.raises(FileNotFoundError):
        inventory(tmp_path / "nothing")


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


def test_what_a_shell_has_left_is_killed_when_the_time_is_over(replica: Replica, tmp_path: Path):
    (tmp_path / "podinfo").mkdir()
    (tmp_path / "train.py").write_text(IGNORES)
    script = f"{sys.executable} {tmp_path}/train.py {tmp_path} & echo $! > {tmp_path}/pid; wait"
    process = replica.start("sh", "-c", script, PODINFO_DIR=str(tmp_path / "podinfo"))
    until((tmp_path / "ready").exists)
    program = int((tmp_path / "pid").read_text())
    (tmp_path / "podinfo/stop-within").write_text("6s")
    began = time.monotonic()
    assert process.wait(SECONDS) == 143
    assert time.monotonic() - began >= 2
    until(lambda: not _alive(program))


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
    def worker_of(chief: str) -> dict[str, str]:
        return {"TF_CONFIG": tf_config([chief, "localhost:2223"], 1), "START_DEADLINE": "2"}

    process = start(SAVES, PODINFO_DIR="", **worker_of("no-such-chief.invalid:2222"))
    assert process.wait(SECONDS) == 142
    assert not (tmp_path / "ready").exists()
    for chief in ("localhost:2222", "[::1]:2222"):
        assert start("", **worker_of(chief)).wait(SECONDS) == 0
