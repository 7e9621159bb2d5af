"""How an attempt ends whose launcher is not there: in every case a record of it names the attempt.

Launchers, jobs, supervisors, sidecars and the S3 server are real processes.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kfp_tfjob.components.finish.engine import _ends
from kfp_tfjob.components.finish.leftover_jobs import ClusterReport
from kfp_tfjob.components.finish.run_report import explain
from kfp_tfjob.components.launch_tfjob import earlier_job, engine
from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.launch_context import Launch
from kfp_tfjob.jobs.attempt_record import end_of
from kfp_tfjob.jobs.job_diagnosis import ChiefEnd, judge_chief
from kfp_tfjob.jobs.labels import STOP_WITHIN_ANNOTATION
from kfp_tfjob.jobs.status import is_over
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from tests.local import test_launch_jobs as jobs
from tests.local.test_launch_alone import values
from tests.local.test_launch_jobs import Launcher, left
from tests.waiting import until

launcher, program = jobs.launcher, jobs.program


@pytest.fixture
def process(launcher: Launcher, base, repository):
    """A launcher in a process of its own, as a step has it; its job waits for an order."""
    given = values(base, train_options={"command": launcher.program.command})
    body = f"""
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
step = Step("launch_tfjob", {launcher.step.run_id!r}, Layout.parse("{base}"), Store())
engine.run(step, {given!r}, "curves", "job")
"""
    folder = launcher.program.folder
    extra = {"KFP_TFJOB_BACKEND": "local", "KFP_TFJOB_SECRETS": str(folder / "secrets")}
    extra |= {"KFP_TFJOB_WORK": str(folder / "work"), "PYTHONPATH": str(repository)}
    found = subprocess.Popen([sys.executable, "-c", body], env=os.environ | extra)
    yield found
    found.kill()
    found.wait()


def test_a_launcher_that_is_ended(process, launcher: Launcher):
    until(lambda: list(launcher.store.list(launcher.run.output)))  # its sidecar is at work too
    process.terminate()
    assert process.wait(300) == 143
    assert not left(str(launcher.program.folder))  # it has ended its job
    end = launcher.ends()[1]  # from the chief's own pod, without any launcher
    assert (end.attempt, end.job, end.verdict, end.code) == (1, "", "preempted_or_lost", 143)
    record = json.loads(launcher.store.read(launcher.run.chief_end(1)))
    assert (record["code"], record["signal"], record["attempt"]) == (143, 15, 1)
    # The next launcher leaves a record of both attempts.
    launcher.tell(chief_0="exit 0")
    launcher.train()
    ends = launcher.ends()
    assert {number: end.attempt for number, end in ends.items()} == {1: 1, 2: 2}
    assert [end.job for end in ends.values()] == [launcher.job(1), launcher.job(2)]
    assert [end.verdict for end in ends.values()] == ["preempted_or_lost", "succeeded"]


def _start_without_launcher(launcher: Launcher) -> Launch:
    """Do what a launcher does until it has created its job, and no more."""
    spec = launcher.spec()
    known = Launch(launcher.step, spec, launcher.backend)
    manifest = known.manifest(1)
    assert known.records.save_claim(Claim.first(1, 0), spec, manifest)
    launcher.backend.create(manifest)
    return known


def _wait_for_record(launcher: Launcher) -> None:
    """Wait until the chief has recorded its end."""
    until(lambda: launcher.store.has(launcher.run.chief_end(1)))


@pytest.mark.parametrize("told", ["by its launcher", "by the chief alone"])
def test_a_job_that_is_stopped_without_a_launcher_is_cancelled(launcher: Launcher, told):
    """Terminate: the launcher stops the job, and is killed before the job has ended."""
    known = _start_without_launcher(launcher)
    launcher.program.wait()
    if told == "by its launcher":
        engine.record_cancelled(known, "a user terminated it")
        assert launcher.ends()[1].verdict == "cancelled"
    launcher.backend.annotate_chief(launcher.job(1), {STOP_WITHIN_ANNOTATION: "9s"})
    _wait_for_record(launcher)
    record = json.loads(launcher.store.read(launcher.run.chief_end(1)))
    assert (record["attempt"], record["code"], record["stop_within"]) == (1, 143, 9.0)
    end = launcher.ends()[1]
    assert (end.attempt, end.verdict) == (1, "cancelled")
    assert "stop within 9 s" in end.sentence and record["time"] in end.sentence


def test_a_chief_that_is_killed_has_a_record_of_this_attempt(launcher: Launcher):
    """Its supervisor can write nothing, and the folder may have the end of an earlier attempt."""
    _start_without_launcher(launcher)
    launcher.program.wait()
    output = Path(launcher.program.environment()["OUTPUT_DIR"])
    earlier = {"run_id": launcher.step.run_id, "attempt": 0, "code": 1, "reason": "an earlier end"}
    (output / ".uploader").mkdir(exist_ok=True)
    (output / ".uploader/end.json").write_text(json.dumps(earlier))
    launcher.tell(chief_0="die 1")
    _wait_for_record(launcher)
    end = launcher.ends()[1]
    assert (end.attempt, end.verdict) == (1, "preempted_or_lost")
    assert "earlier" not in end.sentence and "no record" in end.sentence

    # The exit task completes the record from the cluster, and keeps it.
    killed = Judgement(Verdict.OUT_OF_MEMORY, "it was killed")
    seen = end_of(1, TFJOB, None, launcher.job(1), killed, ())
    assert _ends([launcher.step], ClusterReport(ends=[seen])) == [seen]
    end = launcher.ends()[1]
    assert (end.job, end.verdict) == (launcher.job(1), "out_of_memory")


def test_the_exit_task_keeps_the_record_of_a_job_that_never_had_pods(launcher: Launcher):
    launcher.store.write(launcher.run.attempt(1), b"{}")
    waited = Judgement(Verdict.UNSCHEDULABLE, "it waited in a queue")
    own = end_of(1, TFJOB, None, "j", waited, (), {"queued": 1800.0})
    launcher.store.write(launcher.run.attempt_end(1), own.to_bytes())
    seen = end_of(1, TFJOB, None, "j", Judgement(Verdict.CANCELLED, "it was still there"), ())
    assert _ends([launcher.step], ClusterReport(ends=[seen])) == [own] == [launcher.ends()[1]]


def test_a_chief_that_succeeds_without_a_launcher(launcher: Launcher):
    _start_without_launcher(launcher)
    launcher.tell(chief_0="exit 0")
    _wait_for_record(launcher)
    assert launcher.ends()[1].verdict == "succeeded"
    until(lambda: is_over(launcher.backend.get(launcher.job(1))))
    assert launcher.train().attempts == 1
    (end,) = launcher.ends().values()
    assert (end.job, end.verdict) == (launcher.job(1), "succeeded")
    assert [item.exit_code for pod in end.pods for item in pod.of_chief] == [0]


RECORD = {"run_id": "r", "attempt": 1, "time": "2026-11-23T10:00:00+00:00", "seconds": 2.0}
RECORD |= {"code": 143, "signal": 15, "step": 7, "reason": "stopped", "stop_within": None}


@pytest.mark.parametrize(
    ("chief", "verdict"),
    [
        ({}, "preempted_or_lost"),
        ({"stop_within": 60.0}, "cancelled"),
        ({"code": 5}, "orphaned"),
        ({"code": 3, "signal": 0}, "user_error"),
        ({"code": 255, "signal": 0}, "user_error"),
        ({"code": 145, "signal": 0}, "store_unavailable"),
        ({"code": None, "signal": 0}, "preempted_or_lost"),
        ({"code": 0, "signal": 0}, "succeeded"),
    ],
)
def test_the_verdict_of_the_chiefs_own_record(chief, verdict):
    end = ChiefEnd.from_bytes(json.dumps(RECORD | chief).encode())
    assert judge_chief(end).verdict == verdict


def test_a_record_of_an_unknown_version_is_no_record(launcher: Launcher):
    launcher.store.write(launcher.run.attempt(1), b"{}")
    launcher.store.write(launcher.run.chief_end(1), b'{"ended": "somehow"}')
    assert launcher.ends() == {1: None}


OTHER = replace(TFJOB, name="PyTorchJob")


def test_the_next_launcher_completes_what_only_the_chief_recorded(launcher: Launcher):
    launcher.store.write(launcher.run.attempt(1), b"{}")
    launcher.store.write(launcher.run.chief_end(1), json.dumps(RECORD).encode())
    alone = launcher.ends()[1]
    assert (alone.job, alone.kind, alone.is_final) == ("", "", False)
    assert TFJOB.name not in explain([alone])
    known = Launch(launcher.step, replace(launcher.spec(), kind=OTHER), launcher.backend)
    unseen = Judgement(Verdict.LOST, "nobody saw it")
    for _ in range(2):
        earlier_job.record_end(known, 1, unseen)
        end = launcher.ends()[1]
        assert (end.kind, end.is_final) == (OTHER.name, True)
        assert end.sentence.count(RECORD["time"]) == 1


def test_the_record_of_a_launcher_that_was_killed_is_replaced(launcher: Launcher):
    known = _start_without_launcher(launcher)
    engine.record_cancelled(known, "a user terminated it")
    assert not launcher.ends()[1].is_final
    launcher.tell(chief_0="exit 0")
    until(lambda: is_over(launcher.backend.get(launcher.job(1))))
    earlier_job.record_end(known, 1, Judgement(Verdict.LOST, "nobody saw it"))
    end = launcher.ends()[1]
    assert end.is_final and (end.verdict, len(end.pods)) == ("succeeded", 1)
