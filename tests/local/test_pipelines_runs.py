"""Finding runs, and what they look like, against a fake API server."""

from datetime import UTC, datetime

import kfp_server_api as api
import pytest

from kfp_tfjob.pipelines.kubeflow.connection import BackEnd, Connection
from kfp_tfjob.pipelines.kubeflow.errors import UnknownRunError
from kfp_tfjob.pipelines.kubeflow.runs import find_run, list_runs, named, read_run
from kfp_tfjob.storage.errors import ConfigurationError
from tests.local.fake_pipelines import FakePipelines

OURS = {
    "model_name": "digits",
    "output_uri": "s3://bucket/p",
    "pod": {"all": {"env": {"API_KEY": "x"}}},
}


@pytest.fixture
def back_end(fake: FakePipelines) -> BackEnd:
    return Connection(fake.host).open()


def add(fake: FakePipelines, name: str, state: str = "RUNNING", **parameters: object):
    config = api.V2beta1RuntimeConfig(parameters=OURS | parameters)
    return fake.add(name, state, runtime_config=config)


def test_only_runs_of_this_pipeline_are_listed_the_newest_first(fake, back_end):
    add(fake, "one")
    fake.add("of another pipeline")
    add(fake, "two", model_name="other")
    assert [run.name for run in list_runs(back_end)] == ["two", "one"]
    assert [run.name for run in list_runs(back_end, model="digits")] == ["one"]


def test_a_run_is_found_by_id_prefix_name_or_last(fake, back_end):
    one, two = add(fake, "one"), add(fake, "two")
    other = fake.add("of another pipeline")  # is never meant by last
    for run in (one, other):
        for given in (run.run_id, run.run_id[:9], run.display_name):
            assert find_run(back_end, given).run_id == run.run_id
    assert find_run(back_end, "last").run_id == two.run_id
    with pytest.raises(UnknownRunError) as found:
        find_run(back_end, "three")
    assert "two" in found.value.problems[0].expected
    add(fake, "one")
    with pytest.raises(ConfigurationError) as found:
        find_run(back_end, "one")
    assert one.run_id[:8] in found.value.problems[0].expected
    assert len(named(back_end, "one")) == 2


def test_an_archived_run_is_found_but_not_listed(fake, back_end):
    old = add(fake, "same", "FAILED")
    old.storage_state = "ARCHIVED"
    assert list(list_runs(back_end)) == []
    assert find_run(back_end, "same").is_archived
    new = add(fake, "same")
    assert find_run(back_end, "same").run_id == new.run_id
    assert find_run(back_end, "last").run_id == new.run_id


def test_secrets_are_masked_and_the_folder_is_known(fake, back_end):
    run = read_run(back_end, add(fake, "one").run_id)
    assert run.parameters["pod"] == {"all": {"env": {"API_KEY": "******"}}}
    assert run.folder == f"s3://bucket/p/runs/{run.run_id}"
    shaped = add(fake, "two", output_uri="s3://bucket/p/runs/{date}")
    assert read_run(back_end, shaped.run_id).folder == ""


def test_steps_are_in_the_order_of_the_pipeline(fake, back_end):
    """As a real back end shows them: drivers, a task for each try, and no state for left out."""
    raw = add(fake, "one")
    epoch = datetime(1, 1, 1, tzinfo=UTC)
    for name, state in (
        ("launch-tfjob-driver", "RUNNING"),
        ("prepare-data", "SUCCEEDED"),
        ("prepare-data-driver", "SUCCEEDED"),
        ("preflight(0)", "FAILED"),
        ("preflight(1)", "SUCCEEDED"),
        ("preflight", "SUCCEEDED"),
        ("executor(0)", "SUCCEEDED"),
        ("exit-handler-1", "RUNNING"),
        ("evaluate", None),
    ):
        fake.task(raw, name, state, end_time=epoch)
    run = read_run(back_end, raw.run_id)
    assert [(step.name, step.state) for step in run.steps] == [
        ("preflight", "succeeded"),
        ("prepare_data", "succeeded"),
        ("launch_tfjob", "pending"),
    ]
    assert run.current.name == "launch_tfjob"
    fake.task(raw, "launch-tfjob", "RUNNING", end_time=epoch)
    launch = read_run(back_end, raw.run_id).current
    assert launch.state == "running" and launch.seconds < 900


def test_a_run_that_is_not_over_has_no_end(fake, back_end):
    """The back end writes 1970 for a time that it does not know."""
    raw = add(fake, "one")
    raw.finished_at = datetime(1970, 1, 1, tzinfo=UTC)
    run = read_run(back_end, raw.run_id)
    assert run.finished == "" and 0 <= run.seconds < 900 and not run.is_over
