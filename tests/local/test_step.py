"""What every step does around its engine: the record of a failure, in S3 and on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.checks.finding import warning
from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.docs_page import SITE_VARIABLE
from kfp_tfjob.common.errors import (
    ConfigurationError,
    DataError,
    Problem,
    StepError,
    StoreUnavailableError,
)
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.engine import CANCELLED
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.step import FAILURE_FILE, FailureReport, Step, reported
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines.local.ending import Ending
from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.pipelines.local.run import _environment
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.retry import Patience
from kfp_tfjob.storage.store import Store
from tests.local.published import VERDICT

STEP = """
import sys
from kfp_tfjob.components.step import step
from kfp_tfjob.common.errors import DataError, Problem
with step("prepare_data", "run-1", sys.argv[1]) as context:
    {body}
"""
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(run_step: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv(FAILURE_FILE, str(tmp_path / "failure.json"))
    return run_step


def test_modules_of_the_users_folder_are_not_those_of_a_step(tmp_path: Path) -> None:
    """As the local run starts a step: a module that no digest covers would change a dataset."""
    (tmp_path / "calendar.py").write_text("raise SystemExit('not of Python')")
    (tmp_path / "own.py").write_text("")
    body = (
        "from importlib.util import find_spec\n"
        "from kfp_tfjob.components.step import reported\n"
        "with reported('a'):\n    import calendar\n    assert not find_spec('own')"
    )
    found = _environment(Home(tmp_path), "run-1", "token", "secret")
    command = [sys.executable, "-c", body]
    ended = subprocess.run(command, env=found, cwd=tmp_path, capture_output=True, text=True)
    assert not ended.returncode, ended.stderr


def test_a_failure_is_in_the_log_where_finish_finds_it(base: S3Address) -> None:
    """Without its Secret a step can leave its record nowhere else."""
    body = 'raise DataError(Problem("column a\\x1b[2J\\n12:00:00 done", fix="add rows"))'
    environment = os.environ | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    environment.pop(FAILURE_FILE, None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "STORAGE_SECRET_DIR"):
        environment.pop(name, None)
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", SITE_VARIABLE: "https://docs.example"}
    command = [sys.executable, "-c", STEP.format(body=body), str(base)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 3
    lines = ended.stdout.splitlines()
    (record,) = filter(None, map(Failure.from_line, lines))
    assert (record.step, record.code) == ("prepare_data", 3)
    *_, message, docs = lines
    assert "prepare_data failed (user_error): column a\\x1b[2J 12:00:00 done." in message
    assert docs.endswith(f" {record.docs}")
    assert record.docs == "https://docs.example/failures/#user_error"
    assert all(line.isprintable() for line in lines)


def test_a_known_error_has_its_code_everywhere(
    run: Run, store: Store, base: S3Address, tmp_path: Path
) -> None:
    problem = Problem("no rows", received=0, expected="some", fix="add rows")
    code, text = run(DataError(problem))
    assert code == 3
    assert "prepare_data failed (user_error)" in text
    record = json.loads((tmp_path / "failure.json").read_text())
    (problem,) = record["problems"]
    shown = {key: problem[key] for key in ("what", "received", "expected", "fix")}
    assert shown == {"what": "no rows", "received": "0", "expected": "some", "fix": "add rows"}
    assert record["code"] == 3 and record["step"] == "prepare_data"
    stored = store.read(base / "runs/run-1/failure.json")
    found = Failure.from_bytes(stored)
    assert stored == (tmp_path / "failure.json").read_bytes()
    assert (found.fix, found.problems[0].received) == ("add rows", "0")
    # It is final, so it is not tried again.
    code, text = run()
    assert code == 3 and "worked" not in text


def test_a_defect_is_told_as_one(run: Run, tmp_path: Path) -> None:
    code, text = run(ValueError("column a\x1b[2J"))
    assert code == 1
    assert "ValueError: column a\\x1b[2J" in text and "\x1b" not in text
    failure = Failure.from_bytes((tmp_path / "failure.json").read_bytes())
    assert (failure.verdict, failure.final) == ("failed", False)


def test_a_wrong_address_still_leaves_the_record_on_this_machine(run: Run, tmp_path: Path) -> None:
    assert run(output_uri="nowhere")[0] == 2
    assert "output_uri" in (tmp_path / "failure.json").read_text()


def test_a_step_that_works_at_last_removes_its_record(
    run: Run, store: Store, base: S3Address, tmp_path: Path
) -> None:
    run(ZeroDivisionError())
    assert len(list(store.list(base))) == 1
    assert run()[0] == 0
    assert list(store.list(base)) == []
    assert not (tmp_path / "failure.json").exists(), "a local run would end with it"
    # That of an exit task, which never runs again, has a page.
    store.write(base / "runs/run-1/failure.json", CANCELLED.to_bytes())
    store.write(base / "runs/run-1/failure.md", b"# Ended")
    assert run()[0] == 0
    assert list(store.list(base)) == []
    other = Failure("evaluate", 1, "failed", "of another step").to_bytes()
    store.write(base / "runs/run-1/failure.json", other)
    (tmp_path / "failure.json").write_bytes(other)
    assert run()[0] == 0
    assert len(list(store.list(base))) == 1
    assert (tmp_path / "failure.json").read_bytes() == other


@pytest.mark.parametrize(("index", "left"), [("0", []), ("1", ["of the first try"])])
def test_the_record_of_an_earlier_try_does_not_explain_a_later_one(
    run: Run, store: Store, base: S3Address, monkeypatch: pytest.MonkeyPatch, index, left
) -> None:
    """A person retries, and the new try is ended; an automatic retry still needs the record."""
    place = base / "runs/run-1/failure.json"
    store.write(place, Failure("prepare_data", 2, "user_error", "of the first try").to_bytes())
    monkeypatch.setenv("KFP_RETRY_INDEX", index)
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    found = [Failure.from_bytes(store.read(it.address)).message for it in store.list(base)]
    assert found == left


@pytest.mark.parametrize(
    ("name", "error", "is_recorded"),
    [
        ("preflight", ConfigurationError("other epochs"), False),
        ("prepare_data", DataError("the file has moved"), False),
        ("launch_tfjob", ConfigurationError("other data"), False),
        ("launch_tfjob", StoreUnavailableError("it was away"), True),
        ("sync_output", DataError("an object is damaged"), True),
        ("evaluate", ConfigurationError("the evaluator is damaged"), True),
    ],
)
def test_a_complete_run_does_not_fail_by_what_a_later_try_is_given(
    context: Step, tmp_path: Path, monkeypatch, name: str, error: StepError, is_recorded: bool
) -> None:
    home = Home(tmp_path)
    home.run("run-1").mkdir(parents=True)
    local = home.run("run-1") / "failure.json"
    monkeypatch.setenv(FAILURE_FILE, str(local))
    context.store.write(context.run.not_evaluated, b'{"why": "evaluate is false"}')
    with pytest.raises(SystemExit) as ended, reported(name) as report:
        report.step = replace(context, name=name)
        raise error
    assert ended.value.code == error.code
    assert context.store.has(context.run.failure("json")) is is_recorded
    # The command shows the message, and leaves a record on this machine only if the run failed.
    shown: list[str] = []
    assert Ending(context, "m", home, False, shown.append).tell(1, 0) == error.code
    assert any(str(error) in text for text in shown)
    assert local.exists() is is_recorded
    assert (home.run("run-1") / "failure.md").exists() is is_recorded


@pytest.fixture
def context(store: Store, base: S3Address) -> Step:
    return Step("finish", "run-1", Layout(base), store)


def test_a_run_whose_publish_was_killed_is_not_called_published(context: Step) -> None:
    verdict = VERDICT | {"champion": {"number": 1, "version": 1, "run_id": "r0"}}
    context.store.write(context.run.verdict, json.dumps(verdict).encode())
    ending = finish.run(context, "m")
    assert ending.failure == CANCELLED and "published nothing" in ending.markdown
    assert ending.markdown.startswith("# Run run-1 was stopped\n")
    record = context.run.failure("json")
    assert Failure.from_bytes(context.store.read(record)) == CANCELLED

    context.store.delete(record)  # as a step does that is started again
    champion = Champion(2, 1, "s3://b/m/1", "run-1", "w", "s", "d", {}, "s3://b/verdict")
    context.store.write(context.layout.model("m").champion(2), champion.to_bytes())
    ending = finish.run(context, "m")
    assert ending.failure is None and "# Published: `m`, version 1" in ending.markdown


def test_what_is_wrong_with_the_parameters_is_how_the_run_ended(
    context: Step, base: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FAILURE_FILE, raising=False)
    given = defaults() | {"data_uri": "s3://b/x.csv", "data_label": "y", "model_name": "m"}
    wrong = given | {"output_uri": str(base), "train_options": {"sed": 1}}
    with pytest.raises(SystemExit), reported("preflight") as report:
        preflight.run(report, "run-1", wrong)
    ending = finish.run(context, "m")
    assert ending.failure.step == "preflight" and "'seed'" in ending.markdown


def test_a_store_that_is_away_is_no_error_of_the_user(
    base: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    monkeypatch.setattr(preflight, "_PATIENCE", Patience(seconds=0.1, silence=1))
    given = defaults() | {"data_uri": "s3://b/x.csv", "data_label": "y", "model_name": "m"}
    given |= {"output_uri": str(base), "storage_endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StoreUnavailableError, match="then run again"):
        preflight.run(FailureReport(), "run-1", given)


def test_a_step_that_was_killed_is_not_called_cancelled(context: Step) -> None:
    """It left no record; Argo knows that it ran out of memory."""
    store, run = context.store, context.run
    killed = FailedTask("prepare_data", False, "OOMKilled (exit code 137)", "", "", ["reading x"])
    ending = finish.run(context, "m", ClusterReport(failed=[killed]))
    assert (ending.failure.step, ending.failure.verdict) == ("prepare_data", "out_of_memory")
    assert Failure.from_bytes(store.read(run.failure("json"))) == ending.failure
    assert "reading x" in ending.markdown
    assert store.read(run.failure("md")).decode() == ending.markdown

    store.delete(run.failure("json"))
    assert (
        finish.run(context, "m", ClusterReport(failed=[killed], terminated=True)).failure
        == CANCELLED
    )


def test_a_warning_is_not_counted_as_a_problem(
    store: Store, base: S3Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    found = [warning("nodes may not be listed, so the GPUs were not counted")]
    monkeypatch.setattr(preflight, "_check_cluster", lambda *_: ("tfjob", found))
    data = {"data_uri": str(base / "none.csv"), "data_label": "y", "model_name": "m"}
    with pytest.raises(DataError) as failed:
        preflight.run(FailureReport(), "run-1", defaults() | data | {"output_uri": str(base)})
    first, problem, note = str(failed.value).splitlines()
    assert first == "1 problem, 1 warning:"
    assert problem.startswith("  1. ") and "none.csv" in problem
    assert note.startswith("  Warning: nodes ")
