"""The record of an attempt, read back, and what a person reads of it."""

from kfp_tfjob.jobs import log_masking
from kfp_tfjob.jobs.attempt_record import AttemptEnd, end_of, pods_of
from kfp_tfjob.jobs.log_masking import MASK, Mask
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.jobs.verdict import ContainerFailure, Judgement, Verdict

PREFIX = "training.kubeflow.org/"


def pod(kind: str, index: int, phase: str, state: dict, **status) -> dict:
    labels = {PREFIX + "replica-type": kind, PREFIX + "replica-index": str(index)}
    container = {"name": "tensorflow", "restartCount": 0, "state": state}
    return {
        "metadata": {"name": f"j-{kind}-{index}", "labels": labels},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [container]} | status,
    }


FAILED = pod("worker", 0, "Failed", {"terminated": {"exitCode": 3, "reason": "Error"}})
RUNNING = pod("chief", 0, "Running", {"running": {}})
WAITING = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "a|b"}
PENDING = pod("worker", 1, "Pending", {}, conditions=[WAITING], containerStatuses=[])
CONDITION = {"type": "Failed", "status": "True", "message": "1 Worker replica(s) failed."}
JOB = {"metadata": {"namespace": "team-a"}, "status": {"conditions": [CONDITION]}}
CAUSE = ContainerFailure("worker-0", "tensorflow", 3, "Error", "", "")


def end(attempt: int = 2) -> AttemptEnd:
    pods = pods_of([FAILED, RUNNING, PENDING], lambda replica, container: [f"{replica} spoke"])
    judgement = Judgement(Verdict.USER_ERROR, CAUSE.sentence, CAUSE)
    seconds, gpus = {"pending": 4.04, "running": 60.0}, {"pending": 8, "running": 7200}
    return end_of(attempt, TFJOB, JOB, f"j-{attempt}", judgement, pods, seconds, gpus)


def test_a_secret_is_blotted_out(tmp_path, monkeypatch):
    monkeypatch.setenv("STORAGE_SECRET_DIR", str(tmp_path))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token/of+this=process")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("the-secret-key\n")
    mask = Mask()
    assert mask("x=the-secret-key; token/of+this=process") == f"x={MASK}; {MASK}"
    assert mask("nothing") == "nothing"


def test_a_secret_that_is_an_ordinary_word_leaves_a_record_that_can_be_read(monkeypatch) -> None:
    monkeypatch.setattr(log_masking, "_hidden", {"seconds", "123456", "kubeflow"})
    end = AttemptEnd(
        *(1, "j", "kubeflow", "succeeded", 0, "a kubeflow of 123456 seconds", "", (), ()),
        seconds={"running": 123456.0},
    )
    read = AttemptEnd.from_bytes(end.to_bytes())
    assert (read.namespace, read.seconds) == ("kubeflow", {"running": 123456.0})
    assert read.sentence == "a ****** of ****** ******"
