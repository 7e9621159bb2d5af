"""Verdicts from the status of jobs and pods, in the shape Kubernetes has them."""

import pytest

from kfp_tfjob.jobs.job_diagnosis import judge, with_log
from kfp_tfjob.jobs.status import job_condition
from kfp_tfjob.jobs.verdict import Verdict
from tests.unit.cluster_objects import pod

LOST = Verdict.LOST
FULL = "low on resource: ephemeral-storage"


def job(*kinds: str) -> dict:
    conditions = [{"type": kind, "status": "True", "message": kind} for kind in kinds]
    # The order of conditions means nothing, and old ones stay with status False.
    return {"status": {"conditions": [{"type": "Running", "status": "False"}, *conditions]}}


@pytest.mark.parametrize(
    ("conditions", "pods", "verdict", "code"),
    [
        (["Succeeded"], [pod("chief-0", 0)], "succeeded", None),
        (["Failed", "Succeeded"], [pod("chief-0", 0), pod("worker-0", 1)], "succeeded", None),
        (["Succeeded", "Failed"], [pod("chief-0", 143), pod("worker-0", 1)], "user_error", 1),
        (["Failed"], [pod("chief-0"), pod("worker-0", 1)], "user_error", 1),
        (["Failed"], [pod("chief-0", 138, 1), pod("worker-0", 3, 2)], "user_error", 3),
        (["Failed"], [pod("chief-0", 4)], "user_error", 4),
        (["Failed"], [pod("chief-0", 2, container="setup")], "user_error", 2),
        (["Failed"], [pod("chief-0", 3, container="uploader")], "preempted_or_lost", 1),
        # A peer that is killed makes the others fail with whatever code their program gives.
        (["Failed"], [pod("chief-0", 1, 2), pod("worker-0", 137, 1)], "preempted_or_lost", 137),
        (["Failed"], [pod("chief-0", 1, 1), pod("worker-0", 137, 1)], "preempted_or_lost", 137),
        (["Failed"], [pod("chief-0", 1, 1), pod("worker-0", 137, 2)], "user_error", 1),
        # 138 and 143 are what the others end with, whichever is seen first.
        (["Failed"], [pod("chief-0", 143, 1), pod("worker-0", 1, 2)], "user_error", 1),
        (["Failed"], [pod("chief-0", 138)], "preempted_or_lost", 138),
        (["Failed"], [pod("chief-0", 142)], "preempted_or_lost", 142),
        (["Failed"], [pod("chief-0", 139)], "preempted_or_lost", 139),
        (["Failed"], [pod("chief-0", 143)], "preempted_or_lost", 143),
        # A program's own code, as of sys.exit(-1); 255 also stands for a lost container.
        (["Failed"], [pod("chief-0", 255)], "user_error", 255),
        (["Failed"], [pod("chief-0", 255, killed="Unknown")], "preempted_or_lost", 255),
        (["Failed"], [pod("chief-0", 145)], "store_unavailable", 145),
        (["Failed"], [pod("chief-0", 5)], "orphaned", 5),
        (["Failed"], [pod("worker-0", 137, killed="OOMKilled")], "out_of_memory", 2),
        (["Failed"], [pod("chief-0", 143, reason="DeadlineExceeded")], "deadline", 2),
        (["Failed"], [pod("chief-0", 137, reason="Evicted", message=FULL)], "out_of_disk", 2),
        (["Failed"], [pod("chief-0", 137, reason="Evicted")], "preempted_or_lost", 1),
        (["Failed"], [], "preempted_or_lost", 1),
    ],
)
def test_judge(conditions, pods, verdict, code):
    found = judge(job(*conditions), pods)
    assert found.verdict == verdict
    if code is not None:
        assert found.code == code


def test_a_condition_that_is_false_says_nothing():
    assert job_condition(job("Failed"), "running") is None


def test_every_verdict_says_what_to_do_and_only_infrastructure_is_tried_again():
    assert all(verdict.remedy for verdict in Verdict)
    recovered = {verdict for verdict in Verdict if verdict.recoverable}
    infrastructure = {Verdict.LOST, Verdict.STORE_UNAVAILABLE, Verdict.ORPHANED}
    assert recovered == infrastructure | {Verdict.PARTLY_PLACED}


def removed(name: str, at: int, code: int | None = None, **status) -> dict:
    """A pod that was told at second `at` to go, within 30 seconds."""
    found = pod(name, code, at + 1, **status)
    gone = f"2026-01-01T00:00:{at + 30:02d}Z"
    found["metadata"] |= {"deletionTimestamp": gone, "deletionGracePeriodSeconds": 30}
    return found


def failed_at(second: int) -> dict:
    found = job("Failed")
    for item in found["status"]["conditions"]:
        item["lastTransitionTime"] = f"2026-01-01T00:00:{second:02d}Z"
    return found | {"metadata": {}}


TAINT = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
TAINT |= {"message": "Taint manager", "lastTransitionTime": "2026-01-01T00:00:05Z"}
TAINTED = removed("worker-0", 5, conditions=[TAINT])


@pytest.mark.parametrize(
    ("seconds", "pods", "verdict", "words"),
    [
        # A drain: the operator fails the job while the chief still saves, then deletes the worker.
        (6, [removed("chief-0", 5), removed("worker-0", 6)], "preempted_or_lost", "chief-0 was"),
        (6, [removed("chief-0", 5, 143)], "preempted_or_lost", "chief-0 was deleted"),
        (6, [removed("chief-0", 5, 1)], "preempted_or_lost", "chief-0 was deleted"),
        (9, [removed("worker-0", 5, 137), pod("chief-0", 1, 8)], "preempted_or_lost", "worker-0"),
        (9, [removed("worker-0", 5, 137), pod("chief-0", 1, 5)], "preempted_or_lost", "worker-0"),
        # The other way round: a worker fails, and the operator deletes the chief.
        (6, [removed("chief-0", 6, 143), pod("worker-0", 1, 5)], "user_error", "worker-0"),
        (6, [removed("chief-0", 6, 143), pod("worker-0", 1, 6)], "user_error", "worker-0"),
        (6, [removed("chief-0", 8, 143), pod("worker-0", 3, 6)], "user_error", "worker-0"),
        (6, [removed("chief-0", 5), pod("worker-0", 2, 6)], "user_error", "worker-0"),
        (6, [removed("chief-0", 7, 143), pod("worker-0", 137, 5)], "preempted_or_lost", "worker-0"),
        # Both in the same second.
        (6, [removed("chief-0", 6, 143)], "preempted_or_lost", "chief-0 was deleted"),
        (9, [removed("chief-0", 6, conditions=[TAINT])], "preempted_or_lost", "TaintManager"),
        (
            5,
            [removed("chief-0", 5), TAINTED],
            "preempted_or_lost",
            "worker-0 was removed from its node",
        ),
        (9, [pod("chief-0", reason="NodeLost")], "preempted_or_lost", "NodeLost"),
        (9, [pod("chief-0", reason="OutOfcpu")], "preempted_or_lost", "OutOfcpu"),
    ],
)
def test_a_pod_that_was_taken_away_is_told_from_one_that_failed(seconds, pods, verdict, words):
    found = judge(failed_at(seconds), pods)
    assert (str(found.verdict), words in found.sentence) == (verdict, True), found.sentence


def test_a_job_that_is_gone_or_goes_was_cancelled_unless_it_is_over():
    gone = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert judge(None, []).verdict == Verdict.CANCELLED
    assert judge(job("Running") | gone, [pod("chief-0")]).verdict == Verdict.CANCELLED
    assert judge(job("Succeeded") | gone, [pod("chief-0", 0)]).verdict == Verdict.SUCCEEDED
    assert judge(job("Failed") | gone, [pod("chief-0", 2)]).verdict == Verdict.USER_ERROR


def test_a_sidecar_that_ends_over_and_over_is_named_where_nothing_was_stored():
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    sidecar = {"name": "uploader", "restartCount": 3, "lastState": ended, "state": {"waiting": {}}}
    pods = [pod("chief-0", 145, initContainerStatuses=[sidecar])]
    found = judge(job("Failed"), pods)
    assert found.verdict == Verdict.STORE_UNAVAILABLE and found.code == 145
    assert "uploader" in found.sentence and "137 (OOMKilled)" in found.sentence
    assert "3 times" in found.sentence
    pods = [pod("chief-0", 1, initContainerStatuses=[sidecar])]
    assert "uploader" not in judge(job("Failed"), pods).sentence


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers", "out_of_disk"),
        ('Container tensorflow exceeded its local ephemeral storage limit "1Gi"', "out_of_disk"),
        ("The node was low on resource: ephemeral-storage. Threshold quantity: 9", LOST),
        (
            "The node was low on resource: ephemeral-storage. Container tensorflow was using 9Gi,"
            " request is 1Gi, has larger consumption of ephemeral-storage. ",
            "out_of_disk",
        ),
        ("The node was low on resource: memory. Container tensorflow was using 9Gi", LOST),
        ("Pod was rejected: The node had condition: [DiskPressure]. ", LOST),
    ],
)
def test_a_node_that_is_full_is_told_from_a_pod_that_took_too_much(message, verdict):
    evicted = pod("chief-0", reason="Evicted", message=message)
    assert judge(job("Failed"), [evicted]).verdict == verdict


def test_an_end_that_the_kubelet_has_lost_has_no_time():
    chief = removed("chief-0", 5, 137, killed="ContainerStatusUnknown")
    ended = chief["status"]["containerStatuses"][0]["state"]["terminated"]
    ended |= {"startedAt": None, "finishedAt": None}
    found = judge(failed_at(6), [chief])
    assert found.verdict == LOST and found.sentence.startswith("chief-0 was deleted")
    del chief["metadata"]["deletionTimestamp"]
    assert judge(failed_at(6), [chief, pod("worker-0", 1, 5)]).verdict == "user_error"


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ('runc create failed: exec: "python3": executable file not found in $PATH', "user_error"),
        ("executable file `python3` not found: No such file or directory", "user_error"),
        ("error running prestart hook #0: nvidia-container-cli: driver not loaded", LOST),
    ],
)
def test_an_image_without_the_program_is_told_from_a_node_that_cannot_start_it(message, verdict):
    chief = pod("chief-0", 128, killed="StartError")
    chief["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = message
    assert judge(job("Failed"), [chief]).verdict == verdict


OF_KERAS_3 = (
    "}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a"
    " Tensor."
)
PER_WORKER = (
    "ValueError: To use this dataset, you need to pass this dataset to"
    " ClusterCoordinator.create_per_worker_dataset."
)
OF_PS = f'  File "/x/keras/src/utils/traceback_utils.py", line 122\n    raise e\n{PER_WORKER}'
CREATOR = "AttributeError: module 'keras.utils' has no attribute 'experimental'"
SHARDING = (
    "Could not apply FILE based sharding: the dataset only has 1 file(s), which is not enough"
)
EMPTY = "ValueError: Unexpected result of `train_function` (Empty logs). This could be due to"
OPTION, POLICY = "train_options.keras to 2", "AutoShardPolicy.DATA"


@pytest.mark.parametrize(
    ("code", "text", "remedy"),
    [
        *((1, text, OPTION) for text in (OF_KERAS_3, OF_PS, CREATOR)),
        *((1, text, POLICY) for text in (SHARDING, EMPTY)),
        (1, "ValueError: a mistake", ""),
        (1, f"File 'own.py', line 3\n{PER_WORKER}", ""),  # a mistake in a loop of its own
        (137, OF_KERAS_3, ""),
    ],
)
def test_a_known_mistake_names_its_remedy(code, text, remedy):
    found = judge(job("Failed"), [pod("chief-0", code), pod("worker-0", code)])
    judged = with_log(found, ["x", *text.splitlines()])
    assert (judged.verdict, judged.code) == (found.verdict, found.code)
    assert remedy in judged.remedy and (judged == found) == (not remedy)
    assert "chief-0" in judged.sentence
