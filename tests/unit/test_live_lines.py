"""A run's steps on a real pseudo-terminal, and through a pipe, where the lines stay the same."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_tfjob.common import progress
from kfp_tfjob.common.progress import ProgressReport, ReportReader
from kfp_tfjob.components import step
from kfp_tfjob.components.prepare_data.executors.executor import ProgressLog
from kfp_tfjob.pipelines.local.output import PlainSteps, Relay
from kfp_tfjob.uploader.parallel import TransferProgress
from tests.terminal import environment, run_on_terminal, screen

# Prints as kfp.local does, and reports as a step and its processes do.
PIPELINE = r"""
import json, os, sys, time
from pathlib import Path
from kfp_tfjob.common.progress import FILE, ProgressReport, report

def say(text, seconds=0.0):
    print(text, flush=True)
    time.sleep(seconds)

say("12:00:00.000 - INFO - Executing task \x1b[96m'prepare-data'\x1b[0m")
say("    [KFP Executor 2026-01-01 12:00:00,000 INFO]: Got executor_input:\n    {\n    }")
say("    12:00:01 preparing s3://b/d", 0.5)
report(ProgressReport("read", 0.25, "500 rows, 1,000 rows/s"))
if FILE in os.environ:
    with open(os.environ[FILE], "a") as file:
        file.write(json.dumps({"warning": "3 rows are \x1b[2Jinvalid"}) + "\n")
time.sleep(1)
report(ProgressReport("read", 0.5, "1,000 rows, 1,000 rows/s"))
time.sleep(1)
say("    12:00:02 3 rows are invalid")
say("    12:00:03 read 2,000 rows")
done = "Task \x1b[96m'prepare-data'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m"
say("12:00:03.000 - INFO - " + done)
say("12:00:03.000 - INFO - Executing task 'launch-tfjob'")
folder = Path(sys.argv[1], "job/jobs/j/chief-0/output")
folder.mkdir(parents=True, exist_ok=True)
event = {"event": "progress", "time": 1e9, "epoch": 3, "step": 30, "steps": 40}
event |= {"eta_seconds": 75, "examples_per_second": 6100.0, "metrics": {"loss": 0.25}}
(folder / "progress.jsonl").write_text(json.dumps(event) + "\n")
report(ProgressReport("storing", 0.1, "1 of 10 files"))
say("    [chief-0] 12:00:04 epoch 3", 2)
say("12:00:06.000 - ERROR - Task 'launch-tfjob' finished with status FAILURE")
"""
SHOW = """
import subprocess, sys
from pathlib import Path
from kfp_tfjob.pipelines.live_lines import LiveLines
from kfp_tfjob.pipelines.local.live_steps import LiveSteps
from kfp_tfjob.pipelines.local.output import Relay

folder = Path(sys.argv[1])
live = LiveLines(folder / "run.log")
live.show("run r1; logs in here")
with LiveSteps(live, folder / "reports", folder / "job") as steps:
    pipeline = subprocess.Popen(
        [sys.executable, "-c", sys.argv[2], str(folder)], stdout=subprocess.PIPE, text=True
    )
    relay = Relay(pipeline, folder / "pipeline.log", steps)
    relay.start()
    while relay.is_alive():
        steps.refresh()
        relay.join(0.1)
live.show("the end")
"""


def test_a_terminal_shows_a_line_for_each_step_and_the_log_has_every_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHOW, str(tmp_path), PIPELINE]
    variables = environment(**{progress.FILE: str(tmp_path / "reports")})
    code, output = run_on_terminal(command, variables, columns=110)
    assert code == 0, output
    first, warning, prepared, trained, last = [line for line in screen(output) if line]
    assert (first, last) == ("run r1; logs in here", "the end")
    assert warning == r"prepare_data  3 rows are \x1b[2Jinvalid"
    mark, name, bar, *note, seconds, unit = prepared.split()
    assert (mark, name, bar, note) == ("✓", "prepare_data", "━" * 16, ["read", "2,000", "rows"])
    assert unit == "s" and 2 <= int(seconds) < 60
    assert trained.startswith("✗ launch_tfjob") and "[chief-0] epoch 3" in trained

    # While it ran: the share, the time left by the rate so far, the counts and the rate.
    assert "25%, read 500 rows, 1,000 rows/s" in output
    assert "50%, 2 s left, read 1,000 rows, 1,000 rows/s" in output
    assert "75%, 1 min 15 s left, training epoch 3, 6,100 rows/s, step 30 of 40" in output
    assert "storing" not in output and "\x1b[?25l" not in output  # the cursor stays visible
    assert not (tmp_path / "reports").exists()

    # The plain log is the output without a terminal.
    lines: list[str] = []
    pipeline = subprocess.Popen(
        [sys.executable, "-c", PIPELINE, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != progress.FILE},
    )
    relay = Relay(pipeline, tmp_path / "pipe.log", PlainSteps(lines.append))
    relay.run()
    assert lines == [
        "prepare_data  12:00:01 preparing s3://b/d",
        "prepare_data  12:00:02 3 rows are invalid",
        "prepare_data  12:00:03 read 2,000 rows",
        "launch_tfjob  [chief-0] 12:00:04 epoch 3",
    ]
    assert (tmp_path / "run.log").read_text().splitlines() == [first, *lines, last]
    assert (tmp_path / "run.log").stat().st_mode & 0o077 == 0


def test_a_narrow_terminal_has_no_bar(tmp_path: Path) -> None:
    code, output = run_on_terminal(
        [sys.executable, "-c", SHOW, str(tmp_path), PIPELINE],
        environment(**{progress.FILE: str(tmp_path / "reports")}),
        columns=40,
    )
    assert code == 0 and "━" not in output
    assert all(len(line) <= 40 for line in screen(output))


ASK = "from kfp_tfjob.pipelines.commands.terminal import is_live; print(is_live(), is_live(True))"


@pytest.mark.parametrize(
    ("variables", "live"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"CI": "true"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
    ],
)
def test_only_a_capable_terminal_gets_live_lines(variables: dict[str, str], live: bool) -> None:
    _, output = run_on_terminal([sys.executable, "-c", ASK], environment(**variables))
    assert output.split() == [str(live), "False"]


def test_a_pipe_gets_plain_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportReader:
    path = tmp_path / "reports"
    path.touch()
    monkeypatch.setenv(progress.FILE, str(path))
    return ReportReader(path)


def test_the_counts_of_prepare_data_are_reported(reports: ReportReader) -> None:
    step.log_to_stdout()
    rows = ProgressLog("read", 400_000_000)
    rows.add(1000, 100_000_000)
    rows.log()
    logging.getLogger("kfp_tfjob.x").warning("no %s", "space")
    report, warnings = reports.new()
    assert report is not None and (report.activity, report.share) == ("read", 0.25)
    assert report.detail.startswith("1,000 rows, ") and report.detail.endswith(" rows/s")
    assert warnings == ["no space"]
    assert reports.new() == (None, [])


def test_a_transfer_is_reported_to_its_end(
    reports: ReportReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfp_tfjob.uploader.parallel._REPORT", 0.0)
    transfer = TransferProgress("fetching", 2, 100)
    transfer.add(25)
    transfer.tick()
    report, _ = reports.new()
    assert report is not None and (report.activity, report.share) == ("fetching", 0.25)
    assert report.detail.startswith("1 of 2 files, 0.0 MB at ")
    transfer.add(75)
    report, _ = reports.new()
    assert report is not None and report.share == 1.0


def test_a_report_without_a_reader_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(progress.FILE, str(tmp_path / "gone"))
    progress.report(ProgressReport("read", 0.5, ""))
    assert not (tmp_path / "gone").exists()


def test_damaged_reports_are_skipped(reports: ReportReader, tmp_path: Path) -> None:
    progress.report(ProgressReport("read", 2.0, "too much"))
    with open(tmp_path / "reports", "a") as file:
        file.write('[]\n{"share": "x"}\nnull\n{"activity": "cut off')
    report, _ = reports.new()
    assert report == ProgressReport("read", 1.0, "too much")
    with open(tmp_path / "reports", "a") as file:
        file.write('", "share": 0.5, "detail": "", "seconds_left": 3}\n')
    report, _ = reports.new()
    assert report == ProgressReport("cut off", 0.5, "", 3)
