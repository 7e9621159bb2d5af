"""What preflight makes of nodes, GPUs and paths; the rest it asks of a real cluster."""

import pytest

from kfp_tfjob.checks.cluster import too_old
from kfp_tfjob.checks.finding import local_paths
from kfp_tfjob.checks.namespace import _references, mounted_secret
from kfp_tfjob.checks.placement import remedy, shared_gpus, too_small
from kfp_tfjob.checks.subject import Subject
from kfp_tfjob.cluster.client import ClusterClient
from kfp_tfjob.jobs.spec import JobSpec
from tests.unit.launch_parameters import DEFAULTS

GPU = "nvidia.com/gpu"
TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def spec(workers: int = 1, gpus: int = 2, **settings) -> JobSpec:
    values = {"train_workers": workers, "train_gpus": gpus, "train_batch_size": 48}
    return JobSpec.parse(**DEFAULTS | values | {"pod": {"all": settings}})


def node(gpus: int, taints=(), resource: str = GPU, **labels: str) -> dict:
    metadata = {"labels": {key.replace("_", "/"): value for key, value in labels.items()}}
    has = {"cpu": "999", "memory": "9Ti", "ephemeral-storage": "9Ti", resource: str(gpus)}
    status = {"allocatable": has}
    return {"metadata": metadata, "spec": {"taints": list(taints)}, "status": status}


TOLERATED = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
EQUAL = {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
OTHER = {"tolerations": [{"key": "gpu", "value": "no", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("wanted", "nodes", "warned"),
    [
        (spec(), [node(2), node(2)], []),
        (spec(), [node(4)], []),
        # Three GPUs on one node are one replica of two.
        (spec(workers=2), [node(3)], ["2 workers with 2"]),
        (spec(), [node(1), node(1)], ["1 chief with 2", "1 worker with 2"]),
        (spec(), [], ["1 chief", "1 worker"]),
        (spec(workers=2, gpus=4), [node(8), node(4)], []),
        (spec(workers=2, gpus=4), [node(8), node(8, [TAINT])], ["the job requests a total of 12 "]),
        (spec(gpus=0), [], []),
        (spec(node_selector={"pool": "a"}), [node(8, pool="b")], ["1 chief", "1 worker"]),
        (spec(node_selector={"pool": "a"}), [node(8, pool="a")], []),
        (spec(), [node(8, [TAINT])], ["1 chief", "1 worker"]),
        (spec(**TOLERATED), [node(8, [TAINT])], []),
        (spec(**EQUAL), [node(8, [TAINT])], []),
        (spec(queue="a100"), [node(8, [TAINT])], []),  # the queue's flavor may tolerate it
        (spec(queue="a100"), [node(1, [TAINT])], ["1 chief", "1 worker"]),
        (spec(**OTHER), [node(8, [TAINT])], ["1 chief", "1 worker"]),
        (spec(), [node(8, [TAINT | {"effect": "PreferNoSchedule"}])], []),
    ],
)
def test_gpus_that_are_there_now(wanted, nodes, warned):
    found = list(too_small(wanted, nodes))
    assert len(found) == len(warned)
    assert all(warning.startswith(words) for warning, words in zip(found, warned, strict=True))


def test_tolerations_are_the_remedy_only_if_taints_alone_keep_a_replica_away():
    assert "pod.all.tolerations" in remedy(spec(), [node(0), node(8, [TAINT])])
    assert "tolerations" not in remedy(spec(), [node(0), node(1, [TAINT])])
    assert "tolerations" not in remedy(spec(queue="a100"), [node(1, [TAINT])])


def machine(gpus: int = 0, **has: str) -> dict:
    found = node(gpus)
    found["status"]["allocatable"] |= {key.replace("_", "-"): value for key, value in has.items()}
    return found


EFA, PAGES = "vpc.amazonaws.com/efa", "hugepages-2Mi"


def with_devices(name: str, efa: str, pages: str = "0") -> dict:
    found = node(2)
    found["metadata"]["name"] = name
    found["status"]["allocatable"] |= {EFA: efa, PAGES: pages}
    return found


@pytest.mark.parametrize(
    ("gpus", "resources", "nodes", "warned"),
    [
        (2, {EFA: 4}, [with_devices("p4d", "4")] * 2, []),
        (0, {PAGES: "5Gi"}, [with_devices("p4d", "4", "10Gi")], []),
        (2, {EFA: 4}, [node(2)] * 2, [f"2 {GPU} and 4 {EFA} each", f"4 {EFA} each"]),
        # Without a node, as with GPUs: a wrong name would wait for ever.
        (0, {"rdma/ibb": 1}, [], ["with 1 rdma/ibb each", "with 1 rdma/ibb each"]),
        (0, {"rdma/ibb": 1}, [node(0)], ["pod.all.resources.rdma/ibb (now 1)"] * 2),
        (0, {PAGES: "20Gi"}, [with_devices("p4d", "4", "10Gi")], ["only 10 GiB"] * 2),
        (0, {EFA: 1}, [with_devices("p4d", "1")], [f"requests a total of 2 {EFA}"]),
    ],
)
def test_other_resources_are_compared_as_gpus_are(gpus, resources, nodes, warned):
    found = list(too_small(spec(gpus=gpus, resources=resources), nodes))
    assert len(found) == len(warned), found
    for text, words in zip(found, warned, strict=True):
        assert words in text, text


SMALL = machine(cpu="3920m", memory="64Gi", ephemeral_storage="100Gi")
SMALL["metadata"]["name"] = "small"
MOST = "set by pod.all.cpu (now 4), but the largest node, small, can allocate only 3.92"
SMALLER = machine(cpu="1", memory="2Gi", ephemeral_storage="1Gi")


OF_GPUS = machine(8, cpu="4", memory="64Gi")
OF_CORES = machine(0, cpu="64", memory="64Gi")


@pytest.mark.parametrize(
    ("wanted", "nodes", "warned"),
    [
        # The chief has its sidecar beside it.
        (
            spec(gpus=0),
            [SMALL],
            [f"one chief requests a total of 4.25 cpu, {MOST}"]
            + [f"one worker requests a total of 4 cpu, {MOST}"],
        ),
        (spec(gpus=0), [SMALLER, SMALL, SMALLER], ["small, can allocate only 3.92"] * 2),
        (spec(gpus=0, cpu="3500m"), [SMALL, SMALL], []),
        (spec(gpus=0, cpu=1), [SMALL], []),
        (spec(gpus=0, cpu=3), [SMALL], ["6.25 cpu"]),
        (spec(gpus=0, cpu=3, memory="80Gi"), [SMALL], ["81 GiB memory", "80 GiB memory"]),
        (spec(gpus=0, cpu=3, ephemeral_storage="1Ti"), [SMALL], ["1025 GiB", "1024 GiB"]),
        (spec(gpus=0, cpu=1, workers=11), [SMALL, SMALL], ["room for 6"]),
        # Each kind of pod has room by itself, and all together have not.
        (spec(workers=2, gpus=4), [machine(8)], ["12 nvidia.com/gpu"]),
        # No node has all of it, though each thing is on one.
        (spec(gpus=2, cpu=8), [OF_GPUS, OF_CORES], ["room for 0", "room for 0"]),
        (spec(gpus=0, node_selector={"pool": "a"}), [SMALL], ["node selector"] * 2),
    ],
)
def test_one_replica_is_compared_with_the_largest_node(wanted, nodes, warned):
    found = list(too_small(wanted, nodes))
    assert len(found) == len(warned), found
    for text, words in zip(found, warned, strict=True):
        assert words in text, text


def test_the_secret_of_the_store_is_seen_by_its_mount(tmp_path, monkeypatch):
    monkeypatch.setenv("STORAGE_SECRET_DIR", str(tmp_path))
    (tmp_path / "..data").mkdir()  # of every Secret volume, an empty one too
    subject = Subject(ClusterClient(None, "team-a"), spec())
    (warning,) = mounted_secret(subject)
    assert "Secret objstore-cred " in warning.what
    made = "kubectl -n team-a create secret generic objstore-cred --from-literal=AWS_A"
    assert made in warning.fix and warning.status == "warning"
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("x")
    assert not list(mounted_secret(subject))


MIG = "nvidia.com/mig-1g.5gb"
SHARED = {"nvidia.com_gpu.sharing-strategy": "time-slicing"}


@pytest.mark.parametrize(
    ("wanted", "nodes", "refused"),
    [
        (spec(), [node(8)], False),
        (spec(gpu_resource=MIG), [], True),
        (spec(workers=0, gpus=2, gpu_resource=MIG), [], True),
        (spec(workers=0, gpus=1, gpu_resource=MIG), [], False),
        (spec(gpu_resource="nvidia.com/gpu.shared"), [], True),
        (spec(), [node(8, **SHARED)], True),
        (spec(), [node(8, **{"nvidia.com_gpu.sharing-strategy": "none"})], False),
        (spec(gpus=0), [node(8, **SHARED)], False),
        (spec(queue="a100"), [node(8, **SHARED)], False),
        (spec(queue="a100", gpu_resource=MIG), [], True),
    ],
)
def test_parts_of_gpus_do_not_reduce(wanted, nodes, refused):
    found = list(shared_gpus(wanted, nodes))
    assert bool(found) is refused
    assert all("all-reduce" in str(problem) for problem in found)


def test_paths_of_the_machine_of_a_person_are_refused():
    values = {"data_uri": "data/x.csv", "model_code": "./model.py:build"}
    found = [str(problem) for problem in local_paths(values)]
    assert [text.split()[0] for text in found] == ["data_uri", "model_code"]
    far = {"data_uri": "s3://b/x.csv", "model_code": "s3://b/model.py:build"}
    assert not list(local_paths(far))


def test_every_object_that_is_named_is_asked_for():
    volumes = [{"claim": "cache", "path": "/cache"}, {"secret_name": "gcp", "path": "/gcp"}]
    volumes += [{"config_map": "hosts", "path": "/hosts"}]
    found = set(_references(spec(volumes=volumes, service_account="a", image_pull_secret="r")))
    assert found == {
        ("serviceaccounts", "a", "pod.all.service_account"),
        ("persistentvolumeclaims", "cache", "pod.all.volumes"),
        ("configmaps", "hosts", "pod.all.volumes"),
    }


@pytest.mark.parametrize(
    ("major", "minor", "refused"),
    [("1", "28", True), ("1", "28+", True), ("1", "29", False), ("1", "33+", False)]
    + [("", "", False)],
)
def test_a_cluster_without_native_sidecars_is_refused(major, minor, refused):
    assert bool(list(too_old({"major": major, "minor": minor}))) is refused
