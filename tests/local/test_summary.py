"""The summary of a run, which its last step shows: read from what the steps left in the store."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kfp_tfjob.common.errors import StepError
from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.workflow import FailedTask
from kfp_tfjob.components.notify_end import of_end
from kfp_tfjob.components.step import FAILURE_FILE, Step
from kfp_tfjob.components.summary import summary
from kfp_tfjob.jobs.attempt_record import AttemptEnd, EndedPod
from kfp_tfjob.jobs.failure_record import Failure
from kfp_tfjob.pipelines.local.home import Home
from kfp_tfjob.registry.champion import Champion
from kfp_tfjob.registry.training_cache import TrainedRun
from kfp_tfjob.storage.address import S3Address
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
from tests.local import published

VERDICT = published.VERDICT | {
    "blessed": False,
    "reasons": ["same model as champion 1", "recall of on_bad_row <b>low</b>: 0.1"],
    "rows": 269,
    "champion": None,
    "metrics": {"accuracy": 0.97123, "auc": None, "own/cost": 1411.0},
    "dataset_digest": "d1",
}
SCHEMA = {
    "task": "regression",
    "label": {"name": "on_bad`row"},
    "features": [{"name": name, "type": "float32"} for name in "ab"],
    "splits": {"train": {"rows": 1258}, "validation": {"rows": 270}, "test": {"rows": 269}},
}


@pytest.fixture
def step(store: Store, base: S3Address) -> Step:
    return Step("publish", "run-1", Layout(base), store)


def leave(step: Step, address: S3Address, value: dict[str, Any]) -> None:
    step.store.write(address, json.dumps(value).encode())


def end(attempt: int, verdict: str, seconds: float) -> AttemptEnd:
    pod = EndedPod("chief-0", f"tfjob-{attempt}-chief-0", "Succeeded", "node", "", ())
    return AttemptEnd(
        attempt=attempt,
        job=f"tfjob-run-1-{attempt}",
        namespace="team_a",
        verdict=verdict,
        code=0,
        sentence="",
        remedy="",
        conditions=(),
        pods=(pod, pod),
        seconds={"queued": 0.0, "pending": 3.2, "running": seconds},
    )


def leave_run(step: Step, **verdict: Any) -> None:
    dataset = step.layout.dataset("d1")
    verdict = VERDICT | {"dataset_uri": str(dataset)} | verdict
    leave(step, step.run.evaluation / "verdict.json", verdict)
    leave(step, dataset / "schema.json", SCHEMA)
    for done in (end(1, "preempted_or_lost", 61.4), end(2, "succeeded", 32.0)):
        step.store.write(step.run.attempts / f"{done.attempt:04d}.json", b"{}")
        step.store.write(step.run.attempts / f"{done.attempt:04d}.end.json", done.to_bytes())


def champion(run_id: str) -> Champion:
    return Champion(1, 7, "s3://b/models/m/versions/7", run_id, "w", "s", "d1", {}, "s3://b/v")


def test_a_run_that_is_not_published_says_why_and_where_everything_lies(step: Step) -> None:
    leave_run(step)
    step.store.write(step.layout.model("m_1").champion(1), champion("run-0").to_bytes())
    text = summary(step, "m_1")
    assert text.startswith("# Not published: `m_1`")
    why = "same model as champion 1; recall of `on_bad_row` `<b>low</b>`: 0.1."
    assert f"**Why:** {why}" in text
    assert "**On 269 test rows:** `accuracy` 0.9712, `own/cost` 1,411" in text
    data = "2 features for the label `on_bad'row`; rows: train 1,258, validation 270, test 269"
    assert data in text
    assert "2 pods, pending 3 s, running 61 s" in text
    assert "`tfjob-run-1-1` in namespace `team_a`" in text and "attempt 2 succeeded" in text
    assert "**Champion:** version 7, `s3://b/models/m/versions/7`" in text
    places = (step.layout.dataset("d1"), step.run.model, step.run.evaluation, step.run.base)
    assert all(f"`{place}`" in text for place in places)
    assert f"`kfp-tfjob tensorboard {step.run.base} --endpoint {step.store.endpoint}`" in text
    # The page makes italics of underscores, does not wrap fences and draws no bullets.
    assert "_" not in "".join(text.split("`")[::2])
    assert "```" not in text and "\n- " not in text and "in train" not in text
    leave_run(step, also_in_train=268)
    assert "**Known rows:** 268 of 269 " in summary(step, "m_1")
    step.store.write(step.layout.dataset("d1") / "suspicious.txt", b"'id' tells the label")
    assert "**SUSPICIOUS:** 'id' tells the label." in summary(step, "m_1")


def test_the_curves_of_a_local_run_need_no_keys(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILURE_FILE, str(Home(tmp_path).run("run-1") / "failure.json"))
    leave_run(step)
    assert f"`kfp-tfjob tensorboard run-1 --home {tmp_path}`" in summary(step, "m_1")


def test_it_tells_a_blessed_run_from_one_that_is_published(step: Step) -> None:
    leave_run(step, blessed=True)
    assert summary(step, "m").startswith("# Blessed: `m`")
    step.store.write(step.layout.model("m").champion(1), champion("run-1").to_bytes())
    assert summary(step, "m").startswith("# Published: `m`, version 7")
    # Another run was promoted before the summary was written, or a retry writes it later.
    step.store.write(step.layout.model("m").champion(2), champion("run-2").to_bytes())
    assert summary(step, "m").startswith("# Published: `m`, version 7")
    assert of_end(step, "m").addresses["version"] == "s3://b/models/m/versions/7"


def test_a_run_that_published_several_models_is_done(step: Step) -> None:
    """The exit task of such a pipeline knows at most one of their names."""
    for key in ("eu", "us"):
        leave_run(replace(step, task_key=key), blessed=True, model_name=f"m-{key}")
        record = replace(champion("run-1"), task_key=key)
        step.store.write(step.layout.model(f"m-{key}").champion(1), record.to_bytes())
    for model_name in ("m-eu", ""):
        report = finish.run(step, model_name)
        assert report.failure is None
        assert "# Published: `m-eu`" in report.markdown and "`m-us`" in report.markdown


OOM = FailedTask("launch_tfjob", False, "OOMKilled (exit code 137)", "", "", [])


@pytest.mark.parametrize(
    ("left", "verdict"),
    [
        (None, "cancelled"),
        (ClusterReport(terminated=True), "cancelled"),
        (ClusterReport(terminated=False, trouble="forbidden"), "cancelled"),
        (ClusterReport(terminated=False, cancelled=["tfjob-run-1-us-1"]), "cancelled"),
        (ClusterReport(terminated=False, failed=[OOM]), "out_of_memory"),
    ],
)
def test_a_task_that_did_not_end_is_not_hidden_by_another_that_published(
    step: Step, left: ClusterReport | None, verdict: str
) -> None:
    leave_run(replace(step, task_key="eu"), blessed=True)
    record = replace(champion("run-1"), task_key="eu")
    step.store.write(step.layout.model("m").champion(1), record.to_bytes())
    us = replace(step, task_key="us").run
    if left is None or not left.failed:  # else the cluster knows of a step before it
        step.store.write(us.attempt(1), b"{}")
    report = finish.run(step, "m", left)
    assert report.failure and report.failure.verdict == verdict
    assert "version 7 of `m`" in report.markdown
    assert "published nothing" not in report.markdown

    step.store.delete(step.run.failure("json"))
    step.store.write(us.manifest, b"{}")  # it trained, and the pipeline evaluates no model of it
    if not (left and left.failed):
        assert finish.run(step, "m", left).failure is None


def test_a_pipeline_without_publish_is_done(step: Step) -> None:
    leave_run(step, blessed=True)
    report = finish.run(step, "m", ClusterReport(terminated=False))
    assert report.failure is None and report.markdown.startswith("# Blessed: `m`")
    assert of_end(step, "m").outcome == "succeeded"
    killed = finish.run(step, "m", ClusterReport(terminated=True)).failure
    assert killed and killed.verdict == "cancelled"


def test_a_task_for_which_nothing_has_changed_has_ended(step: Step) -> None:
    earlier = TrainedRun("run-0", str(step.run.base), str(step.run.verdict))
    leave(step, replace(step, task_key="eu").run.unchanged, vars(earlier))
    assert finish.run(step, "m").failure is None


def test_a_publish_that_failed_after_its_record_has_published(step: Step) -> None:
    leave_run(step, blessed=True)
    step.store.write(step.layout.model("m").champion(1), champion("run-1").to_bytes())
    failure = Failure.of("publish", StepError("the disk is full"))
    step.store.write(step.run.failure("json"), failure.to_bytes())
    text = finish.run(step, "m").markdown
    assert "version 7 of `m`.\n\n" in text


def test_what_is_missing_makes_it_shorter_and_fails_nothing(step: Step) -> None:
    leave(step, step.run.evaluation / "verdict.json", VERDICT)
    title, why, *_, last = summary(step, "m").strip().split("\n\n")
    assert title == "# Not published: `m`" and "same model" in why
    assert last.endswith(f"output: `{step.run.base}`")
    step.store.write(step.run.evaluation / "verdict.json", b"{}")
    assert summary(step, "m").endswith(f"output: `{step.run.base}`\n")
