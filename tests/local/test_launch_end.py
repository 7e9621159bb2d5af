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
from kfp_tfjob.components.finish.leftover_jobs import Left
from kfp_tfjob.components.finish.page import explain
from kfp_tfjob.components.launch_tfjob import earlier_job, engine
from kfp_tfjob.components.launch_tfjob.launch import Launch
from kfp_tfjob.components.launch_tfjob.records import Claim
from kfp_tfjob.components.step import Step
from kfp_tfjob.jobs.attempt_record import AttemptEnd, end_of, read_ends
from kfp_tfjob.jobs.job_end import judge_chief
from kfp_tfjob.jobs.labels import STOP_WITHIN_ANNOTATION
from kfp_tfjob.jobs.status import is_over
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import Judgement, Verdict
from tests.local import test_launch_jobs as jobs
from tests.local.test_launch_alone import values
from tests.local.test_launch_jobs import MARK, _left
from tests.waiting import until

backend, script, spec, step, tell = jobs.backend, jobs.script, jobs.spec, jobs.step, jobs.tell


def _ends_of(step: Step) -> dict[int, AttemptEnd | None]:
    return read_ends(step.store, step.run)


@pytest.fixture
def process(tmp_path, backend, base, script, repository, step):
    """A launcher in a process of its own, as a step has it; its job waits for an order."""
    given = values(base, train_options={"command": ["python3", str(script), str(tmp_path)]})
    body = f"""
from kfp_tfjob.components.launch_tfjob import engine
from kfp_tfjob.components.step import Step
from kfp_tfjob.storage.layout import Layout
from kfp_tfjob.storage.store import Store
step = Step("launch_tfjob", {step.run_id!r}, Layout.parse("{base}"), Store())
engine.run(step, {given!r}, "curves", "job")
"""
    extra = {"KFP_TFJOB_BACKEND": "local", "KFP_TFJOB_SECRETS": str(tmp_path / "secrets")}
    extra |= {"KFP_TFJOB_WORK": str(tmp_path / "work")}
    extra |= {"PYTHONPATH": str(repository), MARK: str(tmp_path)}
    found = subprocess.Popen([sys.executable, "-c", body], env=os.environ | extra)
    yield found
    found.kill()
    found.wait()


def test_a_launcher_that_is_ended(process, backend, spec, step, tell, tmp_path):
    until(lambda: list(step.store.list(step.run.output)))  # its sidecar is at work too
    process.terminate()
    assert process.wait(300) == 143 and not _left(str(tmp_path))  # it has ended its job
    end = _ends_of(step)[1]  # from the chief's own pod, without any launcher
    assert (end.attempt, end.job, end.verdict, end.code) == (1, "", "preempted_or_lost", 143)
    record = json.loads(step.store.read(step.run.chief_end(1)))
    assert (record["code"], record["signal"], record["attempt"]) == (143, 15, 1)
    # The next launcher leaves a record of both attempts.
    tell(chief_0="exit 0")
    engine.train(step, spec(), backend)
    ends = _ends_of(step)
    assert {number: end.attempt for number, end in ends.items()} == {1: 1, 2: 2}
    assert [end.job for end in ends.values()] == [f"tfjob-{step.run_id}-{n}" for n in (1, 2)]
    assert [end.verdict for end in ends.values()] == ["preempted_or_lost", "succeeded"]


def _start_without_launcher(step, spec, backend):
    """Do what a launcher does until it has created its job, and no more."""
    known = Launch(step, spec, backend)
    manifest = known.manifest(1)
    assert known.records.keep_claim(Claim.first(1, 0), spec, manifest)
    backend.create(manifest)
    return known, manifest["metadata"]["name"]


def _recorded(step):
    names = [item.address.name for item in step.store.list(step.run.attempts)]
    return step.run.chief_end(1).name in names


@pytest.mark.parametrize("told", ["by its launcher", "by the chief alone"])
def test_a_job_that_is_stopped_without_a_launcher_is_cancelled(
    backend, spec, step, tell, tmp_path, told
):
    """Terminate: the launcher stops the job, and is killed before the job has ended."""
    known, name = _start_without_launcher(step, spec(), backend)
    until((tmp_path / "chief-0.1.json").exists)
    if told == "by its launcher":
        engine.tell_end(known, "a user terminated it")
        assert _ends_of(step)[1].verdict == "cancelled"
    backend.annotate_chief(name, {STOP_WITHIN_ANNOTATION: "9s"})
    until(lambda: _recorded(step))
    record = json.loads(step.store.read(step.run.chief_end(1)))
    assert (record["attempt"], record["code"], record["stop_within"]) == (1, 143, 9.0)
    end = _ends_of(step)[1]
    assert (end.attempt, end.verdict) == (1, "cancelled")
    assert "stop within 9 s" in end.sentence and record["time"] in end.sentence


def test_a_chief_that_is_killed_has_a_record_of_this_attempt(backend, spec, step, tell, tmp_path):
    """Its supervisor can write nothing, and the folder may have the end of an earlier attempt."""
    _, name = _start_without_launcher(step, spec(), backend)
    until((tmp_path / "chief-0.1.json").exists)
    output = Path(json.loads((tmp_path / "chief-0.1.json").read_text())["OUTPUT_DIR"])
    earlier = {"run_id": step.run_id, "attempt": 0, "code": 1, "reason": "of an earlier attempt"}
    (output / ".uploader").mkdir(exist_ok=True)
    (output / ".uploader/end.json").write_text(json.dumps(earlier))
    tell(chief_0="die 1")
    until(lambda: _recorded(step))
    end = _ends_of(step)[1]
    assert (end.attempt, end.verdict) == (1, "preempted_or_lost")
    assert "earlier" not in end.sentence and "no record" in end.sentence

    # The exit task completes the record from the cluster, and keeps it.
    seen = end_of(1, TFJOB, None, name, Judgement(Verdict.OUT_OF_MEMORY, "it was killed"), ())
    assert _ends([step], Left(ends=[seen])) == [seen]
    assert _ends_of(step)[1].job == name
    assert _ends_of(step)[1].verdict == "out_of_memory"


def test_the_exit_task_keeps_the_record_of_a_job_that_never_had_pods(step):
    step.store.write(step.run.attempt(1), b"{}")
    waited = Judgement(Verdict.UNSCHEDULABLE, "it waited in a queue")
    own = end_of(1, TFJOB, None, "j", waited, (), {"queued": 1800.0})
    step.store.write(step.run.attempt_end(1), own.to_bytes())
    seen = end_of(1, TFJOB, None, "j", Judgement(Verdict.CANCELLED, "it was still there"), ())
    assert _ends([step], Left(ends=[seen])) == [own] == [_ends_of(step)[1]]


def test_a_chief_that_succeeds_without_a_launcher(backend, spec, step, tell):
    _, name = _start_without_launcher(step, spec(), backend)
    tell(chief_0="exit 0")
    until(lambda: _recorded(step))
    assert _ends_of(step)[1].verdict == "succeeded"
    until(lambda: is_over(backend.get(name)))
    assert engine.train(step, spec(), backend).attempts == 1
    (end,) = _ends_of(step).values()
    assert (end.job, end.verdict) == (name, "succeeded")
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
        ({"code": 145, "signal": 0}, "store_unavailable"),
        ({"code": None, "signal": 0}, "preempted_or_lost"),
        ({"code": 0, "signal": 0}, "succeeded"),
    ],
)
def test_the_verdict_of_the_chiefs_own_record(chief, verdict):
    assert judge_chief(RECORD | chief).verdict == verdict


def test_a_record_of_an_unknown_version_is_no_record(step):
    step.store.write(step.run.attempt(1), b"{}")
    step.store.write(step.run.chief_end(1), b'{"ended": "somehow"}')
    assert _ends_of(step) == {1: None}


OTHER = replace(TFJOB, name="PyTorchJob")


def test_the_next_launcher_completes_what_only_the_chief_recorded(backend, spec, step):
    step.store.write(step.run.attempt(1), b"{}")
    step.store.write(step.run.chief_end(1), json.dumps(RECORD).encode())
    alone = _ends_of(step)[1]
    assert (alone.job, alone.kind, alone.is_final) == ("", "", False)
    assert TFJOB.name not in explain([alone])
    known = Launch(step, replace(spec(), kind=OTHER), backend)
    unseen = Judgement(Verdict.LOST, "nobody saw it")
    for _ in range(2):
        earlier_job.record_end(known, 1, unseen)
        end = _ends_of(step)[1]
        assert (end.kind, end.is_final) == (OTHER.name, True)
        assert end.sentence.count(RECORD["time"]) == 1


def test_the_record_of_a_launcher_that_was_killed_is_replaced(backend, spec, step, tell):
    known, name = _start_without_launcher(step, spec(), backend)
    engine.tell_end(known, "a user terminated it")
    assert not _ends_of(step)[1].is_final
    tell(chief_0="exit 0")
    until(lambda: is_over(backend.get(name)))
    earlier_job.record_end(known, 1, Judgement(Verdict.LOST, "nobody saw it"))
    end = _ends_of(step)[1]
    assert end.is_final and (end.verdict, len(end.pods)) == ("succeeded", 1)
