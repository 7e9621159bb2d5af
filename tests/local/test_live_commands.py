"""watch and prune on a real pseudo-terminal and through a pipe, on a fake back end and a store."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kfp_tfjob.cluster.log_lines import LogLine, stamp_of
from kfp_tfjob.cluster.log_writer import LogWriter
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout, RunLayout
from kfp_tfjob.storage.store import Store
from tests.local.fake_pipelines import FakePipelines
from tests.local.laptop import add
from tests.local.published import NAME, publish
from tests.terminal import environment, run_on_terminal, screen

COMMAND = [sys.executable, "-m", "kfp_tfjob.pipelines"]


def through_a_pipe(*arguments: str) -> list[str]:
    done = subprocess.run([*COMMAND, *arguments], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.usefixtures("laptop")
def test_watch_has_a_line_for_each_step(
    fake: FakePipelines,
    store: Store,
    base: S3Address,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = add(fake, base)
    began, long_ago = datetime.now(UTC), datetime(1, 1, 1, tzinfo=UTC)
    event = {"event": "progress", "time": 1e9, "epoch": 2, "step": 20, "steps": 80}
    event |= {"eta_seconds": 65.0, "examples_per_second": 100.0, "metrics": {"loss": 0.25}}
    states = iter(range(100))

    def move_on(method: str, path: str) -> None:
        if not path.endswith(run.run_id):
            return
        match next(states):
            case 1:
                fake.task(run, "preflight", "RUNNING", end_time=long_ago)
            case 2:
                ended = began + timedelta(seconds=8)
                fake.task(run, "preflight", "SUCCEEDED", start_time=began, end_time=ended)
                fake.task(run, "launch-tfjob", "RUNNING", end_time=long_ago)
                progress = RunLayout(base / "runs" / run.run_id).progress
                store.write(progress, (json.dumps(event) + "\n").encode())
            case 4:
                run.state, run.finished_at = "SUCCEEDED", datetime.now(UTC)

    fake.broken = move_on
    code, output = run_on_terminal([*COMMAND, "watch", "one"], environment(), columns=120)
    assert code == 0, output
    assert "25%, 1 min 5 s left, training epoch 2, 100 rows/s, step 20 of 80" in output
    lines = screen(output)
    log, (preflight,) = lines[0], [line for line in lines if "preflight" in line]
    path = tmp_path / f"state/kfp-tfjob/watch-{run.run_id}.log"
    assert log == f"log        {path}"
    assert preflight.startswith("✓ preflight") and preflight.endswith(" 8 s")
    assert not any("preflight running" in line for line in lines)
    # The log has the lines of a pipe, which has the time before each.
    plain = [line[10:] for line in path.read_text().splitlines()[1:]]
    assert [line for line in plain if not line.startswith("note:")][:4] == [
        "preflight running",
        "preflight succeeded (8 s)",
        "launch_tfjob running",
        "epoch 2, step 20 of 80, loss 0.25, 100 rows/s, 1 min 5 s left",
    ]

    # A pipe, and --verbose on a terminal, print the lines and write no log.
    path.unlink()
    piped = through_a_pipe("watch", "one")
    code, output = run_on_terminal([*COMMAND, "watch", "one", "--verbose"], environment())
    assert code == 0 and "\x1b" not in output
    assert [line[8:] for line in output.splitlines()] == [line[8:] for line in piped]
    assert not path.exists()


@pytest.mark.usefixtures("laptop")
@pytest.mark.parametrize(("command", "code"), [("watch", 130), ("logs", 0)])
def test_ctrl_c_ends_the_wait_and_not_the_run(
    fake: FakePipelines, store: Store, base: S3Address, command: str, code: int
) -> None:
    run = add(fake, base)
    fake.task(run, "preflight", "RUNNING")
    writer = LogWriter(store, RunLayout(base / "runs" / run.run_id), 1)
    writer.put(LogLine(stamp_of(1_767_225_600.0), "chief-0", "epoch 1"))
    writer.end()
    writer.close(60)
    options = ["--follow"] if command == "logs" else []
    process = subprocess.Popen(
        [*COMMAND, command, "one", *options],
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (code, "")
    assert ("kfp-tfjob watch one" in output) is (command == "watch")
    assert run.state == "RUNNING"


def test_prune_shows_what_it_deletes(store: Store, layout: Layout) -> None:
    for number in range(1, 6):
        publish(store, layout, f"r{number}")
    words = ("models", "prune", NAME, "--keep", "1", "--output", str(layout.root))
    planned = through_a_pipe(*words)
    variables = environment(LOGNAME="eva", AWS_ENDPOINT_URL=os.environ.get("AWS_ENDPOINT_URL", ""))
    code, output = run_on_terminal([*COMMAND, *words, "--apply"], variables, columns=200)
    assert code == 0, output
    assert "prune" in output and " objects" in output and "\x1b[2K" in output
    # The live line is gone, and the result is what a pipe gets.
    expected = [line.replace("would delete", "deleted") for line in planned[:-1]]
    assert [line for line in screen(output) if line] == expected
    assert planned[-1] == "nothing was deleted; add --apply to delete"
    assert [line for line in through_a_pipe(*words) if "delete" in line] == []
