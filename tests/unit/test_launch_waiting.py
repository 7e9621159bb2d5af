"""Why the pods of a job wait: one line about all of them, and which parameter to change."""

from dataclasses import astuple
from decimal import Decimal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from kfp_tfjob.checks.remedies import remedy, secret_remedy, secrets_of
from kfp_tfjob.cluster import capacity, waiting_reasons
from kfp_tfjob.cluster.pod_summary import pod_summary
from kfp_tfjob.components.launch_tfjob.attempt import Attempt
from kfp_tfjob.components.launch_tfjob.launch_context import Launch
from kfp_tfjob.components.launch_tfjob.time_limits import Snapshot
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.spec import JobSpec
from kfp_tfjob.jobs.verdict import Verdict
from tests.unit.launch_parameters import DEFAULTS

PREFIX = "training.kubeflow.org/"
CPU = (
    "0/3 nodes are available: 2 Insufficient cpu, 1 node(s) didn't match Pod's node"
    " affinity/selector. no new claims to deallocate, preemption: 0/3 nodes are available: 3 No"
    " preemption victims found for incoming pod."
)
TOLD = CPU.partition(". ")[0]


def spec(workers: int = 1, gpus: int = 0, **pods: dict) -> JobSpec:
    values = {"train_workers": workers, "train_gpus": gpus, "train_batch_size": 64 * 51 * 8}
    return JobSpec.parse(**DEFAULTS | values | {"pod": pods})


def job(wanted: JobSpec | None = None) -> dict:
    return build_job(wanted or spec(), Identity("r", 1))


def pod(name: str, phase: str = "Pending", says: str = "", **container: object) -> dict:
    kind, index = name.split("-")
    labels = {PREFIX + "replica-type": kind, PREFIX + "replica-index": index}
    conditions = [{"type": "PodScheduled", "status": "False" if says else "True", "message": says}]
    status = {"phase": phase, "conditions": conditions}
    status["containerStatuses"] = [{"name": "tensorflow", "state": container}] if container else []
    template = job()["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    return {"metadata": {"name": f"j-{name}", "labels": labels}, "spec": template, "status": status}


def event(about: str, reason: str, message: str, kind: str = "Warning") -> dict:
    where = {"name": about}
    return {"involvedObject": where, "reason": reason, "message": message, "type": kind}


def unmade(message: str) -> dict:
    return {"waiting": {"reason": "CreateContainerConfigError", "message": message}}


CHIEF, WORKER = pod("chief-0", "Running"), pod("worker-0", "Running", running={})
DONE, FAILED = pod("chief-0", "Succeeded"), pod("worker-0", "Failed", terminated={"exitCode": 1})
PULL = {"waiting": {"reason": "ErrImagePull", "message": "401"}}
UNMOUNTED = event("j-worker-0", "FailedMount", "no volume")
UNPLACED = event("j-chief-0", "FailedScheduling", CPU)


@pytest.mark.parametrize(
    ("pods", "events", "line"),
    [
        ([CHIEF, pod("worker-0", "Running")], [], "2 of 2 running"),
        ([pod("chief-0"), pod("worker-0")], [], "0 of 2 running, starting: chief-0, worker-0"),
        ([DONE, FAILED], [], "0 of 2 running, 1 done, failed: worker-0 (exit code 1)"),
        ([CHIEF, pod("worker-0", says=CPU)], [], f"1 of 2 running, waiting: worker-0: {TOLD}"),
        (
            [pod("chief-0")],
            [event("j", "FailedCreatePod", "Error creating: exceeded quota: q")],
            "0 of 2 running, starting: chief-0, not created: 1: Error creating: exceeded quota: q",
        ),
        (
            [pod("chief-0", **PULL), pod("worker-0")],
            [UNMOUNTED, event("j-x", "FailedMount", "else")],
            "0 of 2 running, waiting: chief-0: ErrImagePull: 401, waiting: worker-0: no volume",
        ),
        ([pod("chief-0"), WORKER], [UNPLACED], f"1 of 2 running, waiting: chief-0: {TOLD}"),
        ([CHIEF, WORKER], [UNMOUNTED], "2 of 2 running"),  # by now, and the event is an old one
    ],
)
def test_all_pods_in_one_line(pods, events, line):
    assert pod_summary(job(), pods, events) == line


def test_a_job_in_a_queue_shows_what_kueue_says():
    held = job(spec(all={"queue": "team"}))
    held["spec"]["runPolicy"]["suspend"] = True
    assert pod_summary(held, []) == "0 of 2 running, suspended in queue team"
    made = event("j", "CreatedWorkload", "Created Workload: team-a/tfjob-j-1a2b3", "Normal")
    assert waiting_reasons.workloads([made]) == ["tfjob-j-1a2b3"]
    pending = event("tfjob-j-1a2b3", "Pending", "insufficient quota for cpu")
    pending["involvedObject"]["kind"] = "Workload"
    assert pod_summary(held, [], [made, pending]).endswith("team: insufficient quota for cpu")
    line = pod_summary(held, [], [made, pending], place=3)
    assert line.endswith("suspended in queue team at place 3: insufficient quota for cpu")


def test_the_line_is_short_however_many_pods_there_are():
    pods = [pod("chief-0", "Running")]
    pods += [pod(f"worker-{n}", "Running") for n in range(47)]
    pods += [pod(f"worker-{n}", says=CPU) for n in (47, 48, 49)]
    assert pod_summary(job(spec(workers=50)), pods) == (
        f"48 of 51 running, waiting: worker-47, worker-48 and 1 more: {TOLD}"
    )
    many = [pod(f"worker-{n}", says=f"reason {n} " + "x" * 5000) for n in range(50)]
    line = pod_summary(job(spec(workers=50)), many)
    assert len(line) < 900 and line.count("\n") == 0
    assert ": 48, " in line and ": 1" in line


LARGE = spec(worker={"ephemeral_storage": "1Ti"})
AMD = spec(gpus=1, all={"gpu_resource": "amd.com/gpu"})
POOL = spec(all={"node_selector": {"pool": "a"}})
CLAIM = spec(chief={"output_claim": "c"})
NO_MATCH = "node(s) didn't match Pod's node affinity/selector."


@pytest.mark.parametrize(
    ("wanted", "role", "says", "words"),
    [
        (spec(), "chief", "2 Insufficient cpu.", "lower pod.all.cpu (now 4)"),
        (spec(chief={"cpu": 9}), "chief", "1 Insufficient cpu", "lower pod.chief.cpu (now 9)"),
        (spec(chief={"cpu": 9}), "worker", "1 Insufficient cpu", "lower pod.all.cpu (now 4)"),
        (spec(), "worker", "3 Insufficient memory, x", "lower pod.all.memory (now 16Gi)"),
        (
            LARGE,
            "worker",
            "1 Insufficient ephemeral-storage.",
            "lower pod.worker.ephemeral_storage (now 1Ti)",
        ),
        (spec(gpus=8), "worker", "3 Insufficient nvidia.com/gpu.", "lower train_gpus (now 8)"),
        (AMD, "chief", "1 Insufficient amd.com/gpu.", "lower train_gpus (now 1)"),
        (POOL, "chief", f"3 {NO_MATCH}", "correct pod.all.node_selector"),
        (spec(), "chief", "3 node(s) had untolerated taint {gpu: yes}.", "tolerate the taints"),
        (
            CLAIM,
            "chief",
            'persistentvolumeclaim "c" not found',
            "correct pod.chief.output_claim or pod.all.volumes",
        ),
        (spec(), "chief", "Too many pods", ""),
    ],
)
def test_the_parameter_behind_the_words_of_the_scheduler(wanted, role, says, words):
    waits = [pod(f"{role}-0", says=f"0/3 nodes are available: {says}")]
    found = remedy(Verdict.UNSCHEDULABLE, wanted, waits, [])
    assert found.startswith(words) and bool(found) == bool(words), found
    if "Insufficient" in says:
        assert "node_selector" not in found
    assert not remedy(Verdict.LOST, wanted, waits, [])


def test_partly_placed_names_the_parameter_and_what_places_pods_together():
    found = remedy(Verdict.PARTLY_PLACED, spec(), [pod("worker-3", says=CPU)], [])
    assert found.startswith("lower train_workers or pod.all.cpu (now 4), or ") and "Kueue" in found


def test_a_quota_names_itself_and_what_to_lower():
    text = 'Error creating: pods "j-chief-0" is forbidden: exceeded quota: team, requested: '
    text += "requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=4, limited: "
    asked = event("j", "FailedCreatePod", f"{text}requests.nvidia.com/gpu=3")
    found = remedy(Verdict.UNSCHEDULABLE, spec(2, gpus=4), [], [asked])
    for part in ("train_workers (now 2)", "train_gpus (now 4)", "ResourceQuota team"):
        assert part in found


def test_what_pods_ask_for_is_counted_as_the_scheduler_does():
    chief = job()["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]
    large = {"resources": {"requests": {"cpu": "9"}}}
    # One that is over before the sidecar starts, and one that runs beside it.
    before = chief | {"initContainers": [large, *chief["initContainers"]]}
    after = chief | {"initContainers": [*chief["initContainers"], large]}
    assert capacity.of_pod(before)["cpu"] == 9
    assert capacity.of_pod(after)["cpu"] == Decimal("9.25")


KEY, OTHER_KEY = {"secret": "hub", "key": "k"}, {"secret": "hub", "key": "l"}
VOLUMES = [{"secret_name": "g", "path": "/g"}, {"claim": "c", "path": "/c"}]


def test_missing_secrets_are_read_from_containers():
    no_secret = pod("worker-1", **unmade('secret "s" not found'))
    no_key = pod("worker-0", **unmade("couldn't find key k in Secret team-a/s"))
    found = waiting_reasons.missing_secrets([no_secret, no_key])
    assert [(item.name, item.key, item.replica) for item in found] == [
        ("s", "", "worker-1"),
        ("s", "k", "worker-0"),
    ]
    wanted = spec(worker={"env": {"TOKEN": {"secret": "s", "key": "k"}}})
    assert secret_remedy(wanted, found[1:]).endswith(" pod.worker.env.TOKEN")


def test_missing_secrets_of_volumes_are_read_from_events():
    message = 'MountVolume.SetUp failed for volume "secret-0" : secret "gcp" not found'
    events = [event(f"j-{name}", "FailedMount", message) for name in ("worker-0", "worker-1")]
    pods = [pod("worker-0"), pod("worker-1", "Running", running={}), pod("worker-2")]
    found = waiting_reasons.missing_secrets(pods, events)
    assert [(item.name, item.key, item.replica) for item in found] == [("gcp", "", "worker-0")]


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ('configmap "settings" not found', "create the ConfigMap settings with all keys"),
        ("Multi-Attach error for volume", "correct what keeps the pods from starting"),
    ],
)
def test_pods_that_cannot_start_on_their_nodes_are_not_told_to_find_others(message, remedy):
    waiting = pod("worker-0") | {"spec": {"nodeName": "n"}}
    events = [event("j-worker-0", "FailedMount", message)]
    assert waiting_reasons.node_remedy([waiting], events).startswith(remedy)
    assert waiting_reasons.node_remedy([waiting], []) == ""
    assert waiting_reasons.node_remedy([pod("worker-0", says=CPU)], []) == ""


@pytest.mark.parametrize(
    ("workers", "pod", "expected"),
    [
        (1, {"all": {"env": {"A": KEY}}}, [("hub", "k", "pod.all.env.A")]),
        (1, {"worker": {"env": {"A": KEY}}}, [("hub", "k", "pod.worker.env.A")]),
        (0, {"worker": {"env": {"A": KEY}, "image_pull_secret": "p"}}, []),
        (0, {"ps": {"env": {"A": KEY}}}, []),
        (0, {"ps": {"env": {"A": KEY}, "replicas": 1}}, [("hub", "k", "pod.ps.env.A")]),
        (0, {"chief": {"image_pull_secret": "p"}}, [("p", "", "pod.chief.image_pull_secret")]),
        (1, {"all": {"volumes": VOLUMES}}, [("g", "", "pod.all.volumes")]),
        (
            0,
            {"all": {"env": {"A": KEY, "B": OTHER_KEY}, "image_pull_secret": "hub"}},
            [
                ("hub", "", "pod.all.image_pull_secret"),
                ("hub", "k", "pod.all.env.A"),
                ("hub", "l", "pod.all.env.B"),
            ],
        ),
    ],
)
def test_the_secrets_of_a_run_have_their_keys_and_parameters(workers, pod, expected):
    options = {"command": ["python3", "train.py"]} if "ps" in pod else {}
    given = {"pod": pod, "train_workers": workers, "train_options": options}
    found = [astuple(it) for it in secrets_of(JobSpec.parse(**DEFAULTS | given))]
    store = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    assert found == [*(("objstore-cred", key, "storage_secret") for key in store), *expected]


def test_a_secret_that_is_mounted_is_created_from_files():
    wanted = spec(all={"volumes": [{"secret_name": "gcp", "path": "/gcp"}]})
    missing = waiting_reasons.MissingSecret("gcp", "", "chief-0", "not found")
    found = secret_remedy(wanted, [missing])
    assert " gcp --from-file=...`" in found
    assert found.endswith("pod.all.volumes")


def test_a_secret_of_two_variables_is_created_with_both_keys():
    wanted = spec(all={"env": {"A": KEY, "B": OTHER_KEY}})
    missing = waiting_reasons.MissingSecret("hub", "", "chief-0", "not found")
    found = secret_remedy(wanted, [missing])
    assert "generic hub --from-literal=k=... --from-literal=l=...`" in found
    assert "pod.all.env.A" in found and found.endswith("pod.all.env.B")


def test_after_a_minute_the_log_names_the_largest_node_and_the_parameter(caplog):
    lagging = pod("chief-0", says="0/2 nodes are available: 2 Insufficient cpu.")
    has = {"cpu": "2", "memory": "256Gi", "ephemeral-storage": "1Ti"}
    node = {"metadata": {"name": "n7"}, "spec": {}, "status": {"allocatable": has}}
    for nodes, part in (([node], "node, n7, can allocate only 2"), (None, "2 Insufficient cpu")):
        caplog.clear()
        backend = SimpleNamespace(nodes=lambda nodes=nodes: nodes)
        attempt = Attempt(Launch(Mock(run_id="r", task_key=""), spec(), backend), 1)
        assert attempt._name_shortage(Snapshot(job(), [lagging]), 61)
        (line,) = caplog.messages
        assert part in line and "61 s" in line and "lower pod.all.cpu (now 4)" in line
    assert not attempt._name_shortage(Snapshot(job(), [pod("chief-0")]), 61)
