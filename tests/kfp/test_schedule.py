"""A recurring run with three ticks, of which the first trains; and the end of its schedule."""

import pytest

from tests.kfp.lab import Lab, until
from tests.kfp.prerequisites import command

pytestmark = pytest.mark.kfp


def test_schedule(lab: Lab, row) -> None:
    options = {"when_unchanged": "skip"}
    schedule = lab.sdk.create_recurring_run(
        lab.experiment_id,
        f"{lab.name}-schedule",
        interval_second=30,
        max_concurrency=1,
        no_catchup=True,
        params=lab.parameters("schedule", train_options=options),
        pipeline_id=lab.pipeline_id,
        version_id=lab.version_id,
    ).recurring_run_id

    def third() -> list[str]:
        found = lab.sdk.list_runs(experiment_id=lab.experiment_id, page_size=100).runs or []
        mine = sorted((it.created_at, it.run_id) for it in found if it.recurring_run_id == schedule)
        lab.started[:] = [run_id for _, run_id in mine]
        return lab.started[2:]

    until("the third tick", third)
    first, *others = runs = lab.started[:3]
    refused = command("schedule", "delete", schedule)
    assert refused.returncode == 2, refused.stderr
    assert runs[2][:8] in refused.stderr  # it is in flight
    assert str(lab.sdk.get_recurring_run(schedule).status) == "DISABLED"
    assert [lab.finished(run) for run in runs] == ["SUCCEEDED"] * 3
    assert lab.bucket.champions("schedule") == [first]
    for run in others:
        assert lab.bucket.document(f"runs/{run}/unchanged.json")["run_id"] == first
    for run in runs:
        row(run)
    deleted = command("schedule", "delete", schedule)
    assert deleted.returncode == 0, deleted.stderr
    assert not lab.sdk.list_recurring_runs(experiment_id=lab.experiment_id).recurring_runs
    assert [lab.state(run) for run in runs] == ["SUCCEEDED"] * 3
