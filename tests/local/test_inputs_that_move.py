"""Dated data and the folders of runs, from preflight through every step that uses them."""

import json

import pytest

from kfp_tfjob.cluster.backend import BACKEND_VARIABLE
from kfp_tfjob.common.errors import DataError, ObjectNotFoundError
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.preflight import engine as preflight
from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.prepare_data import engine as prepare_data
from kfp_tfjob.components.step import FailureReport, open_step, reported
from kfp_tfjob.registry.run_folder import find
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.problems import problem_of

TIME = "2026-11-22T03:00:00Z"


ROWS = ("a,b,y\n" + "".join(f"{i},{(i * 3) % 7},{i % 2}\n" for i in range(120))).encode()


@pytest.fixture(autouse=True)
def here(store: Store, base: S3Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "local")
    store.write(base / "in/rows.csv", ROWS)


def values(base: S3Address, **changed: object) -> dict:
    return (
        defaults()
        | {"data_label": "y", "model_name": "m", "output_uri": str(base)}
        | {"data_uri": f"{base}/in/{{date-1d}}/"}
        | changed
    )


def test_the_tick_and_not_the_clock_decides_which_data_is_read(
    store: Store, base: S3Address
) -> None:
    store.write(base / "in/2026-11-21/rows.csv", ROWS)
    given = values(base)
    first = preflight.run(FailureReport(), "r1", given, TIME)
    assert first.data_uri == f"{base}/in/2026-11-21/"
    assert f"`{TIME}`, in UTC" in first.table and "`" + first.data_uri + "`" in first.table
    # A retry, whenever it comes, reads the same data.
    assert preflight.run(FailureReport(), "r1", given, TIME).source_digest == first.source_digest
    context = open_step("prepare_data", "r1", str(base))
    done = prepare_data.run(context, first.data_uri, "y", {}, first.source_digest)
    assert sum(done.rows.values()) == 120 - done.metrics["duplicate_rows"]


def test_data_that_is_not_there_yet_names_the_tick(base: S3Address) -> None:
    given = (FailureReport(), "r1", values(base), TIME)
    problem = problem_of(preflight.run, *given, kind=DataError)
    assert TIME in problem.what and "2026-11-21" in problem.received
    assert problem.fix


def test_a_back_end_without_ticks_is_named_only_if_a_field_needs_one(base: S3Address) -> None:
    unknown = "{{$.pipeline_job_schedule_time_utc}}"
    plain = values(base, data_uri=f"{base}/in/rows.csv")
    assert preflight.run(FailureReport(), "r1", plain, unknown).data_uri == plain["data_uri"]
    problem = problem_of(preflight.run, FailureReport(), "r1", values(base), unknown)
    assert "Kubeflow Pipelines" in problem.fix


def test_every_step_finds_the_folder_that_preflight_claimed(store: Store, base: S3Address) -> None:
    shaped = f"{base}/runs/{{model_name}}/{{date}}"
    given = values(base, data_uri=f"{base}/in/rows.csv", output_uri=shaped)
    report = FailureReport()
    checked = preflight.run(report, "r1", given, TIME)
    expected = f"{base}/runs/m/2026-11-22/r1"
    assert str(report.step.run.base) == expected and expected in checked.table
    context = open_step("launch_tfjob", "r1", shaped)
    assert str(context.run.base) == expected
    assert str(find(store, Layout.parse(str(base)), "r1").base) == expected
    # The record is never changed: a retry on another day, or with another template, stays there.
    later = "2026-12-24T00:00:00Z"
    preflight.run(report, "r1", given, later)
    assert str(report.step.run.base) == expected
    record = json.loads(store.read(Layout(base).folder_record("r1")))
    assert record == {"run_id": "r1", "folder": "m/2026-11-22"}
    assert str(context.layout.dataset("d")) == f"{base}/datasets/d"
    # A run that failed there is described there.
    ended = finish.run(context, "m")
    assert ended.failure and store.read(S3Address.parse(f"{expected}/failure.json"))


def test_a_failure_before_the_claim_is_kept_under_the_run_id(store: Store, base: S3Address) -> None:
    shaped = f"{base}/runs/{{model_name}}"
    given = values(base, output_uri=shaped, train_epochs=0, data_uri=f"{base}/in/rows.csv")
    with pytest.raises(SystemExit), reported("preflight") as report:
        preflight.run(report, "r1", given, TIME)
    plain = Layout(base).run("r1")
    assert find(store, Layout(base), "r1") == plain
    assert json.loads(store.read(plain.failure("json")))["step"] == "preflight"
    # When the run is retried and passes, that record goes.
    with reported("preflight") as report:
        preflight.run(report, "r1", given | {"train_epochs": 1}, TIME)
    with pytest.raises(ObjectNotFoundError):
        store.read(plain.failure("json"))
    assert str(report.step.run.base) == f"{base}/runs/m/r1"
