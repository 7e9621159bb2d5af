"""Runs of a back end after 2.17, whose tasks are records of their own (kubeflow/pipelines#13986).

No such back end was run: the JSON below has the fields of its run.proto and of its api_converter.go
at 6585b514 (2026-08-22), as its gateway writes them: names of the proto, and no empty fields.
"""

import logging
from datetime import UTC, datetime

import pytest

from kfp_tfjob.pipelines.kubeflow import connection
from kfp_tfjob.pipelines.kubeflow.connection import Connection
from kfp_tfjob.pipelines.kubeflow.runs import named, read_run, with_steps
from tests.local.fake_pipelines import Refusal

RUN_ID = "6b1f0a5e-7c3d-4a52-9f0e-0d2f4f7f2f10"


def record(name, state, **fields):
    """Return a record as `ListTasks` does."""
    pod = {"name": f"tfjob-training-x7k2p-{len(name)}", "uid": "5d0c", "type": "DRIVER"}
    return {
        "name": name,
        "display_name": name,
        "task_id": f"id-of-{name}",
        "run_id": RUN_ID,
        "pods": [pod, pod | {"type": "EXECUTOR"}],
        "create_time": "2026-08-22T10:00:00Z",
        "state": state,
        "state_history": [{"update_time": "2026-08-22T10:00:00.123456789Z", "state": "RUNNING"}],
        "type": "RUNTIME",
        "parent_task_id": "id-of-exit-handler-1",
        "inputs": {"parameters": [{"value": 3, "type": "RUNTIME_VALUE_INPUT"}]},
        "outputs": {},
        "scope_path": f"root.exit-handler-1.{name}",
    } | fields


@pytest.fixture
def back_end(fake, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(connection, "_PAGE", 2)
    return Connection(fake.host).open()


def steps(run):
    return [(step.name, step.state, step.seconds, step.error) for step in run.steps]


def test_each_step_has_one_record(fake, back_end):
    raw = fake.add("one")
    ended = "2026-08-22T10:00:08Z"
    fake.records[raw.run_id] = [
        record("ROOT", "RUNNING", type="ROOT"),
        record("exit-handler-1", "RUNNING", type="DAG"),
        record("preflight", "SUCCEEDED", end_time=ended),
        record("prepare-data", "CACHED", end_time=ended),
        record("publish", "SKIPPED"),
        record("launch-tfjob", "RUNNING", display_name="Train"),
    ]
    run = read_run(back_end, raw.run_id)
    assert steps(run)[:2] == [
        ("preflight", "succeeded", 8.0, ""),
        ("prepare_data", "succeeded", 8.0, ""),
    ]
    assert [step.name for step in run.steps] == ["preflight", "prepare_data", "launch_tfjob"]
    assert run.current.name == "launch_tfjob" and run.current.state == "running"
    assert len([path for _, path in fake.requests if path.endswith("/tasks")]) == 3  # pages


def test_a_killed_step_does_not_run_after_the_run(fake, back_end):
    began, ended = (datetime(2026, 8, 22, 10, minute, tzinfo=UTC) for minute in (0, 2))
    raw = fake.add("one", "FAILED", created_at=began, finished_at=ended)
    message, minute = "failed to execute component: exit status 3", "2026-08-22T10:01:00Z"
    fake.records[raw.run_id] = [
        record("preflight", "RUNNING"),
        record("finish", "FAILED", end_time=minute, status_metadata={"message": message}),
    ]
    assert steps(read_run(back_end, raw.run_id)) == [
        ("preflight", "failed", 120.0, ""),
        ("finish", "failed", 60.0, message),
    ]


def test_a_record_with_few_fields_is_read(fake, back_end):
    raw = fake.add("one")
    fake.records[raw.run_id] = [{}, {"name": "preflight", "state": "RUNNING"}]
    assert steps(read_run(back_end, raw.run_id)) == [("preflight", "running", None, "")]


def test_a_list_of_runs_is_completed(fake, back_end):
    raw = fake.add("one")
    fake.records[raw.run_id] = [record("preflight", "RUNNING")]
    (listed,) = named(back_end, "one")
    assert listed.steps == ()
    assert [step.name for step in with_steps(back_end, listed).steps] == ["preflight"]
    del fake.runs[raw.run_id]
    assert with_steps(back_end, listed) is listed


@pytest.mark.parametrize("status", [403, 404, 501])
def test_without_records_the_run_is_still_shown(fake, back_end, caplog, status):
    raw = fake.add("one")
    fake.records[raw.run_id] = [record("preflight", "RUNNING")]

    def broken(method, path):
        if path.endswith("/tasks"):
            raise Refusal(status, "no")

    fake.broken = broken
    caplog.set_level(logging.WARNING)
    assert [read_run(back_end, raw.run_id).steps for _ in range(2)] == [(), ()]
    assert caplog.text.count("the steps of runs are not shown") == 1
