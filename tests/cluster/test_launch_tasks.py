"""Two launches in one run: each has its own jobs, and what ends the run ends both."""

import pytest

from kfp_tfjob.components.finish import engine as finish
from kfp_tfjob.components.finish.leftover_jobs import end_jobs_on
from kfp_tfjob.components.step import Step
from tests.cluster.launches import UNTIL_GO, Launch
from tests.cluster.workflows import Workflow

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def step(launch: Launch, workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launchers are a pod of the Workflow of the run."""
    launch.be_step_of(workflow, monkeypatch)


def whole_run(launch: Launch) -> Step:
    return Step("finish", launch.step.run_id, launch.step.layout, launch.step.store)


def test_one_of_two_launchers_is_killed_and_adopts_only_its_own_job(launch):
    eu, us = launch.task("eu"), launch.task("us")
    processes = {task.step.task_key: task.start_process(UNTIL_GO, gpus=1) for task in (eu, us)}
    for task in (eu, us):
        task.wait_said()
    before = {name: uid(launch, name) for name in launch.jobs()}
    assert before.keys() == {eu.name(), us.name()}
    processes["eu"].kill()
    processes["eu"].wait()
    eu.start(eu.spec(UNTIL_GO, gpus=1), retry=True)  # its replacement, as after a drain
    eu.go()
    ended = eu.join()
    assert (ended.verdict, ended.launched.attempts) == ("succeeded", 1), ended.message
    # The other one was not touched, and its own launcher follows it to its end.
    assert us.phase() == "Running" and processes["us"].poll() is None
    us.go()
    assert processes["us"].wait(240) == 0
    assert {name: uid(launch, name) for name in launch.jobs()} == before
    for task in (eu, us):
        run = task.step.run
        assert task.step.store.numbers(run.attempts) == [1]
        assert task.step.store.read_manifest(run.manifest).attempt == 1
    left = end_jobs_on(launch.backend(), launch.step.run_id)
    assert {(end.task_key, end.verdict) for end in left.ends} == {
        ("eu", "succeeded"),
        ("us", "succeeded"),
    }
    ending = finish.run(whole_run(launch), "", left)
    assert ending.failure is None and "task `us`" in ending.markdown


def test_terminate_ends_the_jobs_of_every_task(launch, workflow):
    """Also that of a launcher that is down at this moment."""
    eu, us = launch.task("eu"), launch.task("us")
    processes = {
        task.step.task_key: task.start_process("time.sleep(600)", gpus=1) for task in (eu, us)
    }
    for task in (eu, us):
        task.wait_said()
    processes["eu"].kill()
    processes["eu"].wait()
    assert launch.gpus_held() == 2
    workflow.terminate()
    launch.wait_for(lambda: not launch.jobs() and launch.gpus_held() == 0)
    processes["us"].wait(240)


def uid(launch: Launch, name: str) -> str:
    job = launch.backend().get(name)
    assert job is not None
    return job["metadata"]["uid"]
