"""`runs`, `why`, `watch` and `cancel` for the runs of a home, also for one that was killed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.common.docs_page import address_of
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.components.finish.engine import CANCELLED
from kfp_tfjob.components.step import RUN_ID
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines.kubeflow.errors import ENDPOINT
from kfp_tfjob.pipelines.local import processes
from kfp_tfjob.pipelines.local.home import DEFAULT, LOG, PARAMETERS, TICK, Home
from kfp_tfjob.pipelines.local.runs import HomeRuns
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import FAILURE_JSON, Layout
from kfp_tfjob.storage.store import Store
from tests.local.fake_pipelines import FakePipelines
from tests.local.laptop import add, kfp_tfjob
from tests.local.local_run import Run, end_run

OLD, NEW = "20261128-120000-aaaa", "20261128-130000-bbbb"
LOGGED = """\
12:00:01.000 - INFO - Executing task 'preflight'
    preflight worked
12:00:03.500 - INFO - Task 'preflight' finished with status SUCCESS
12:00:03.500 - INFO - Executing task 'prepare-data'
    the last words
    13:00:00.000 - INFO - Task 'prepare-data' finished with status SUCCESS
"""


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a person without a back end, in a folder of their own."""
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / DEFAULT
    yield folder
    end_run(folder)


def answer(*arguments: object, code: int = 0) -> Any:
    """Return the JSON of a command."""
    return json.loads(kfp_tfjob(*arguments, "--json", code=code).stdout)


def leave(home: Path, run_id: str, base: S3Address, endpoint: str, log: str = LOGGED) -> Path:
    """Write the files of a run whose store is `base`; nothing says how it ended."""
    folder = Home(home).run(run_id)
    folder.mkdir(parents=True)
    values = {"output_uri": str(base), "storage_endpoint": endpoint, "model_name": run_id[-4:]}
    (folder / PARAMETERS).write_text(json.dumps(values))
    (folder / TICK).touch()
    (folder / LOG).write_text(log)
    return folder


def test_a_run_is_shown_while_it_runs_and_explained_after_it_failed(
    home: Path, digits_csv: Path
) -> None:
    run = Run(home, "--data", str(digits_csv), "--label", "digitt")
    run.read_until("preflight")
    (shown,) = answer("runs")
    assert (shown["run_id"], shown["state"], shown["finished"]) == (run.run_id, "running", "")
    assert (shown["model"], shown["is_local"]) == ("digits", True)
    why = answer("why", "last")
    assert (why["step"], why["code"], why["run"]["state"]) == ("preflight", None, "running")

    followed = kfp_tfjob("watch", run.run_id)  # until its end
    assert run.wait() == followed.exit_code == 3
    assert "preflight failed" in followed.stdout and "did you mean 'digit'?" in followed.stdout
    why = answer("why", run.run_id[:12])
    assert (why["step"], why["code"], why["run"]["verdict"]) == ("preflight", 3, "user_error")
    assert why["run"]["page"] == str(home / "runs" / run.run_id)
    assert why["remedy"] == "did you mean 'digit'?"
    record = Failure.from_bytes((home / "runs" / run.run_id / FAILURE_JSON).read_bytes())
    assert why["docs"] == record.docs == address_of(record.name)
    assert run.lines[-1].endswith(f" {record.docs}")
    assert followed.stdout.splitlines()[-1].endswith(f" {record.docs}")
    states = {step["name"]: step["state"] for step in why["run"]["steps"]}
    assert states == {"preflight": "failed", "finish": "succeeded"}
    assert all(0 < step["seconds"] <= why["run"]["seconds"] for step in why["run"]["steps"])
    lines = kfp_tfjob("runs", "--home", home, code=0).stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [[run.run_id, "failed", "digits"]]
    assert lines[1].endswith("user_error")


def test_a_run_that_left_no_record_of_its_end(home, base, s3) -> None:
    leave(home, OLD, base, s3.endpoint)
    why = answer("why", "last")
    assert (why["run"]["state"], why["step"], why["code"]) == ("failed", "prepare_data", None)
    assert why["remedy"] == f"to continue: kfp-tfjob run --run-id {OLD}"
    first, second = why["run"]["steps"]
    assert (first["state"], first["seconds"]) == ("succeeded", 2.5)
    assert second["state"] == "failed"
    assert kfp_tfjob("watch", "last").exit_code == 1

    # A step that was killed fails without a record, and only its log says something.
    failed = LOGGED + "12:00:09.500 - ERROR - Task 'prepare-data' finished with status FAILURE\n"
    leave(home, NEW, base, s3.endpoint, failed)
    why = answer("why", NEW)
    assert (why["step"], why["code"]) == ("prepare_data", 1)
    assert why["log"][0] == "the last words"
    assert [run["verdict"] for run in answer("runs")] == ["failed", ""]
    assert [run["run_id"] for run in answer("runs", "--model", "aaaa")] == [OLD]


def test_a_run_that_was_stopped(home, base, s3, store) -> None:
    leave(home, OLD, base, s3.endpoint)
    failure = Layout.parse(str(base)).run(OLD).failure("json")
    store.write(failure, CANCELLED.to_bytes())
    moved = home.rename(home.with_name("moved"))
    why = answer("why", "last", "--home", moved)
    assert (why["run"]["state"], why["run"]["verdict"]) == ("canceled", "cancelled")
    assert why["remedy"] == f"to continue: kfp-tfjob run --home {moved} --run-id {OLD}"
    assert kfp_tfjob("watch", OLD, "--home", moved).exit_code == CANCELLED.code


def test_a_failure_is_explained_even_if_the_store_cannot_be_read(home, base) -> None:
    folder = leave(home, OLD, base, "http://127.0.0.1:1")
    record = Failure("preflight", 145, "store_unavailable", "the store does not respond")
    (folder / FAILURE_JSON).write_bytes(record.to_bytes())
    (home / "runs" / NEW).mkdir()
    (home / "runs" / NEW / PARAMETERS).write_text('{"output')  # the disk was full
    why = answer("why", OLD)
    assert (why["reason"], why["code"]) == (record.message, 145)
    assert why["docs"] == address_of("store_unavailable")
    assert len(why["notes"]) == 1
    runs = {run["run_id"]: (run["state"], run["verdict"]) for run in answer("runs")}
    assert runs == {OLD: ("failed", "store_unavailable"), NEW: ("failed", "")}


def test_a_run_with_processes_is_running_whatever_it_has_recorded(home, base, s3) -> None:
    """kfp.local repeats a step that has failed; its record is there in the meantime."""
    folder = leave(home, OLD, base, s3.endpoint)
    (folder / FAILURE_JSON).write_bytes(Failure("prepare_data", 1, "failed", "once").to_bytes())
    (home / "token").write_text(f"of-the-run {home.stat().st_ino}")
    environment = os.environ | {processes.TOKEN: "of-the-run", RUN_ID: OLD}
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; print(); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        (run,) = answer("runs")
        process.communicate()
    assert (run["state"], run["steps"][1]["state"]) == ("running", "running")
    assert answer("runs")[0]["state"] == "failed"


def test_a_run_that_does_not_exist_and_a_home_without_runs(home, base, s3) -> None:
    assert ENDPOINT in kfp_tfjob("why", "last", code=2).stderr
    (home / "runs").mkdir(parents=True)
    assert answer("runs", "--home", home) == []
    assert str(home) in kfp_tfjob("why", "last", "--home", home, code=2).stderr
    leave(home, OLD, base, s3.endpoint)
    for command in ("why", "watch", "logs", "cancel", "retry"):
        assert OLD in kfp_tfjob(command, "20270101", code=2).stderr


def test_a_mistyped_home_is_an_error_and_not_an_empty_list(home: Path, tmp_path: Path) -> None:
    for folder in (home, tmp_path):  # one is missing, the other is not a home
        with pytest.raises(ConfigurationError) as error:
            Home(folder).check_exists()
        (problem,) = error.value.as_problems
        assert str(folder) in problem.what
        for command in (["runs"], ["why", "last"], ["watch", "last"], ["logs", "last"]):
            shown = kfp_tfjob(*command, "--home", folder, code=2).stderr
            assert problem.what in shown and problem.fix in shown


def test_a_run_is_cancelled_and_names_the_command_that_continues_it(
    home: Path, digits_csv: Path
) -> None:
    run = Run(home, "--data", str(digits_csv), "--label", "digit")
    run.read_until("preflight")
    cancelled = answer("cancel", "last")
    assert run.wait() == 143
    assert (cancelled["run"]["run_id"], cancelled["run"]["state"]) == (run.run_id, "canceled")
    assert (cancelled["complete"], cancelled["left"]) == (True, "")
    assert answer("runs")[0]["state"] == "canceled"
    assert "canceled" in kfp_tfjob("cancel", run.run_id, code=2).stderr  # it has ended

    with pytest.raises(ConfigurationError) as error:
        HomeRuns(Home(home)).retry("last")
    (problem,) = error.value.as_problems
    assert Home(home).to_continue(run.run_id) in problem.fix
    assert problem.what in kfp_tfjob("retry", "last", code=2).stderr


def test_a_back_end_comes_first_unless_the_run_is_local(
    laptop: None, fake: FakePipelines, home: Path, base: S3Address, s3: Any, store: Store
) -> None:
    leave(home, OLD, base, s3.endpoint)
    on_cluster = add(fake, base, state="FAILED")
    for run, expected in (("last", on_cluster.run_id), ("one", on_cluster.run_id), (OLD, OLD)):
        assert answer("why", run)["run"]["run_id"] == expected
    assert [run["run_id"] for run in answer("runs")] == [on_cluster.run_id]
    assert [run["run_id"] for run in answer("runs", "--home", home)] == [OLD]
    assert answer("why", "last", "--home", home)["run"]["run_id"] == OLD
    assert kfp_tfjob("why", on_cluster.run_id, "--home", home).exit_code == 2


@pytest.mark.slow
def test_each_end_of_a_run_is_explained(home: Path, digits_csv: Path, tmp_path: Path) -> None:
    def run(data: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
        common = ("--label", "digit", "--name", "digits", "--workers", "0", "--epochs", "2")
        run = Run(home, "--data", str(data), *common, *arguments)
        code = run.wait()
        why = answer("why", "last")
        assert why["run"]["run_id"] == run.run_id and why["notes"] == []
        assert kfp_tfjob("watch", "last").exit_code == code, run.text
        return code, why

    *rows, last = digits_csv.read_text().splitlines()
    table = tmp_path / "typo.csv"
    table.write_text("\n".join([*rows, f"tweLve,{last.partition(',')[2]}"]))
    code, why = run(table)
    assert (code, why["step"], why["code"]) == (3, "prepare_data", 3)
    assert "tweLve" in why["reason"] and f"line {len(rows) + 1}" in why["reason"]
    assert "data_options.on_bad_row" in why["remedy"]

    program = ["python3", "-c", "print('before'); raise SystemExit(7)"]
    code, why = run(digits_csv, "--set", f"train_options.command={json.dumps(program)}")
    assert (code, why["step"], why["run"]["verdict"]) == (7, "launch_tfjob", "user_error")
    (attempt,) = why["attempts"]
    assert attempt["verdict"] == "user_error" and any("before" in it for it in attempt["log"])

    code, why = run(digits_csv)
    assert (code, why["run"]["state"], why["run"]["verdict"]) == (0, "succeeded", "published")
    assert [step["state"] for step in why["run"]["steps"]] == ["succeeded"] * 7

    code, why = run(digits_csv)
    assert (code, why["run"]["verdict"]) == (0, "not blessed")
    assert [check["name"] for check in why["checks"] if not check["passed"]] == ["same_model"]
    assert why["docs"] == address_of("not-blessed")
    assert "publish" not in [step["name"] for step in why["run"]["steps"]]
    words = ["not blessed", "published", "user_error", "user_error"]
    assert [run["verdict"] for run in answer("runs")] == words
