"""The fields of addresses: what they become, and what is refused."""

from datetime import UTC, datetime

import pytest

from kfp_tfjob.components.preflight.parameters import defaults
from kfp_tfjob.components.preflight.plan import RunPlan
from kfp_tfjob.options import address_fields
from kfp_tfjob.options.address_fields import Tick
from kfp_tfjob.storage.layout import Layout
from tests.problems import problem_of

TICK = Tick(datetime(2026, 3, 1, 0, 30, tzinfo=UTC))
GOOD = {"data_uri": "s3://bkt/x", "data_label": "y", "model_name": "m", "output_uri": "s3://bkt/p"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bkt/{date}/", "s3://bkt/2026-03-01/"),
        ("s3://bkt/{date-1d}/{hour}.csv", "s3://bkt/2026-02-28/00.csv"),
        ("s3://bkt/{date-1h}/{hour-1h}.csv", "s3://bkt/2026-02-28/23.csv"),
        ("s3://bkt/{date+9h}/{hour+9h}", "s3://bkt/2026-03-01/09"),
        ("s3://bkt/{date-366d}", "s3://bkt/2025-02-28"),
        ("s3://bkt/plain", "s3://bkt/plain"),
    ],
)
def test_the_tick_fills_in_dates_and_hours(text: str, expected: str) -> None:
    assert address_fields.check(text, "data_uri", address_fields.IN_DATA) == []
    assert address_fields.fill(text, TICK) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T00:30:00Z",
        "2026-03-01T00:30:00+00:00",
        "2026-03-01T01:30+01:00",
        "20260301T0030",
    ],
)
def test_a_tick_is_in_utc(text: str) -> None:
    assert str(Tick.parse(text)) == "2026-03-01T00:30:00Z"


@pytest.mark.parametrize("text", ["", "yesterday", "{{$.pipeline_job_schedule_time_utc}}"])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert "2026-11-22T03:00:00Z" in problem_of(Tick.parse, text).expected


@pytest.mark.parametrize(
    ("path", "text", "suggestion"),
    [
        ("data_uri", "s3://bkt/{day}", ""),
        ("data_uri", "s3://bkt/{dat}", "s3://bkt/{date}"),
        ("data_uri", "s3://bkt/{date-1m}/x", "s3://bkt/{date}/x"),
        ("data_uri", "s3://bkt/{user}", ""),
        ("data_uri", "s3://bkt/{date", ""),
        ("output_uri", "s3://bkt/p/{date}", ""),  # only below runs/
        ("output_uri", "s3://bkt/{date}/runs/x", ""),
        ("output_uri", "s3://bkt/runs/{date}//x", ""),
        ("output_uri", "s3://bkt/runs/../{date}", ""),
        ("output_uri", "s3://bkt/p/runs/{model}", "s3://bkt/p/runs/{model_name}"),
        ("output_uri", "s3://bkt/p/runs/{user}", ""),  # which the back end cannot fill in
    ],
)
def test_a_wrong_field_is_refused(path: str, text: str, suggestion: str) -> None:
    problem = problem_of(RunPlan.parse, defaults() | GOOD | {path: text})
    assert (problem.path, problem.suggestion) == (path, suggestion)


def test_only_the_folders_of_runs_have_a_shape() -> None:
    layout = Layout.parse("s3://bucket/runs/prefix/runs/team/{model_name}/{device}/{date}/")
    assert str(layout.root) == "s3://bucket/runs/prefix"
    assert layout.template == "team/{model_name}/{device}/{date}"
    for gpus, device in ((0, "cpu"), (4, "gpu")):
        folder = address_fields.folder(layout.template, TICK, "digits", gpus)
        assert str(layout.run("r", folder).base) == (
            f"s3://bucket/runs/prefix/runs/team/digits/{device}/2026-03-01/r"
        )
    assert str(layout.dataset("d")) == "s3://bucket/runs/prefix/datasets/d"
    assert str(layout.model("m").base) == "s3://bucket/runs/prefix/models/m"
    assert str(layout.folder_record("r")) == "s3://bucket/runs/prefix/runs/index/r.json"
    # Without fields, output_uri means what it always meant.
    assert Layout.parse("s3://bucket/runs/prefix").template == ""
    assert str(Layout.parse("s3://bucket/runs/x/").run("r").base) == "s3://bucket/runs/x/runs/r"


def test_the_user_is_filled_in_before_the_run() -> None:
    text = "s3://bkt/runs/{user}/{date}"
    assert address_fields.fill_user(text, lambda: "Jo Á/x") == "s3://bkt/runs/Jo-x/{date}"
    assert address_fields.fill_user("s3://bkt/x", lambda: pytest.fail("not needed")) == "s3://bkt/x"
