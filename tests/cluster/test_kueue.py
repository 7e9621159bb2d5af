"""Jobs in the queues of a real Kueue, with the integrations that it ships and with TFJob's.

`make test-kueue` runs them on a test cluster of their own; one of them, which waits for quota, runs
in `make test-cluster` too.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml

from kfp_tfjob.checks.engine import At, check
from kfp_tfjob.checks.finding import Finding, Status, only
from kfp_tfjob.checks.subject import Subject, dry_run
from kfp_tfjob.cluster import capacity
from kfp_tfjob.common.errors import StepError
from kfp_tfjob.jobs.job_identity import Identity
from kfp_tfjob.jobs.jobset import JOBSET
from kfp_tfjob.jobs.kinds import AUTOMATIC
from kfp_tfjob.jobs.manifest import build_job
from kfp_tfjob.jobs.tfjob import TFJOB
from kfp_tfjob.options.container_images import TRAINER
from kfp_tfjob.uploader import push
from tests.cluster import test_same_weights as same_weights
from tests.cluster.cluster import SCARCE_NODE
from tests.cluster.kueue_controller import Kueue
from tests.cluster.launches import ROOT, UNTIL_GO, Launch, client_of, may_list_nodes, on_both_kinds
from tests.cluster.node import SCARCE, tolerate
from tests.cluster.workloads import container, pod, template

pytestmark = pytest.mark.kueue

API = "kueue.x-k8s.io/v1beta2"
QUOTA = "400m"
FOLDER = ROOT / "deploy" / "optional" / "kueue"
# Of deploy/optional/kueue: each GPU type on a node, with the label and taint of its flavor.
GPU_NODES = {"a100": "node-2", "t4": "node-1"}
COVERED = ("cpu", "memory", "ephemeral-storage")
_on_jobset = pytest.mark.parametrize("kind", [JOBSET], indirect=True, ids=["JobSet"])


@pytest.fixture(scope="module")
def as_shipped(kueue: Kueue) -> None:
    kueue.start()


@pytest.fixture(scope="module")
def with_tfjobs(kueue: Kueue) -> None:
    """Kueue that manages TFJobs too; the tests below use it, so it replaces the one above."""
    added = yaml.safe_load((FOLDER / "integrations.yaml").read_text())
    kueue.start(added["integrations"]["frameworks"])


def _queue(
    launch: Launch,
    *more: str,
    cpu: str = QUOTA,
    covered: tuple[str, ...] = COVERED,
    teams: tuple[str, ...] = ("team",),
    amount: str = "8",
) -> str:
    """Make queues whose only flavor is a node with a taint; return the name of the first.

    They are of one cohort.

    Args:
        teams: The names of the LocalQueues, one for each ClusterQueue.
        amount: How many of the other resources each has.
    """
    name = launch.namespace
    amounts = {"cpu": cpu, "memory": "4Gi", "ephemeral-storage": "4Gi"}
    amounts = {it: amounts[it] for it in covered} | dict.fromkeys(more, amount)
    flavor = {
        "nodeLabels": {"kubernetes.io/hostname": SCARCE_NODE},
        "nodeTaints": [{"key": SCARCE, "value": SCARCE_NODE, "effect": "NoSchedule"}],
        "tolerations": [tolerate(SCARCE, SCARCE_NODE)],
    }
    resources = [{"name": it, "nominalQuota": amount} for it, amount in amounts.items()]
    group = {
        "coveredResources": list(amounts),
        "flavors": [{"name": name, "resources": resources}],
    }
    queue = {
        "cohortName": name,
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
        "resourceGroups": [group],
    }
    _create(launch, "ResourceFlavor", name, spec=flavor)
    for team in teams:
        _create(launch, "ClusterQueue", f"{name}-{team}", spec=queue)
        _create(launch, "LocalQueue", team, spec={"clusterQueue": f"{name}-{team}"})
    launch.wait_for(lambda: all(_is_active(launch, team) for team in teams))
    return teams[0]


def _create(launch: Launch, kind: str, name: str, **content: Any) -> None:
    body = {"apiVersion": API, "kind": kind, "metadata": {"name": name}, **content}
    where = ("-n", launch.namespace) if kind == "LocalQueue" else ()
    launch.cluster.kubectl("create", *where, "-f", "-", stdin=json.dumps(body))


def _is_active(launch: Launch, queue: str) -> bool:
    found = launch.cluster.kubectl("get", "localqueue", queue, "-n", launch.namespace, "-o", "json")
    conditions = json.loads(found).get("status", {}).get("conditions") or ()
    return any((it["type"], it["status"]) == ("Active", "True") for it in conditions)


def _use_up(
    launch: Launch, queue: str, limits: Mapping[str, str] | None = None, **labels: str
) -> None:
    """Run another Job, and wait until it runs.

    Args:
        limits: Its resources; None for the whole CPU quota.
        labels: More labels of the Job, without `kueue.x-k8s.io/` and with `_` for `-`.
    """
    main = container("import time; time.sleep(600)", image=TRAINER)
    main["resources"] = {"requests": {"cpu": QUOTA, "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
    if limits is not None:
        main["resources"] = {"limits": {"cpu": "10m", "memory": "64Mi", **limits}}
    labels = {key.replace("_", "-"): value for key, value in labels.items()} | {"queue-name": queue}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "other",
            "labels": {f"kueue.x-k8s.io/{key}": value for key, value in labels.items()},
        },
        "spec": {"template": template(main)},
    }
    launch.cluster.kubectl("create", "-n", launch.namespace, "-f", "-", stdin=json.dumps(body))
    launch.wait_for(lambda: any(it.startswith("other") for it in _pods(launch, "Running")))


def _end_other(launch: Launch) -> None:
    launch.cluster.kubectl("delete", "job", "other", "-n", launch.namespace, "--wait=false")


def _pods(launch: Launch, phase: str = "") -> list[str]:
    found = launch.cluster.core.list_namespaced_pod(launch.namespace).items
    return [it.metadata.name for it in found if phase in ("", it.status.phase)]


def _subject(launch: Launch, **options: Any) -> Subject:
    """Return a run's job in the queue `team`, for the checks of preflight."""
    spec = launch.spec(pod={"all": {"queue": "team"}}, **options)
    return Subject(client_of(launch.kubeconfig, launch.namespace, 20), spec)


def _held(launch: Launch) -> dict[str, bool]:
    """Return whether a job of each kind comes back suspended from a dry run."""
    found = {}
    for kind in AUTOMATIC:
        subject = _subject(launch, job=kind.name.lower())
        found[kind.name] = kind.suspends(dry_run(subject.api.of(kind), subject.job))
    return found


def _unqueued(found: list[Finding]) -> list[str]:
    texts = (it.text for it in only(found, Status.WARNING))
    return [text for text in texts if "would start without waiting in queue team" in text]


def test_as_shipped_kueue_manages_jobsets_alone(launch, as_shipped):
    _queue(launch)
    assert _held(launch) == {"TFJob": False, "JobSet": True}
    assert _subject(launch, job="auto").settled.spec.kind is JOBSET
    assert not _unqueued(list(check(_subject(launch, job="auto"), At.RUN)))
    assert Subject(_subject(launch).api, launch.spec(job="auto")).settled.spec.kind is TFJOB
    said = _unqueued(list(check(_subject(launch, job="tfjob"), At.RUN)))
    assert "kubeflow.org/tfjob" in said[0]


def test_with_its_integration_kueue_manages_tfjobs_too(launch, with_tfjobs):
    _queue(launch)
    assert _held(launch) == {"TFJob": True, "JobSet": True}
    assert _subject(launch, job="auto").settled.spec.kind is TFJOB
    assert not _unqueued(list(check(_subject(launch, job="tfjob"), At.RUN)))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(TFJOB, id="TFJob"),
        pytest.param(JOBSET, id="JobSet", marks=pytest.mark.cluster),
    ],
    indirect=True,
)
def test_a_run_waits_for_quota(launch, with_tfjobs, said):
    queue = _queue(launch)
    _use_up(launch, queue)
    there = _pods(launch)
    spec = launch.spec(UNTIL_GO, pod={"all": {"queue": queue}})
    assert capacity.of_job(build_job(spec, Identity("run", 1)))["cpu"] <= 0.4
    launch.start(spec)
    words = "0 of 1 running, suspended in queue team at place 1: couldn't assign flavors to pod set"
    launch.wait_for(lambda: any(words in line for line in said.messages))
    line = next(line for line in said.messages if words in line)
    assert " quota for cpu" in line
    assert _pods(launch) == there and launch.ended is None
    _end_other(launch)
    launch.wait_said()
    running = launch.cluster.core.read_namespaced_pod(launch.pod(), launch.namespace).spec
    assert running.node_name == SCARCE_NODE
    assert running.node_selector["kubernetes.io/hostname"] == SCARCE_NODE
    assert [it.value for it in running.tolerations if it.key == SCARCE] == [SCARCE_NODE]
    launch.go()
    launch.succeeds()


@_on_jobset
@pytest.mark.parametrize("fault", ["no such queue", "a resource that the queue does not cover"])
def test_a_run_that_is_never_admitted(launch, with_tfjobs, said, fault):
    queue = "nowhere" if fault == "no such queue" else _queue(launch, covered=COVERED[:2])
    spec = launch.spec(pod={"all": {"queue": queue}}, queue_timeout_seconds=8)
    ended = launch.run(spec)
    launch.ended_with("unschedulable", 2, jobs=0)
    assert any(f"queue {queue}" in line for line in said.messages)
    if queue == "team":
        assert "ephemeral-storage" in ended.message
    assert not _pods(launch)


@on_both_kinds
def test_nodes_that_only_the_flavor_tolerates(launch, with_tfjobs, scarce):
    """Half of the job waits for GPUs that another pod holds, and preflight finds nothing wrong."""
    gpu = str(scarce["gpu_resource"])
    queue = _queue(launch, gpu, cpu="2")
    on_node: Mapping[str, Any] = {"tolerations": [tolerate(SCARCE, SCARCE_NODE)]}
    other = pod("other", container("import time; time.sleep(600)", {gpu: 4}), **on_node)
    launch.cluster.core.create_namespaced_pod(launch.namespace, other)
    launch.wait_for(lambda: _pods(launch, "Running"))
    pods = {"all": {"queue": queue, "gpu_resource": gpu}}
    with may_list_nodes(launch):
        # A chief that waits for its worker, as a trainer does.
        body = "if attempt == 1: time.sleep(600)"
        spec = launch.spec(body, workers=1, gpus=4, pod=pods, partly_placed_seconds=4)
        api = client_of(launch.kubeconfig, launch.namespace, 20).of(spec.kind)
        launch.wait_for(launch.backend().nodes)
        assert not only(check(Subject(api, spec), At.RUN), Status.WAITS, Status.PROBLEM)
        launch.start(spec)
        launch.wait_for(lambda: launch.ended or launch.name(2) in launch.jobs())
        launch.cluster.core.delete_namespaced_pod("other", launch.namespace, grace_period_seconds=0)
        ended = launch.join()
    assert ended.code == 0, ended.message
    launch.ended_with("succeeded", 0, jobs=1)
    assert ended.launched.attempts > 1


@on_both_kinds
def test_a_preempted_run_continues_to_the_same_weights(launch, with_tfjobs, said, tmp_path):
    """The other Job has a higher priority and takes the whole quota while the run trains."""
    queue = _queue(launch, cpu="1")
    _create(launch, "WorkloadPriorityClass", launch.namespace, value=1000)
    launch.send_dataset(tmp_path / "data")
    found = []
    for number in (1, 2):
        one = replace(launch, step=replace(launch.step, run_id=f"r{number}"), backends=[])
        push(
            launch.step.store, same_weights.code(tmp_path / f"{number}"), one.step.run.code, "code"
        )
        training = same_weights.Training(f"run {number}", one, one.backend(), queue=queue)
        training.between = partial(_preempt, one, queue, said) if number == 2 else None
        found.append(training.run())
        assert one.ended.launched.attempts == 1
    assert found[0] == found[1]


def _preempt(launch: Launch, queue: str, said: pytest.LogCaptureFixture) -> None:
    """Let another Job take the place of a run, and end it once the run waits in its queue."""
    said.clear()
    _use_up(launch, queue, {"cpu": "900m"}, priority_class=launch.namespace)
    words = f"suspended in queue {queue}"
    launch.wait_for(lambda: any(words in line for line in said.messages))
    assert not launch.ended
    _end_other(launch)


@on_both_kinds
def test_what_a_cohort_lends_it_takes_back(launch, with_tfjobs, said, scarce):
    """A team's run uses the other team's GPUs until that team needs them."""
    gpu = str(scarce["gpu_resource"])
    queue = _queue(launch, gpu, cpu="2", teams=("team", "other"), amount="4")
    pods = {"all": {"queue": queue, "gpu_resource": gpu}}
    launch.start(launch.spec(UNTIL_GO, workers=1, gpus=4, pod=pods))
    launch.wait_said()
    launch.wait_for(lambda: launch.gpus_held() == 8)
    said.clear()
    _use_up(launch, "other", {gpu: "4"})
    launch.wait_for(lambda: any("suspended in queue team" in line for line in said.messages))
    assert launch.gpus_held() == 4 and launch.ended is None
    _end_other(launch)
    launch.wait_said()
    launch.wait_for(lambda: launch.gpus_held() == 8)
    launch.go()
    launch.succeeds()


@on_both_kinds
def test_two_jobs_in_one_queue_want_the_same_gpus(launch, with_tfjobs, scarce):
    """Each needs six of eight GPUs: one waits as a whole, and holds none that the other needs."""
    gpu = str(scarce["gpu_resource"])
    queue = _queue(launch, gpu, cpu="2")
    pods = {"all": {"queue": queue, "gpu_resource": gpu}}
    tasks = [launch.task(key) for key in ("a", "b")]
    for task in tasks:
        task.start(task.spec("time.sleep(5)", workers=2, gpus=2, pod=pods))
    held = set()
    launch.wait_for(lambda: held.add(launch.gpus_held()) or all(task.ended for task in tasks))
    assert [task.join().launched.attempts for task in tasks] == [1, 1]
    assert max(held) == 6


@pytest.fixture
def folder(launch: Launch, with_tfjobs: None) -> Iterator[list[dict]]:
    """The objects of deploy/optional/kueue, applied, on two nodes of different GPU types."""
    found = launch.cluster.rendered(FOLDER, launch.namespace)
    kubectl = launch.cluster.kubectl
    flavors = {it["metadata"]["name"]: it["spec"] for it in found if it["kind"] == "ResourceFlavor"}
    for name, node in GPU_NODES.items():
        ((label, value),) = flavors[name]["nodeLabels"].items()
        kubectl("label", "node", node, f"{label}={value}")
        (taint,) = flavors[name]["nodeTaints"]
        kubectl("taint", "node", node, f"{taint['key']}={taint['value']}:{taint['effect']}")
    launch.cluster.apply(found)
    launch.wait_for(lambda: all(_is_active(launch, queue) for queue in GPU_NODES))
    yield found
    kubectl("delete", "--timeout=60s", "-f", "-", stdin=yaml.safe_dump_all(found))
    for name, node in GPU_NODES.items():
        kubectl("label", "node", node, *(f"{label}-" for label in flavors[name]["nodeLabels"]))
        kubectl("taint", "node", node, f"{flavors[name]['nodeTaints'][0]['key']}-")


@on_both_kinds
@pytest.mark.parametrize("queue", GPU_NODES)
def test_a_queue_of_the_folder_is_the_gpu_type(launch, folder, queue):
    labels = {"kueue.x-k8s.io/priority-class": "urgent"}
    spec = launch.spec(UNTIL_GO, gpus=1, pod={"all": {"queue": queue, "labels": labels}})
    launch.start(spec)
    launch.wait_said()
    running = launch.cluster.core.read_namespaced_pod(launch.pod(), launch.namespace).spec
    assert running.node_name == GPU_NODES[queue]
    found = launch.cluster.kubectl("get", "workloads", "-n", launch.namespace, "-o", "json")
    (workload,) = json.loads(found)["items"]
    assert workload["spec"]["priority"] == 1000
    launch.go()
    launch.join()
    launch.ended_with("succeeded", 0, jobs=1)


@_on_jobset
def test_what_is_wrong_in_the_folder_is_refused(launch, folder):
    first = {it["kind"]: it for it in reversed(folder)}
    queue, flavor = first["ClusterQueue"]["spec"], first["ResourceFlavor"]["spec"]
    (group,) = queue["resourceGroups"]
    for kind, change, path in (
        ("ClusterQueue", {"cohortNam": "gpus"}, "spec.cohortNam"),
        ("ClusterQueue", {"cohort": "gpus"}, "spec.cohort"),
        ("ClusterQueue", {"preemption": {"withinClusterQueue": "Lower"}}, "withinClusterQueue"),
        (
            "ClusterQueue",
            {"resourceGroups": [group | {"coveredResources": ["cpu"]}]},
            "spec.resourceGroups[0]: ",
        ),
        (
            "ResourceFlavor",
            {"nodeTaints": [flavor["nodeTaints"][0] | {"effect": "Never"}]},
            "spec.nodeTaints: ",
        ),
        (
            "ResourceFlavor",
            {"tolerations": [flavor["tolerations"][0] | {"operator": "Is"}]},
            "spec.tolerations: ",
        ),
    ):
        wrong = first[kind] | {"spec": first[kind]["spec"] | change}
        with pytest.raises(StepError) as refused:
            launch.cluster.apply([wrong], "--dry-run=server")
        assert path in str(refused.value)
