"""Every limit of a job that has not ended: what it is about, when it is over, what it says."""

import pytest

from kfp_tfjob.components.launch_tfjob.attempt_budget import Claim
from kfp_tfjob.components.launch_tfjob.time_limits import JobLimits, Snapshot
from kfp_tfjob.jobs.verdict import Verdict
from kfp_tfjob.options.train import TrainOptions

PREFIX = "training.kubeflow.org/"
OPTIONS = TrainOptions(
    operator_timeout_seconds=60,
    pending_timeout_seconds=100,
    partly_placed_seconds=30,
    image_pull_timeout_seconds=20,
    queue_timeout_seconds=500,
    stall_timeout_seconds=40,
    deadline_seconds=200,
)
NO_KEY = "couldn't find key k in Secret n/s"
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


def job(*conditions: str, suspend: bool = False) -> dict:
    replicas = {"Chief": {"replicas": 1}, "Worker": {"replicas": 1}}
    return {
        "metadata": {"name": "j"},
        "spec": {"runPolicy": {"suspend": suspend}, "tfReplicaSpecs": replicas},
        "status": {"conditions": [{"type": kind, "status": "True"} for kind in conditions]},
    }


def pod(name: str, phase="Running", waiting="", unscheduled="", said="said") -> dict:
    kind, index = name.split("-")
    state = {"waiting": {"reason": waiting, "message": said}} if waiting else {"running": {}}
    status: dict = {"phase": phase, "conditions": []}
    if unscheduled:
        condition = {"type": "PodScheduled", "status": "False", "message": unscheduled}
        status["conditions"].append(condition)
    elif phase != "Pending" or waiting:
        status["containerStatuses"] = [{"name": "tensorflow", "state": state}]
    labels = {PREFIX + "replica-type": kind, PREFIX + "replica-index": index}
    spec = {} if unscheduled else {"nodeName": "n"}
    return {"metadata": {"labels": labels}, "spec": spec, "status": status}


CREATED, RUNNING = job("Created"), job("Running")
BOTH = [pod("chief-0"), pod("worker-0")]
QUOTA = [{"reason": "FailedCreatePod", "message": "pods are forbidden: exceeded quota: gpus"}]
WAITING = [pod(name, "Pending", unscheduled=NO_GPU) for name in ("chief-0", "worker-0")]
PARTLY = [WAITING[0], pod("worker-0")]
PULLING = [pod("chief-0", "Pending", "ImagePullBackOff"), pod("worker-0")]
BROKEN = [pod("chief-0", "Pending", "CreateContainerConfigError"), pod("worker-0")]
FORBIDDEN = [
    {"reason": "FailedCreatePod", "message": 'pods "x" is forbidden: violates PodSecurity'}
]
NO_SECRET = [pod("chief-0", "Pending", "CreateContainerConfigError", said=NO_KEY), pod("worker-0")]
ON_LOST_NODE = [pod("chief-0"), pod("worker-0")]
ON_LOST_NODE[1]["metadata"] |= {
    "deletionTimestamp": "2026-11-26T09:46:50Z",
    "deletionGracePeriodSeconds": 20,
}
ON_LOST_NODE[1]["status"]["conditions"].append(
    {"type": "DisruptionTarget", "status": "True", "message": "NoExecute"}
    | {"reason": "DeletionByTaintManager", "lastTransitionTime": "2026-11-26T09:46:30Z"}
)


@pytest.mark.parametrize(
    ("state", "pods", "events", "limit", "verdict", "words"),
    [
        (job(), [], [], 60, "operator_absent", "no status for 60 s"),
        (job(), [], QUOTA, 100, "unschedulable", "exceeded quota: gpus"),
        (CREATED, WAITING, [], 100, "unschedulable", f"chief-0: {NO_GPU}; worker-0"),
        (CREATED, [], [], 100, "unschedulable", "2 were"),
        (RUNNING, PARTLY, [], 30, "partly_placed", "worker-0"),
        (CREATED, PULLING, [], 20, "image_pull", "tensorflow of chief-0: ImagePullBack"),
        (CREATED, BROKEN, [], 20, "user_error", "CreateContainerConfigError: said"),
        (job("Suspended", suspend=True), [], [], 500, "unschedulable", "queue"),
        (RUNNING, [pod("chief-0", "Succeeded")], [], 60, "operator_absent", "a pod ended"),
        (RUNNING, [BOTH[0], pod("worker-0", "Failed")], [], 60, "operator_absent", "a pod ended"),
        (RUNNING, BOTH, [], 260, "deadline", "longer than its deadline"),
        (job(), [], FORBIDDEN, 5, "refused", "violates PodSecurity"),
        (CREATED, NO_SECRET, [], 5, "user_error", "key k; chief-0"),
        (RUNNING, ON_LOST_NODE, [], 50, "preempted_or_lost", ": DeletionByTaintManager: NoExecute"),
        # Pods that are there hold their nodes while a quota keeps the others from being made.
        (CREATED, [BOTH[0]], QUOTA, 30, "partly_placed", "exceeded quota: gpus"),
    ],
)
def test_a_limit_is_over(state, pods, events, limit, verdict, words):
    seen, now = Snapshot(state, pods, events=events), 0.0
    limits = JobLimits(OPTIONS, clock=lambda: now)
    for now in range(0, limit, 5):  # noqa: B020 - the clock reads it
        assert limits.check(seen) is None, now
        assert limits.next_limit <= limit - now or verdict == "unschedulable"
    now = limit + 1
    found = limits.check(seen)
    assert (str(found.verdict), words in found.sentence) == (verdict, True), found.sentence


def test_a_chief_that_is_silent_is_stalled_and_one_that_cannot_be_heard_is_not():
    limits = JobLimits(OPTIONS, clock=lambda: 0.0)
    assert limits.check(Snapshot(job("Failed"), [pod("chief-0", "Failed")], silence=1e6)) is None
    assert limits.check(Snapshot(RUNNING, BOTH, silence=39)) is None
    assert limits.next_limit == 1  # so the launcher looks again in time
    assert limits.check(Snapshot(RUNNING, BOTH, silence=None)) is None
    assert limits.check(Snapshot(RUNNING, BOTH, silence=40)).verdict == "stalled"


@pytest.mark.parametrize(
    ("waited", "seen", "verdict"),
    [
        (95, [(0, PARTLY), (5, PARTLY)], "partly_placed"),  # of earlier attempts
        # Their nodes came just before the limit.
        (95, [(0, WAITING), (4, PARTLY), (5, PARTLY)], "partly_placed"),
        # What was wrong for a moment is forgotten.
        (0, [(0, PULLING), (19, PULLING), (20, BOTH), (21, PULLING), (40, PULLING)], None),
    ],
)
def test_waiting_adds_up_while_it_lasts(waited, seen, verdict):
    now = 0.0
    limits = JobLimits(OPTIONS, waited=waited, clock=lambda: now)
    for now, pods in seen:
        found = limits.check(Snapshot(RUNNING, pods))
        assert found is None or now == seen[-1][0]
    assert (found and str(found.verdict)) == verdict


def test_time_in_a_queue_counts_apart():
    now = 0.0
    limits = JobLimits(OPTIONS, clock=lambda: now)
    waits, queued = Snapshot(CREATED, WAITING), Snapshot(job("Suspended", suspend=True), [])
    for now, seen in ((0, waits), (90, waits), (95, queued), (395, queued), (400, waits)):
        assert limits.check(seen) is None, now
    now = 450
    assert limits.check(waits) is None
    assert limits.queued == pytest.approx(305)
    now = 505
    assert limits.check(waits).verdict == "unschedulable"


def chain(*checkpoints: int, placed: tuple[bool, ...] = ()) -> Claim:
    """Return the claim after attempts that found these newest checkpoints when they ended."""
    claim = Claim.first(1, 0)
    for number, checkpoint in enumerate(checkpoints):
        is_placed = placed[number] if placed else True
        verdict = Verdict.LOST if is_placed else Verdict.PARTLY_PLACED
        claim = claim.next(number + 2, checkpoint, verdict)
    return claim


@pytest.mark.parametrize(
    ("claim", "fruitless"),
    [
        (chain(), 0),
        (chain(0, 0, 0), 3),
        (chain(5, 9, 14, 20, 31), 0),
        (chain(0, 0, 7), 0),
        (chain(0, 0, 7, 7), 1),
        # It fell back on an older one and came no further than before.
        (chain(7, 3, 7), 2),
        (chain(0, 0, placed=(False, False)), 0),
        (chain(0, 0, placed=(True, False)), 1),
    ],
)
def test_only_attempts_without_a_newer_checkpoint_count_and_only_in_a_row(claim, fruitless):
    assert claim.fruitless == fruitless
