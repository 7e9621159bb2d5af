"""kfp-tfjob schedule, with a fake API server: what is shown, made, replaced and never ended."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import kfp_server_api as api
import pytest
from click.testing import Result

from kfp_tfjob import Client
from kfp_tfjob.common.errors import ConfigurationError
from kfp_tfjob.pipelines.kubeflow.schedules import Trigger
from tests.local.fake_pipelines import FakePipelines, Refusal
from tests.local.laptop import kfp_tfjob
from tests.problems import problem_of

GIVEN = ("--data", "s3://data/{date-1d}/", "--label", "y", "--name", "m", "--yes")
GIVEN += ("--output", "s3://results/p/runs/{model_name}/{date}")
DAILY = ("--cron", "0 0 3 * * *")
NOW = datetime.now(UTC)

pytestmark = pytest.mark.usefixtures("laptop")


def schedule(*arguments: object, code: int | None = None) -> Result:
    return kfp_tfjob("schedule", *arguments, code=code)


def make(package: Path, *more: object, code: int = 0) -> Result:
    when = () if "--cron" in more else DAILY
    return schedule(*GIVEN, "--pipeline", package, *when, *more, code=code)


def run_of(fake: FakePipelines, made: api.V2beta1RecurringRun, state: str = "RUNNING", **more):
    return fake.add("tick", state, recurring_run_id=made.recurring_run_id, **more)


def test_the_answer_of_the_back_end_is_shown(fake, package):
    found = make(package, "--concurrency", 2)
    (made,) = fake.schedules.values()
    assert made.status == "ENABLED" and made.no_catchup is True and made.max_concurrency == "2"
    assert made.trigger.cron_schedule.cron == "0 0 3 * * *"
    # The fields stay in the parameters: the controller starts each run with the same ones.
    assert made.runtime_config.parameters["data_uri"] == "s3://data/{date-1d}/"
    yesterday = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    assert f"data:      s3://data/{yesterday}/" in found.output
    answer = found.output.partition("stored this schedule:")[2]
    for part in (made.recurring_run_id, "active", "0 0 3 * * *"):
        assert part in answer, found.output
    (listed,) = json.loads(schedule("list", "--json").output)
    assert (listed["when"], listed["at_once"]) == ("0 0 3 * * *", 2)
    assert listed["model"] == "m"
    plan = json.loads(make(package, "--dry-run", "--json").output)
    assert plan["data"] == f"s3://data/{yesterday}/" and len(fake.schedules) == 1


def test_what_the_back_end_refuses_is_shown_as_it_says_it(fake, package):
    answer = "End of range (7) above maximum (6): 7"
    fake.fails("/recurringruns", Refusal(400, answer), method="POST")
    found = make(package, "--cron", "0 0 3 * * 7", code=2)
    assert answer in found.output
    assert not fake.schedules


@pytest.mark.parametrize("cron", ["0 0 3 * * ?", "@daily", "@every 1h30m"])
def test_what_the_back_end_accepts_is_sent_as_it_is(fake, package, cron):
    make(package, "--cron", cron)
    (made,) = fake.schedules.values()
    assert made.trigger.cron_schedule.cron == cron
    assert json.loads(schedule("list", "--json").output)[0]["when"] == cron


@pytest.mark.parametrize("cron", ["0 3 * * *", "0 0 0 3 * * *"])
def test_an_expression_has_six_fields(cron):
    """The back end takes five, with the first as the seconds."""
    problem = problem_of(Trigger, cron)
    assert f"{len(cron.split())} fields" in problem.received
    assert "'0 0 3 * * *'" in problem.fix


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--cron", ""), "--cron"),
        (("--cron", "0 3 * * *"), "5 fields"),
        (("--data", "s3://data/{day}/"), "data_uri"),
        (("--output", "s3://results/{date}"), "runs/"),
        (("--set", "train_options.when_unchanged=stop"), "train_options.when_unchanged"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_made(fake, package, more, expected):
    found = make(package, *more, code=2)
    assert expected in found.output
    assert not fake.schedules


def test_a_schedule_of_the_same_name_is_replaced_and_never_twice_active(fake, package):
    active = []

    def watch(method: str, path: str) -> None:
        active.append(sum(it.status == "ENABLED" for it in fake.schedules.values()))

    make(package)
    (old,) = fake.schedules
    fake.broken = watch
    found = make(package, "--cron", "@every 6h")
    assert f"({old[:8]}, 0 0 3 * * *)" in found.output
    (new,) = fake.schedules.values()
    assert new.recurring_run_id != old and new.status == "ENABLED"
    assert max(active) == 1


def test_runs_in_flight_are_named_and_go_on(fake, package):
    make(package)
    (old,) = fake.schedules.values()
    run = run_of(fake, old, scheduled_at=NOW)
    found = make(package, "--cron", "0 0 4 * * *")
    assert "1 run " in found.output
    assert f"{old.recurring_run_id[:8]}, 0 0 3 * * *) is kept, paused" in found.output
    assert len(fake.schedules) == 2 and old.status == "DISABLED"
    # Its own name means the active one; the old one goes when its run has ended.
    refused = schedule("delete", old.recurring_run_id)
    assert refused.exit_code == 2 and run.run_id[:8] in refused.output
    assert "kfp-tfjob cancel" in refused.output and len(fake.schedules) == 2
    run.state = "SUCCEEDED"
    make(package)
    assert len(fake.schedules) == 1 and old.recurring_run_id not in fake.schedules


def test_one_with_runs_in_flight_is_not_deleted(fake, package):
    make(package)
    (made,) = fake.schedules.values()
    run = run_of(fake, made)
    kept = schedule("delete", made.recurring_run_id[:8])
    assert kept.exit_code == 2 and "only paused" in kept.output
    assert made.status == "DISABLED"
    run.state = "CANCELED"
    assert schedule("delete", "m").exit_code == 0 and not fake.schedules
    unknown = schedule("delete", "m")
    assert unknown.exit_code == 2 and "none yet" in unknown.output


def test_what_others_scheduled_is_left_alone(fake, package):
    other = api.V2beta1RecurringRun(
        recurring_run_id="x" * 8, display_name="m", status="ENABLED", created_at=NOW
    )
    fake.schedules["x" * 8] = other
    make(package)
    assert other.status == "ENABLED" and len(fake.schedules) == 2
    assert len(json.loads(schedule("list", "--json").output)) == 1


def add_schedule(fake: FakePipelines) -> None:
    """Add a schedule without data, as REST may create one."""
    values = {"model_name": "m", "output_uri": "s3://results/p"}
    fake.schedules["y" * 8] = api.V2beta1RecurringRun(
        recurring_run_id="y" * 8,
        display_name="m",
        status="ENABLED",
        created_at=NOW,
        runtime_config=api.V2beta1RuntimeConfig(parameters=values),
    )


def test_a_connection_may_be_given_before_and_after_the_subcommand(fake, tmp_path):
    """--token-file after `delete` dropped --host before it, and another schedule was deleted."""
    token = tmp_path / "token"
    token.write_text("t")
    with FakePipelines() as other:
        add_schedule(fake)
        add_schedule(other)
        other.token = "t"
        schedule("--host", other.host, "delete", "m", "--token-file", token, code=0)
        assert not other.schedules and len(fake.schedules) == 1
        schedule("--host", other.host, "delete", "m", "--host", fake.host, code=0)
        assert not fake.schedules


def test_a_schedule_without_data_is_listed(fake):
    add_schedule(fake)
    (found,) = json.loads(schedule("list", "--json").output)
    assert found["schedule_id"] == "y" * 8


def test_the_python_client_refuses_what_is_wrong(fake, package):
    client = Client()
    given = {"data_uri": "s3://data/{date}/", "data_label": "y", "model_name": "m"}
    given |= {"output_uri": "s3://results/p", "train_epochs": 0}
    with pytest.raises(ConfigurationError):
        client.schedule(given, Trigger("@hourly"), client.package(package))
